"""(Amplified) Banded Matrix Factorization: tables."""

import math
from typing import Any

from reticent.accounting.amplified import sampled_guarantee
from reticent.accounting.calibration import smallest_noise
from reticent.accounting.gaussian import rho_of_gaussian
from reticent.mechanisms import Mechanism, Participation
from reticent.mechanisms.independent import Independent
from reticent.mechanisms.tree import TreeFull
from reticent.reproduce.made import made
from reticent.reproduce.printed import printed
from reticent.reproduce.result import Line, Result

SHAPE = (2052, 342, 6)
DELTA = 1e-6


def table2(fast: bool) -> Result:
    """Sensitivities and errors of the families."""
    rounds = SHAPE[0]
    once, epochs, separated = Participation(rounds, rounds), Participation(*SHAPE, exact=True), Participation(*SHAPE)
    found = []
    for row in printed("bandmf")["tab2"]["rows"]:
        if fast and row["kind"] == "dense":
            continue
        mechanism = _of_table2(row)
        scale = mechanism.sensitivity(epochs).value
        error = mechanism.rms_error(rounds) * scale
        ours = {name: mechanism.sensitivity(p).value / scale for name, p in (("once", once), ("separated", separated))}
        found.append((row, ours | {"error_epochs": error, "error_separated": error * ours["separated"]}))
    named = {"once": "sensitivity, k = 1", "separated": "sensitivity, 342 apart or more"}
    unit = 1.0
    if not fast:
        named |= {"error_epochs": "error, k = 6 epochs", "error_separated": "error, 342 apart or more"}
        unit = next(ours["error_epochs"] for row, ours in found if row["kind"] == "dense" and row.get("exact"))
    lines = []
    for row, ours in found:
        for name, words in named.items():
            value = ours[name] / unit if name.startswith("error") else ours[name]
            lines.append(Line(f"{row['what']}: {words}", row[name], value))
    return Result(
        "BandMF, Table 2: sensitivities and errors of the families",
        "n = 2052; sensitivities relative to that under (k = 6, b = 342), errors relative to MF's. Where the paper and we "
        "have but a bound (MF 342 apart or more), the bounds are compared."
        + (" Without MF and what is relative to it, which takes minutes." if fast else ""),
        tuple(lines),
    )


def table4(fast: bool) -> Result:
    """Noise multipliers without amplification."""
    separated, epochs = Participation(*SHAPE), Participation(*SHAPE, exact=True)
    ratio = None
    if not fast:
        dense = made("dense", *SHAPE)
        ratio = dense.sensitivity(separated).value / dense.sensitivity(epochs).value
    lines = []
    for row in printed("bandmf")["tab4"]["rows"]:
        noise = gaussian_noise(row["epsilon"])
        lines.append(_noise(f"epsilon {row['epsilon']}: sensitivity 1", row["noise"], noise))
        if ratio is not None:
            lines.append(_noise(f"epsilon {row['epsilon']}: MF", row["dense"], noise * ratio, DENSE_WITHIN))
    return Result(
        "BandMF, Table 4: noise multipliers of simulated cross-device training",
        "delta 1e-6; matrices of sensitivity 1 under (k = 6, b = 342), of which that of MF is larger where users may come "
        "at least 342 rounds apart." + (" Without MF, which takes minutes." if fast else ""),
        tuple(lines),
    )


def table5(fast: bool) -> Result:
    """Noise multipliers with amplification."""
    table = printed("bandmf")["tab5"]
    lines = []
    for row in table["rows"]:
        for what, bands, paper in (
            ("DP-SGD", 1, row["sgd"]),
            (f"BandMF, {row['bands']} bands", row["bands"], row["banded"]),
        ):
            lines.append(_amplified_line(what, row["epsilon"], bands, float(paper), table))
        noise = gaussian_noise(row["epsilon"])
        lines.append(Line(f"MF without amplification: noise for epsilon {row['epsilon']}", row["dense"], noise))
    return Result(
        "BandMF, Table 5: noise multipliers of centralised training",
        "delta 1e-6, 342,477 users, batches of 1,000 by Poisson sampling. The paper's matrices are scaled to sensitivity 1 "
        "over 6 epochs, so its noise is that of columns of norm 1 less the root of 6. Compared is epsilon at the printed "
        "noise, to 0.2%: accountants differ by the grid on which they round losses up.",
        tuple(lines),
    )


def _amplified_line(what: str, epsilon: int, bands: int, paper: float, table: dict[str, Any]) -> Line:
    rounds, probability = table["rounds"], table["batch"] * bands / table["users"]
    if bands == rounds:
        return Line(f"{what}: noise for epsilon {epsilon}", f"{paper:.5f}", gaussian_noise(epsilon))
    found = sampled_guarantee(probability, math.ceil(rounds / bands), paper * math.sqrt(6)).epsilon(DELTA)
    needed = amplified_noise(epsilon, rounds, bands, probability) / math.sqrt(6)
    beside = {"printed noise": paper, "our noise": needed}
    return Line(f"{what}: epsilon at the printed noise", str(epsilon), found, within=0.002 * epsilon, beside=beside)


def gaussian_noise(epsilon: float, delta: float = DELTA) -> float:
    """The noise multiplier of one Gaussian of sensitivity 1."""
    return 1 / math.sqrt(2 * rho_of_gaussian(epsilon, delta))


def amplified_noise(epsilon: float, rounds: int, bands: int, probability: float, delta: float = DELTA) -> float:
    """The noise multiplier, for columns of norm 1, of as many groups as bands that take turns (Thm. 4)."""
    times = math.ceil(rounds / bands)
    if probability >= 1:
        return gaussian_noise(epsilon, delta) * math.sqrt(times)
    return smallest_noise(lambda noise: sampled_guarantee(probability, times, noise), delta, epsilon=epsilon)


def _of_table2(row: dict[str, Any]) -> Mechanism:
    if row["kind"] == "tree-full":
        return TreeFull(SHAPE[0])
    if row["kind"] == "independent":
        return Independent()
    return made(row["kind"], *SHAPE, "rms", row.get("size"), row.get("exact", False))


DENSE_WITHIN = 5e-3


def _noise(what: str, paper: str, ours: float, within: float | None = None) -> Line:
    return Line(what, paper, ours, within=None if within is None else within * float(paper))
