"""The server's half of a round: any optax optimiser, on the average that was released."""

import optax

from reticent.config.schema import Server
from reticent.errors import Refused

# Those that make sense of one gradient and the parameters alone.
OPTIMIZERS = ("sgd", "adam", "adamw", "adagrad", "adafactor", "yogi", "lamb", "lion", "rmsprop", "nadam")
LOWEST = 0.05


def server_optimizer(server: Server, rounds: int) -> optax.GradientTransformation:
    """The optimiser of a run file's table [server], over `rounds` rounds.

    It takes the average update with its sign turned, as a gradient (ERRATA on BLT, Alg. 1). "sgd" has the table's
    momentum; the others their own defaults.
    """
    if server.optimizer not in OPTIMIZERS:
        raise Refused(f"There is no server.optimizer {server.optimizer!r}; there are {', '.join(OPTIMIZERS)}.")
    rate = schedule(server, rounds)
    if server.optimizer == "sgd":
        return optax.sgd(rate, momentum=server.momentum or None)
    return getattr(optax, server.optimizer)(rate)


def schedule(server: Server, rounds: int) -> optax.Schedule:
    """The learning rate by round: it rises linearly in the first rounds and falls in the last (BandMF, App. I); in between
    it is constant, or falls as half a cosine."""
    peak, rise, fall = server.learning_rate, round(server.warm_up * rounds), round(server.cool_down * rounds)
    middle, end = optax.constant_schedule(peak), peak
    if server.schedule == "cosine":
        middle, end = optax.cosine_decay_schedule(peak, max(rounds - rise - fall, 1), alpha=LOWEST), LOWEST * peak
    if not rise and not fall:
        return middle
    return optax.join_schedules(
        [
            optax.linear_schedule(LOWEST * peak, peak, rise),
            middle,
            optax.linear_schedule(end, LOWEST * peak, fall),
        ],
        [rise, rounds - fall],
    )
