"""Numbers as people read them. What bounds from above is never rounded down."""

import math

from reticent.accounting.rounding import NOTHING, upper

__all__ = ["NOTHING", "count", "percent", "plain", "times", "upper"]


def plain(value: float | None, digits: int = 4) -> str:
    """A number to so many digits."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.{digits}g}"


def count(value: int | None) -> str:
    """A whole number."""
    return NOTHING if value is None else f"{value:,}"


def percent(value: float | None) -> str:
    """A fraction as a percentage."""
    return NOTHING if value is None else f"{value:.2%}"


def times(value: float | None, other: float | None) -> str:
    """How many times the other the value is."""
    return NOTHING if not value or not other else f"{value / other:.2f}"
