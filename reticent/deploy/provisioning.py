"""Getting a device ready: its text, its budget, and the terms that it agrees to."""

from pathlib import Path

import numpy as np

from reticent.data.store import Store, StoreWriter
from reticent.deploy.budget import Budget
from reticent.deploy.settings import SETTINGS, DeviceSettings
from reticent.deploy.terms import Terms
from reticent.deploy.text import own_text
from reticent.errors import Refused

TEXT = "text"


def provision(
    directory: Path,
    *,
    budget: Budget | None = None,
    store: Store | None = None,
    user: int | None = None,
    terms: Terms | None = None,
    least_words: int = 1,
    compiled: Path | None = None,
) -> DeviceSettings:
    """Makes the directory that `make_keys` began for a device into a device; on one that is a device already, gives it the
    terms of one more run. `store` is where its text is taken from, all of `user`'s."""
    directory = directory.absolute()
    if not (directory / "signing.key").is_file():
        raise Refused(f"{directory} has no keys of a device; `reticent deploy keys` makes them.")
    if (directory / SETTINGS).is_file():
        if budget is not None or store is not None:
            raise Refused(f"{directory} is a device already, with a text and a budget for life; give it --terms only.")
        settings = DeviceSettings.load(directory)
    else:
        if budget is None or store is None:
            raise Refused("A new device needs a text (--store) and a lifetime budget (--epsilon and --delta).")
        if user is None and store.users != 1:
            raise Refused(f"The store has {store.users} users; say with --user whose device this is.")
        _copy_text(store, user or 0, directory / TEXT)
        where = directory / "compiled" if compiled is None else compiled.absolute()
        settings = DeviceSettings(directory, directory.name, directory / TEXT, least_words, budget, where)
        own_text(settings)
        settings.save()
    if terms is not None:
        agree(settings, terms)
    return settings


def agree(settings: DeviceSettings, terms: Terms) -> None:
    """Gives a device the terms of a run; refuses what could never be: another vocabulary, no budget for one round."""
    tokenizer = own_text(settings).tokenizer()
    if tokenizer.digest != terms.description["tokenizer"]:
        raise Refused(
            f"The text of the device {settings.name!r} was encoded with another vocabulary than the run {terms.name!r} has; "
            "encode it anew with the run's tokenizer."
        )
    folder = settings.directory / "terms"
    folder.mkdir(mode=0o700, exist_ok=True)
    terms.save(folder / f"{terms.digest}.json")


def _copy_text(store: Store, user: int, path: Path) -> None:
    with StoreWriter(path, store.tokenizer()) as writer:
        writer.add_user(store.user_ids[user], [np.asarray(one) for one in store.examples(user)])
    path.chmod(0o700)
