"""The best BLT for a participation, in milliseconds: quasi-Newton on the closed form of `blt_loss`."""

import numpy as np

from reticent.errors import Refused
from reticent.mechanisms.blt import BLT
from reticent.mechanisms.blt_loss import distances, log_loss, output_scales
from reticent.mechanisms.lbfgs import minimise
from reticent.mechanisms.participation import Participation
from reticent.mechanisms.workload import PREFIX_SUM, Workload

MOST_BUFFERS = 12
# A buffer is a copy of the model: one that lowers the loss by less than this fraction is not worth it.
WORTHWHILE = 1e-5


def optimize(
    participation: Participation, objective: str = "max", workload: Workload = PREFIX_SUM, buffers: int = 4
) -> BLT:
    """The BLT of at most `buffers` buffers with the smallest MaxLoss ("max") or RmsLoss ("rms").

    Fewer come back where one more does not help. The fixed-epoch schema has the same optimum as min separation.
    """
    if objective not in ("max", "rms"):
        raise Refused(f'The objective is "max" or "rms", got {objective!r}.')
    if workload.learning_rates is not None:
        raise Refused("A BLT is optimised for prefix sums, with or without momentum; leave the learning rates out.")
    if not 1 <= buffers <= MOST_BUFFERS:
        raise Refused(
            f"buffers must be between 1 and {MOST_BUFFERS}, got {buffers}; more than 5 do not lower the loss."
        )
    best_loss, best = np.inf, np.empty(0)
    for count in range(1, buffers + 1):
        starts = _starts(count, best, participation)
        loss, logits = _descend(starts, participation, workload.momentum, objective, tolerance=1e-9)
        if loss > best_loss - WORTHWHILE:
            break
        best_loss, best = loss, logits
    _, best = _descend([best], participation, workload.momentum, objective, tolerance=1e-13)
    u, w, _ = distances(best)
    return BLT(tuple(1 - u), tuple(output_scales(u, w)))


def _descend(
    starts: list[np.ndarray], participation: Participation, momentum: float, objective: str, tolerance: float
) -> tuple[float, np.ndarray]:
    """The best log-loss that is reached from any of the starts, and where."""

    def loss(logits: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):  # a trial step may leave the range of floating point: no finite loss there
            return log_loss(logits, participation, momentum, objective)

    results = []
    for start in starts:
        if not np.isfinite(loss(start)[0]):
            continue  # grown from an optimum at the edge of floating point, where one more buffer cannot help
        found = minimise(loss, start, history=20, max_steps=300, rest_change=tolerance, rest_steps=5)
        results.append((loss(found)[0], found))
    return min(results, key=lambda result: result[0], default=(np.inf, starts[0]))


def _starts(count: int, fewer: np.ndarray, participation: Participation) -> list[np.ndarray]:
    # The logits of the distances of good BLTs are spread evenly, from those of some 3 / rounds to almost 1.
    low, high = -np.log(0.3 * participation.rounds + 1), 1.5
    step = (high - low) / (2 * count)
    even = np.r_[low + step / 2, np.full(2 * count - 1, np.log(step))]
    if not len(fewer):
        return [even]
    # The best with one buffer less, and a pair that decays faster than its last.
    faster = np.r_[fewer, 0.0, 0.0]
    if count > 3:
        return [faster]
    # The same with a pair in front that hardly decays: few buffers have optima of both sorts.
    slower = np.r_[fewer[0] - 7, np.log(6.0), 0.0, fewer[1:]]
    return [even, faster, slower]
