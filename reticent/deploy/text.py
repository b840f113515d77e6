"""A device's own text: a store with one user in it."""

from reticent.data.store import Store
from reticent.deploy.settings import DeviceSettings
from reticent.errors import Refused


def own_text(settings: DeviceSettings) -> Store:
    """The store of this device; refuses one with too little in it to learn from, or with several people's text."""
    store = Store.open(settings.store)
    if store.users != 1:
        raise Refused(
            f"The store {settings.store} has {store.users} users and a device has one; give `reticent deploy device` the "
            "one it belongs to with --user."
        )
    # Every example begins with a token that is no target.
    words = int(store.tokens_per_user[0] - store.examples_per_user[0])
    if words < max(settings.least_words, 1):
        raise Refused(
            f"The device {settings.name!r} has {words} words of text and takes part from {settings.least_words} on; it "
            "waits until there is more."
        )
    return store
