"""The terms of a run: what devices agree to, and what the server is held to.

A file that a device has from whoever ships it, not from the server of a round. From it follow, on both sides and with no
further word: how much a device clips, how long it rests, how many there must be for a sum, and what guarantee it is charged.
"""

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reticent.errors import Refused
from reticent.files import write_atomically
from reticent.ledger.lines import canonical, digest
from reticent.secagg import Integers, Round
from reticent.secagg.graph import quorum, tolerated

SCHEMA = 1
CORRUPTION = 0.05
SLACK = 0.1
"""Of the report goal: devices that may vanish after their update is in the sum."""


@dataclass(frozen=True)
class Terms:
    """What a run promises: `run_file` is the resolved run file, `description` what its ledger begins with, `arrays` the
    matrices of its mechanism, where it holds any."""

    run_file: str
    description: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @cached_property
    def digest(self) -> str:
        return digest(canonical(self.content))

    @property
    def content(self) -> dict[str, Any]:
        """As plain JSON."""
        arrays = {
            name: {"dtype": value.dtype.str, "shape": list(value.shape), "hex": value.tobytes().hex()}
            for name, value in sorted(self.arrays.items())
        }
        return {"schema": SCHEMA, "run_file": self.run_file, "description": self.description, "arrays": arrays}

    def save(self, path: Path) -> None:
        write_atomically(path, canonical(self.content) + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> "Terms":
        """The terms in a file; refuses a damaged one and one of another version."""
        path = Path(path)
        if not path.is_file():
            raise Refused(f"There are no terms at {path}; `reticent deploy new` writes them as terms.json.")
        try:
            content = json.loads(path.read_bytes())
            if content["schema"] != SCHEMA:
                raise Refused(f"{path} is of version {content['schema']}, and this program reads {SCHEMA}; update it.")
            arrays = {
                name: np.frombuffer(bytes.fromhex(one["hex"]), np.dtype(one["dtype"])).reshape(one["shape"])
                for name, one in content["arrays"].items()
            }
            terms = cls(content["run_file"], content["description"], arrays)
            _ = (terms.invited, terms.size, terms.code, terms.settings)
        except Refused:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"{path} is damaged ({error!r}); copy the terms anew.") from None
        return terms

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The tables of the run file, unchecked: reading them needs nothing but the standard library."""
        import tomllib

        return tomllib.loads(self.run_file)

    @property
    def name(self) -> str:
        return self.settings["run"]["name"]

    @property
    def accounting(self) -> dict[str, Any]:
        return self.description["accounting"]

    @property
    def rounds(self) -> int:
        return self.accounting["rounds"]

    @property
    def min_separation(self) -> int:
        return self.accounting["participation"]["min_separation"]

    @property
    def max_participations(self) -> int:
        return self.accounting["participation"]["max_participations"]

    @property
    def rest_hours(self) -> float:
        return self.settings["deploy"]["rest_hours"]

    @property
    def report_goal(self) -> int:
        """Updates in a sum: never fewer, never more."""
        return self.settings["population"]["report_goal"]

    @property
    def invited(self) -> int:
        """Devices that a round begins with."""
        return invited(self.report_goal, self.settings["deploy"]["over_selection"])

    @property
    def size(self) -> int:
        """Parameters of the model."""
        return self.description["model"]["parameters"]

    @cached_property
    def code(self) -> Integers:
        """How a clipped update, integers on the release's grid already, becomes words: as it is, so that nothing is added
        to its norm."""
        largest = math.floor(self.description["clip_norm"] / self.description["grid"])
        return Integers(self.size, largest, self.invited)

    def round(self, run: str, number: int, attempt: int, nonce: bytes) -> Round:
        """The attempt at a round as this copy of the terms has it. Whoever else has other terms gets another digest, and
        their messages are not taken."""
        most = self.invited
        corrupted = tolerated(most, self.settings["run"].get("tolerated_corruption", CORRUPTION))
        fewest = max(self.report_goal - math.ceil(SLACK * self.report_goal), quorum(most, corrupted), corrupted + 2)
        return Round(
            run=f"{run} {self.digest}",
            number=number,
            cohort=most,
            length=self.size,
            modulus_bits=self.code.modulus_bits,
            dropouts=most - min(fewest, self.report_goal),
            corrupted=corrupted,
            attempt=attempt,
            nonce=nonce,
        )


def invited(report_goal: int, over_selection: float) -> int:
    """Devices that a round begins with, rounded up; 1.3 times 10 is 13 whatever the binary digits of 1.3."""
    return math.ceil(report_goal * over_selection - 1e-9)
