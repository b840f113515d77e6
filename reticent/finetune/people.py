"""People whom a finished run did not train on."""

from reticent.data.store import Store
from reticent.errors import Refused
from reticent.training.evaluation import HeldOut, held_out
from reticent.training.finished import TrainedModel
from reticent.training.setup import open_data


def people_of(trained: TrainedModel, store: str | None, users: int | None) -> HeldOut:
    """The people of a store, or those that the run was evaluated on; refuses where there is nobody."""
    length = trained.run_file.data.sequence_length
    if store is None:
        people = open_data(trained.run_file).people
        if people is None:
            raise Refused("The run kept nobody back; name a store of people with --store.")
        return held_out(people.store, people.users if users is None else min(users, people.users), length)
    opened = Store.open(store)
    opened.check_tokenizer(trained.tokenizer, "The model's tokenizer")
    return held_out(opened, users, length)
