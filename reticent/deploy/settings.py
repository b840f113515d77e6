"""A device's own directory: what it was shipped with, and what it keeps.

device.toml     its name, where its text is, its lifetime budget
signing.key     with which it signs for secure aggregation (0600)
registry.json   the public keys of all devices, from whoever ships them
terms/          the terms of the runs it may take part in
diary.sqlite    when it took part
rounds/         the secrets of rounds under way
compiled/       its compiled steps
"""

import json
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from reticent.deploy.budget import Budget
from reticent.deploy.terms import Terms
from reticent.errors import Refused
from reticent.files import write_atomically
from reticent.secagg import Member

SETTINGS = "device.toml"


@dataclass(frozen=True)
class DeviceSettings:
    """The settings in a device's directory."""

    directory: Path
    name: str
    store: Path
    least_words: int
    budget: Budget
    compiled: Path

    @classmethod
    def load(cls, directory: str | Path) -> "DeviceSettings":
        """Reads device.toml; refuses one that is not whole, naming the key."""
        directory = Path(directory).absolute()
        path = directory / SETTINGS
        if not path.is_file():
            raise Refused(f"{directory} is no device; make one with `reticent deploy device`.")
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
            device, budget = content["device"], content["budget"]
            return cls(
                directory,
                device["name"],
                directory / device["store"],
                int(device.get("least_words", 1)),
                Budget(budget["epsilon"], budget["delta"], bool(budget.get("accept_no_noise", False))),
                directory / device.get("compiled", "compiled"),
            )
        except KeyError as error:
            raise Refused(f"{path} lacks the key {error}; write it anew with `reticent deploy device`.") from None
        except (tomllib.TOMLDecodeError, TypeError, ValueError) as error:
            raise Refused(f"{path} is damaged: {error}") from None

    def save(self) -> None:
        """Writes device.toml."""
        from reticent.config.toml import to_toml

        budget = {"epsilon": self.budget.epsilon, "delta": self.budget.delta}
        if self.budget.accept_no_noise:
            budget["accept_no_noise"] = True
        device = {
            "name": self.name,
            "store": str(self.store.absolute()),
            "least_words": self.least_words,
            "compiled": str(self.compiled),
        }
        write_atomically(self.directory / SETTINGS, to_toml({"device": device, "budget": budget}).encode(), 0o600)

    @cached_property
    def member(self) -> Member:
        """Who this device is in secure aggregation."""
        registry = read_registry(self.directory / "registry.json")
        key = self.directory / "signing.key"
        if not key.is_file():
            raise Refused(f"{key} is missing; `reticent deploy keys` makes it.")
        if key.stat().st_mode & 0o077:
            raise Refused(f"Others can read {key}; make it yours alone: chmod 600 {key}.")
        return Member(self.name, bytes.fromhex(key.read_text().strip()), registry)

    def terms(self, digest: str) -> Terms | None:
        """This device's own copy of the terms with this digest; None if it was shipped with none."""
        if not (len(digest) == 64 and digest.isalnum()):
            return None
        path = self.directory / "terms" / f"{digest}.json"
        if not path.is_file():
            return None
        found = Terms.load(path)
        if found.digest != digest:
            raise Refused(f"{path} is not the terms that its name says; copy them anew.")
        return found


def read_registry(path: Path) -> dict[str, bytes]:
    """Every device's public key by its name. A device's number is its place here: names are only ever added."""
    if not path.is_file():
        raise Refused(f"There is no registry of devices at {path}; `reticent deploy keys` makes it.")
    try:
        found = {name: bytes.fromhex(key) for name, key in json.loads(path.read_bytes())["devices"].items()}
        if any(len(key) != 32 for key in found.values()):
            raise ValueError("a key has not 32 bytes")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(f"{path} is no registry of devices ({error}); copy it anew.") from None
    return found
