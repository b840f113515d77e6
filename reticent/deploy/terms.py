"""The terms of a run: what devices agree to, and what the server is held to.

A file that a device has from whoever ships it, not from the server of a round. From it follow, on both sides and with no
further word: how much a device clips, how long it rests, how many there must be for a sum, and what guarantee it is charged.
"""

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reticent.errors import Refused
from reticent.files import write_atomically
from reticent.ledger.lines import canonical, digest
from reticent.secagg import GridSums, IntegerSums, RotatedCode, Round
from reticent.secagg.encoding import Code
from reticent.secagg.graph import quorum, tolerated
from reticent.secagg.keys import derive

SCHEMA = 1
TOLERATED = 0.05
"""Where the run file does not say: the fraction of devices that may vanish after their update is in the sum, and that of
those that may collude with the server."""


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
            terms.round("0", 0, 0, bytes(16))
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
    def sums(self) -> GridSums | IntegerSums:
        """Between a clipped update, in units of the release's grid, and what is summed: as in simulation."""
        norm, grid = self.description["clip_norm"], self.description["grid"]
        scale = self.description["secure_aggregation"].get("scale")
        if scale is None:
            return IntegerSums(self.size, norm, self.report_goal, grid)
        return GridSums(RotatedCode(self.size, norm, scale, self.report_goal), grid)

    def code(self, round: Round) -> Code:
        """The code of an attempt at a round, with the signs that it shares."""
        code = self.sums.code
        return replace(code, rotation=derive(round.digest, "rotation")) if isinstance(code, RotatedCode) else code

    def round(self, run: str, number: int, attempt: int, nonce: bytes) -> Round:
        """The attempt at a round as this copy of the terms has it. Whoever else has other terms gets another digest, and
        their messages are not taken."""
        table, most, goal = self.settings["run"], self.invited, self.report_goal
        corrupted = tolerated(most, table.get("tolerated_corruption", TOLERATED))
        after = math.ceil(goal * table.get("tolerated_dropout", TOLERATED) - 1e-9)
        fewest = min(max(goal - after, quorum(most, corrupted), corrupted + 2), goal)
        return Round(
            run=f"{run} {self.digest}",
            number=number,
            cohort=most,
            length=self.sums.code.length,
            modulus_bits=self.sums.code.modulus_bits,
            dropouts=most - fewest,
            corrupted=corrupted,
            attempt=attempt,
            nonce=nonce,
        )


def invited(report_goal: int, over_selection: float) -> int:
    """Devices that a round begins with, rounded up; 1.3 times 10 is 13 whatever the binary digits of 1.3."""
    return math.ceil(report_goal * over_selection - 1e-9)
