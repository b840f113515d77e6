"""(Amplified) Banded Matrix Factorization: how many bands, and the error at equal privacy."""

import functools
import math

from reticent.report.plots import Curve, Panel
from reticent.reproduce.bandmf import amplified_noise, gaussian_noise
from reticent.reproduce.made import made
from reticent.reproduce.printed import printed
from reticent.reproduce.result import Line, Result, claim

ROUNDS = 1024


def table3(fast: bool) -> Result:
    """The best number of bands by epsilon and epochs."""
    table = printed("bandmf")["tab3"]
    lines = []
    for row in table["rows"][2::3] if fast else table["rows"]:
        for epochs, paper in zip(table["epochs"], row["bands"], strict=True):
            if fast and epochs < 4:
                continue
            errors = {bands: banded_error(row["epsilon"], ROUNDS, epochs, bands) for bands in _powers(ROUNDS // epochs)}
            best = min(errors, key=lambda bands: errors[bands])
            tie = errors[paper] / errors[best]
            lines.append(Line(f"epsilon {row['epsilon']:g}, {epochs} epochs", str(paper), best, beside={"tie": tie}))
    return Result(
        "BandMF, Table 3: the best number of bands by epsilon and epochs",
        "n = 1024, delta 1e-6, powers of two; a tie is the error with the paper's number over the least error.",
        tuple(lines),
    )


def figure5(fast: bool) -> Result:
    """DP-SGD, MF and BandMF at equal privacy."""
    rounds = 256 if fast else ROUNDS
    epochs = _powers(rounds)
    epsilons = [0.125, 1.0, 8.0] if fast else [2.0**power for power in range(-5, 5)]
    sgd = {(e, k): sgd_error(e, rounds, k) for e in epsilons for k in epochs}
    banded = {(e, k): best_banded_error(e, rounds, k) for e in epsilons for k in epochs}
    dense = {(e, k): dense_error(e, rounds, k) for e in epsilons for k in epochs}
    worst = max(banded[at] / sgd[at] for at in sgd)
    at_one_epoch = banded[epsilons[-1], epochs[0]] / sgd[epsilons[-1], epochs[0]]
    both = {sgd[at] < dense[at] for at in sgd}
    all_epochs = [sgd[1.0, rounds] / one[1.0, rounds] for one in (dense, banded)]
    return Result(
        "BandMF, Figure 5: DP-SGD, MF and BandMF at equal privacy",
        f"n = {rounds}, delta 1e-6: root mean square error of prefix sums per user of a batch. MF is not amplified; DP-SGD "
        "and BandMF are, with the best number of bands." + (" The paper's n is 1024." if fast else ""),
        (
            claim("BandMF at least as good as DP-SGD everywhere", worst <= 1 + 1e-6, worst),
            claim("its improvement is largest for few epochs and a large epsilon", at_one_epoch < 0.5, at_one_epoch),
            claim("each of DP-SGD and MF is ahead somewhere", len(both) == 2, len(both)),
            claim("with as many epochs as rounds all three are within 10%",
                  all(abs(one - 1) < 0.10 for one in all_epochs), max(all_epochs)),
        ),
        (
            Panel("(a) DP-SGD over MF", "epochs", "ratio of errors",
                  tuple(Curve(f"epsilon {e:g}", epochs, [sgd[e, k] / dense[e, k] for k in epochs]) for e in epsilons),
                  log_x=True, log_y=True),
            Panel("(b) DP-SGD over BandMF", "epochs", "ratio of errors",
                  tuple(Curve(f"epsilon {e:g}", epochs, [sgd[e, k] / banded[e, k] for k in epochs]) for e in epsilons),
                  log_x=True, log_y=True),
            Panel("(c) epsilon 1", "epochs", "error",
                  tuple(Curve(name, epochs, [one[1.0, k] / k for k in epochs])
                        for name, one in (("DP-SGD", sgd), ("MF", dense), ("BandMF", banded))),
                  log_x=True, log_y=True),
        ),
    )  # fmt: skip


def figure11(fast: bool) -> Result:
    """BandMF's error over those of DP-SGD and MF, in the setting of CIFAR-10."""
    rounds, epochs = 2000, 20
    bands = (1, 2, 5, 10, 20, 50, 100)
    epsilons = [2.0**power for power in (range(-2, 5, 2) if fast else range(-3, 6))]
    sgd = [sgd_error(e, rounds, epochs, 1e-5) for e in epsilons]
    each = {b: [banded_error(e, rounds, epochs, b, 1e-5) for e in epsilons] for b in bands}
    best = [min(each[b][place] for b in bands) for place in range(len(epsilons))]
    curves = {"best BandMF over DP-SGD": [one / other for one, other in zip(best, sgd, strict=True)]}
    lines = [
        claim("BandMF at least as good as DP-SGD at every epsilon", max(curves["best BandMF over DP-SGD"]) <= 1 + 1e-6,
              max(curves["best BandMF over DP-SGD"])),
    ]  # fmt: skip
    panels = [
        Panel("over DP-SGD", "epsilon", "ratio of errors", tuple(
            Curve(f"{b} bands", epsilons, [one / other for one, other in zip(each[b], sgd, strict=True)]) for b in bands
        ), log_x=True, log_y=True),
    ]  # fmt: skip
    if not fast:
        dense = [dense_error(e, rounds, epochs, 1e-5) for e in epsilons]
        ratios = [one / other for one, other in zip(best, dense, strict=True)]
        ahead = [e for e, ratio in zip(epsilons, ratios, strict=True) if ratio < 1]
        lines.append(claim("BandMF ahead of MF up to epsilon about 5 (4 to 8)", 4 <= max(ahead) <= 8, max(ahead)))
        panels.append(
            Panel("over MF", "epsilon", "ratio of errors", (Curve("best BandMF", epsilons, ratios),), log_x=True)
        )
    return Result(
        "BandMF, Figure 11: errors in the setting of CIFAR-10",
        "2,000 rounds of 500 from 50,000 examples, 20 epochs, delta 1e-5 (the paper does not tell it); up to 100 bands."
        + (" Without MF, which takes minutes." if fast else ""),
        tuple(lines),
        tuple(panels),
    )


@functools.lru_cache(maxsize=4096)
def banded_error(epsilon: float, rounds: int, epochs: int, bands: int, delta: float = 1e-6) -> float:
    """The error of BandMF with equal norms and as many groups as bands, for sums."""
    noise = amplified_noise(epsilon, rounds, bands, bands * epochs / rounds, delta)
    return noise * made("banded", rounds, bands, None, "rms", bands).rms_error(rounds)


def best_banded_error(epsilon: float, rounds: int, epochs: int) -> float:
    """That with the best number of bands."""
    return min(banded_error(epsilon, rounds, epochs, bands) for bands in _powers(rounds // epochs))


def sgd_error(epsilon: float, rounds: int, epochs: int, delta: float = 1e-6) -> float:
    """The error of independent noise, amplified."""
    return amplified_noise(epsilon, rounds, 1, epochs / rounds, delta) * math.sqrt((rounds + 1) / 2)


def dense_error(epsilon: float, rounds: int, epochs: int, delta: float = 1e-6) -> float:
    """The error of MF for so many epochs, not amplified."""
    mechanism = made("dense", rounds, rounds // epochs, epochs, "rms", None, True)
    return gaussian_noise(epsilon, delta) * _dense_loss(mechanism, rounds, epochs)


@functools.lru_cache(maxsize=64)
def _dense_loss(mechanism, rounds: int, epochs: int) -> float:  # type: ignore[no-untyped-def]
    from reticent.mechanisms import Participation

    return mechanism.rms_loss(Participation(rounds, rounds // epochs, epochs, exact=True))


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length())]
