"""What is promised, to whom, against what, and on which assumptions."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from reticent.accounting.gaussian import check_delta
from reticent.accounting.losses import Part, delta_of, epsilon_of, total_rho
from reticent.errors import Refused

Unit = Literal["user", "device", "example"]
Adjacency = Literal["zero-out", "add-or-remove", "replace-one"]

NEIGHBOURS = {
    "zero-out": "two datasets are neighbours if one arises from the other by replacing all that one {unit} holds by "
    "records that contribute nothing, in the same rounds",
    "add-or-remove": "two datasets are neighbours if one has one {unit} more than the other",
    "replace-one": "two datasets are neighbours if one arises from the other by replacing one {unit} by another",
}


@dataclass(frozen=True)
class Guarantee:
    """Differential privacy with everything it takes to read the number.

    `epsilon` and `delta` are upper bounds at any point of the curve; `rho` is the zCDP where all of it is Gaussian and no
    part has a delta of its own, otherwise None. `noise_multiplier` is what was asked about; `sensitivity` is what one unit
    changes, for clip norm 1 (where cohorts are random, by one round that it is drawn in); `details` what else a reader
    may want, as plain JSON.
    """

    parts: tuple[Part, ...]
    unit: Unit
    adjacency: Adjacency
    assumptions: tuple[str, ...] = ()
    accounting: str = ""
    noise_multiplier: float | None = None
    sensitivity: float | None = None
    extra_delta: float = 0.0
    also_holds_for: tuple[Adjacency, ...] = ()
    group: int = 1
    simulated: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rho(self) -> float | None:
        """The zCDP parameter, where there is one."""
        return total_rho(self.parts) if self.extra_delta == 0 and self.group == 1 else None

    def delta(self, epsilon: float) -> float:
        """The delta at this epsilon."""
        if math.isnan(epsilon) or epsilon < 0:
            raise Refused(f"epsilon must not be negative, got {epsilon!r}.")
        if self.group == 1:
            return min(1.0, delta_of(self.parts, epsilon) + self.extra_delta)
        # (e, d)-DP for one is (k e, d (exp(k e) - 1) / (exp(e) - 1))-DP for k of them.
        each = epsilon / self.group
        one = delta_of(self.parts, each) + self.extra_delta
        growth = (
            math.log(self.group) if each == 0 else epsilon - each + math.log(math.expm1(-epsilon) / math.expm1(-each))
        )
        return min(1.0, math.exp(min(0.0, math.log(one) + growth))) if one else 0.0

    def epsilon(self, delta: float) -> float:
        """The epsilon at this delta; infinite where a part's own delta already uses it up."""
        check_delta(delta)
        if self.extra_delta >= delta:
            return math.inf
        if self.group == 1:
            return epsilon_of(self.parts, delta - self.extra_delta)
        return self._epsilon_of_group(delta)

    def _epsilon_of_group(self, delta: float) -> float:
        low, high = 0.0, 1.0
        while self.delta(high) > delta:
            low, high = high, 2 * high
            if high > 1e4:
                return math.inf
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high

    def as_adjacency(self, adjacency: Adjacency) -> "Guarantee":
        """The same guarantee under another adjacency, where it converts; refused where it does not."""
        if adjacency == self.adjacency:
            return self
        if adjacency in self.also_holds_for:
            return dataclasses.replace(self, adjacency=adjacency, also_holds_for=())
        if adjacency == "replace-one" and self.adjacency in ("add-or-remove", "zero-out"):
            # One out, one in: two steps.
            extra = ("the one who comes in takes part in the rounds of the one who leaves",)
            told = extra if self.adjacency == "zero-out" else ()
            # Two who leave together is another thing than one who leaves and one who comes, except for a Gaussian.
            two = self.for_group(2) if total_rho(self.parts) is not None else self.by_generic_bound(2)
            return dataclasses.replace(
                two, adjacency=adjacency, assumptions=(*self.assumptions, *told), also_holds_for=()
            )
        why = {
            ("zero-out", "add-or-remove"): "removing somebody may reshuffle everybody else's rounds",
            ("replace-one", "add-or-remove"): "the number of people is public under replace-one",
        }.get((self.adjacency, adjacency), f"it is not proven for {adjacency}")
        raise Refused(f"A guarantee under {self.adjacency} does not convert to {adjacency}: {why}; state it as it is.")

    def for_group(self, size: int, unit: Unit | None = None) -> "Guarantee":
        """For `size` units at once: k devices of a user, or (unit "user") k examples. Exact for Gaussians and
        Poisson sampling, the generic bound for the rest."""
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise Refused(f"A group has a whole number of at least 1 {self.unit}s, got {size!r}.")
        named: dict[str, Any] = {"unit": unit or self.unit}
        if unit is not None and unit != self.unit:
            named["assumptions"] = (
                *self.assumptions,
                f"a {unit} has at most {size} {self.unit}{'s' if size > 1 else ''}",
            )
        if size == 1:
            return dataclasses.replace(self, **named)
        grouped = [part.grouped(size) for part in self.parts]
        if self.group == 1 and self.extra_delta == 0 and all(part is not None for part in grouped):
            named["parts"] = tuple(grouped)
            named["sensitivity"] = None if self.sensitivity is None else size * self.sensitivity
            named["accounting"] = f"{self.accounting}; group privacy for {size}, exactly"
            return dataclasses.replace(self, **named)
        return dataclasses.replace(self.by_generic_bound(size), **named)

    def by_generic_bound(self, size: int) -> "Guarantee":
        """For a group of this size by the bound that holds for anything, (e, d) -> (k e, d (e^ke - 1) / (e^e - 1)): for
        comparison, or where nothing better is proven."""
        told = f"{self.accounting}; the generic group privacy bound for {size}"
        return dataclasses.replace(self, group=self.group * size, accounting=told)

    def describe(self, delta: float) -> dict[str, Any]:
        """Everything, as one plain JSON object."""
        epsilon = self.epsilon(delta)
        return {
            "rho": self.rho,
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "delta": delta,
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": self.sensitivity,
            "unit": self.unit,
            "adjacency": self.adjacency,
            "adjacency_means": NEIGHBOURS[self.adjacency].format(unit=self.unit),
            "accounting": self.accounting,
            "assumptions": list(self.assumptions),
            "simulated": self.simulated,
            **dict(self.details),
        }
