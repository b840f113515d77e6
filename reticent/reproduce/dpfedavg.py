"""Learning Differentially Private Recurrent Language Models: what the moments accountant said, and what is true."""

from reticent.accounting.amplified import sampled_guarantee
from reticent.accounting.renyi import Moments
from reticent.accounting.sampled import Poisson
from reticent.reproduce.printed import printed
from reticent.reproduce.result import Line, Result

SETTING = "Poisson-sampled Gaussian, by moments 1 to 32 as published; beside it what the loss distribution says."


def table1(fast: bool) -> Result:
    """Epsilon after 1 to a million rounds."""
    lines = [
        _line(
            f"K {row['users']:g}, sample {row['sample']:g}, z {row['noise']:g}, 10^{power} rounds",
            row,
            10**power,
            paper,
        )
        for row in printed("dpfedavg")["tab1"]["rows"]
        for power, paper in enumerate(row["epsilon"])
    ]
    return Result("DP-FedAvg, Table 1: epsilon by rounds", f"{SETTING} Delta is K^-1.1.", tuple(lines))


def table2(fast: bool) -> Result:
    """Epsilon of the trained models."""
    lines = [
        _line(
            f"sigma {row['sigma']:g}, S {row['clip']}, K {row['users']:g}",
            row | {"noise": 1.0},
            5000,
            row["epsilon"],
            1e-9,
        )
        for row in printed("dpfedavg")["tab2"]["rows"]
    ]
    return Result("DP-FedAvg, Table 2: epsilon after 5,000 rounds", f"{SETTING} Delta is 1e-9.", tuple(lines))


def _line(what: str, row: dict, rounds: int, paper: str, delta: float | None = None) -> Line:
    probability, noise = row["sample"] / row["users"], row["noise"]
    delta = row["users"] ** -1.1 if delta is None else delta
    moments = Moments(Poisson(noise, probability, rounds)).epsilon(delta)
    exact = sampled_guarantee(probability, rounds, noise).epsilon(delta)
    return Line(what, paper, moments, beside={"loss distribution": exact})
