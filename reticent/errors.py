"""The one exception a user is meant to read."""


class Refused(ValueError):
    """What was asked cannot be done as asked.

    The message is one clear sentence with the reason and the remedy. The command line prints it and exits with 2; a
    library caller sees a ValueError.
    """
