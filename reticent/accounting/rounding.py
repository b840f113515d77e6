"""Numbers that bound from above, as people read them: never rounded down."""

import math
from decimal import ROUND_CEILING, Decimal

NOTHING = "–"


def upper(value: float | None, digits: int = 4) -> str:
    """A bound from above, to so many digits, rounded up."""
    if value is None or not math.isfinite(value):
        return NOTHING if value is None else "infinite"
    if value == 0:
        return "0"
    exact = Decimal(repr(float(value)))
    place = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(place, ROUND_CEILING)):.{digits}g}"
