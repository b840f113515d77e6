"""Fine-Tuning Large Language Models with User-Level Differential Privacy: accountants, and noise at equal compute."""

import functools
import math

from reticent.accounting.amplified import els_guarantee, sampled_guarantee
from reticent.accounting.calibration import smallest_noise
from reticent.report.plots import Curve, Panel
from reticent.reproduce.printed import printed
from reticent.reproduce.result import Result, claim


def figure1(fast: bool) -> Result:
    """The user's epsilon under example-level sampling, tight and by the generic bound."""
    at = printed("uldp")["fig1"]
    noises, groups = at["noise"][1:3] if fast else at["noise"], at["groups"]
    panels, growth, generic_growth = [], 0.0, math.inf
    for noise in noises:
        tight, generic = [], []
        for group in groups:
            here = at["probability"], at["rounds"]
            tight.append(els_guarantee(*here, group, noise).epsilon(at["delta"]))
            one = sampled_guarantee(*here, noise, unit="example")
            generic.append(one.by_generic_bound(group).epsilon(at["delta"]))
        finite = [value for value in generic if math.isfinite(value)]
        # From 16 examples to 64: linear growth is 4-fold.
        growth, generic_growth = max(growth, tight[-1] / tight[-3]), min(generic_growth, generic[-1] / generic[-3])
        curves = (Curve("exact (Thm. 1)", groups, tight), Curve("generic bound", groups[: len(finite)], finite))
        panels.append(
            Panel(f"noise multiplier {noise:g}", "examples of a user", "epsilon", curves, log_x=True, log_y=True)
        )
    return Result(
        "User-level DP, Figure 1: epsilon by the examples of a user",
        "Example-level sampling, T = 2000, p = 0.01, delta = 1e-6. The generic bound ends where it diverges.",
        (
            claim("from 16 examples to 64 epsilon grows less than quadratically, 16-fold", growth < 16, growth),
            claim("the generic bound grows more than 16-fold, or diverges", not generic_growth <= 16, generic_growth),
        ),
        tuple(panels),
    )


@functools.lru_cache(maxsize=256)
def els_noise(probability: float, rounds: int, group: int, epsilon: float, delta: float) -> float:
    """The noise multiplier of example-level sampling, for the user (Thm. 1)."""
    return smallest_noise(lambda noise: els_guarantee(probability, rounds, group, noise), delta, epsilon=epsilon)


@functools.lru_cache(maxsize=256)
def uls_noise(probability: float, rounds: int, epsilon: float, delta: float) -> float:
    """The noise multiplier of user-level sampling (Thm. 2)."""
    return smallest_noise(lambda noise: sampled_guarantee(probability, rounds, noise), delta, epsilon=epsilon)


def figure2(fast: bool) -> Result:
    """Noise variance by compute, for a fixed cohort."""
    cohort = 64
    budgets = [cohort * 2**power for power in range(0, 6, 2 if fast else 1)]
    panels, ahead = [], []
    for epsilon in (1.0, 8.0):
        els = [_els_variance(budget, epsilon) for budget in budgets]
        same, diverse = zip(*(_uls_variances(budget, cohort, epsilon) for budget in budgets), strict=True)
        ahead.append(els[-1] <= same[-1])
        curves = (
            Curve("ELS", budgets, els),
            Curve("ULS, gradients alike", budgets, same),
            Curve("ULS, gradients diverse", budgets, diverse),
        )
        panels.append(Panel(f"epsilon {epsilon:g}", "gradients a step", "variance", curves, log_x=True, log_y=True))
    return Result(
        "User-level DP, Figure 2: noise variance at equal compute",
        f"{_SETTING} Cohorts of {cohort}; more compute is more examples of each.",
        (
            claim("ELS ahead at the largest compute when gradients are alike (Conjecture 1)", all(ahead), len(ahead)),
        ),
        tuple(panels),
    )  # fmt: skip


def figure6(fast: bool) -> Result:
    """Noise variance by cohort, compute and epsilon."""
    examples = printed("uldp")["fig6"]["examples"]
    epsilons, budgets = ((0.5, 8.0), (64, 1024)) if fast else ((0.5, 2.0, 8.0, 32.0), (64, 256, 1024, 4096))
    panels, alike, diverse_ahead = [], [], {}
    for epsilon in epsilons:
        for budget in budgets:
            cohorts = [2**power for power in range(11) if 1 <= budget / 2**power <= examples]
            els = _els_variance(budget, epsilon)
            same, diverse = zip(*(_uls_variances(budget, cohort, epsilon) for cohort in cohorts), strict=True)
            alike += [els <= 1.01 * one for one in same]
            diverse_ahead[epsilon, budget] = min(diverse) / els
            curves = (
                Curve("ELS", cohorts, [els] * len(cohorts), level=True),
                Curve("ULS, gradients alike", cohorts, same),
                Curve("ULS, gradients diverse", cohorts, diverse),
            )
            title = f"epsilon {epsilon:g}, {budget} gradients"
            panels.append(Panel(title, "users a step", "variance", curves, log_x=True, log_y=True))
    share = sum(alike) / len(alike)
    often = sum(ratio < 1 for ratio in diverse_ahead.values()) / len(diverse_ahead)
    small, large = diverse_ahead[epsilons[0], budgets[0]], diverse_ahead[epsilons[-1], budgets[0]]
    return Result(
        "User-level DP, Figure 6: noise variance by cohort, compute and epsilon",
        _SETTING,
        (
            claim("gradients alike: ELS lower, or within 1%, in nearly all settings (90%)", share >= 0.9, share),
            claim("gradients diverse: ULS often lower (half of the settings)", often >= 0.5, often),
            claim("and more so at a small epsilon", small <= large, small / large),
        ),
        tuple(panels),
    )


_SETTING = (
    "1,024 users with 32 examples each, T = 1000, delta = 1e-6, gradients of norm 10 at most; ELS samples examples, ULS "
    "users with as many examples as the compute leaves. Alike: a user's mean gradient is as long as one; diverse: shorter "
    "by the root of the examples."
)


def _els_variance(budget: int, epsilon: float) -> float:
    at = printed("uldp")["fig6"]
    probability = budget / (at["examples"] * at["users"])
    noise = els_noise(probability, at["rounds"], at["examples"], epsilon, at["delta"])
    return (noise * at["norm"] / budget) ** 2


def _uls_variances(budget: int, cohort: int, epsilon: float) -> tuple[float, float]:
    at = printed("uldp")["fig6"]
    noise = uls_noise(cohort / at["users"], at["rounds"], epsilon, at["delta"])
    alike = (noise * at["norm"] / cohort) ** 2
    return alike, alike * cohort / budget
