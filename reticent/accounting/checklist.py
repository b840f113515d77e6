"""Where a launch stands: the steps of Gboard, Sec. 2.5, with what to do next."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from reticent.accounting.launch import Plan

State = Literal["done", "now", "later", "open"]


@dataclass(frozen=True)
class Progress:
    """What has been done: a model pretrained on public text, a ratio of noise to report goal found in a simulation of
    one's own, a timer chosen, a clip norm and learning rates known."""

    pretrained: bool = False
    ratio_found: bool = False
    timer_chosen: bool = False
    clip_norm: float | None = None


@dataclass(frozen=True)
class Step:
    """One step; `open` is one that is worth taking whenever, and holds up nothing."""

    number: int
    what: str
    state: State
    advice: str

    def summary(self) -> dict[str, Any]:
        """As plain JSON."""
        return dict(vars(self))


def checklist(plan: Plan, progress: Progress) -> tuple[Step, ...]:
    """The seven steps; exactly one of them is `now`."""
    done = {
        2: progress.ratio_found,
        3: progress.ratio_found and plan.launch.has_target,
        4: progress.ratio_found and plan.launch.has_target and progress.timer_chosen,
        5: False,
    }
    now = next(number for number, is_done in done.items() if not is_done)
    if now == 5 and progress.clip_norm is not None:
        now = 6
    return tuple(_steps(plan, progress, now))


def _steps(plan: Plan, progress: Progress, now: int) -> Iterator[Step]:
    launch, best = plan.launch, plan.recommended

    def state(number: int) -> State:
        return "done" if number < now else "now" if number == now else "later"

    yield Step(
        1,
        "start from a model pretrained on public text",
        "done" if progress.pretrained else "open",
        'it saves about a thousand rounds, which is worth more than any mechanism: [run] algorithm = "pretrain", then '
        "[model] checkpoint; say --pretrained when you have one",
    )
    ratio = launch.ratios[0]
    yield Step(
        2,
        "find the most noise per report that your task tolerates",
        state(2),
        f"this plan takes {ratio.noise_multiplier:g} : {ratio.report_goal:g} with {ratio.mechanism}"
        + (
            ""
            if progress.ratio_found
            else ", which is Gboard's: simulate small cohorts on public text like yours, raise the noise until the accuracy "
            "suffers, and give what you found as --ratio"
        ),
    )
    if not launch.has_target:
        advice = "say what you want to be able to state: --epsilon or --rho"
    elif best.extra_noise > 1:
        advice = f"{launch.target} is out of reach at full utility: {best.why}; fewer rounds, or more devices, help"
    else:
        advice = f"{launch.target} is kept at a report goal of {best.row.report_goal:,} with {best.row.mechanism}"
    yield Step(3, "grow noise and report goal together until the guarantee is the one you want", state(3), advice)
    yield Step(
        4,
        "set the timer so that devices rest as long as the population allows",
        state(4),
        f"at most {launch.largest_separation(best.row.report_goal):,} rounds here; --simulate plays timers for you, and "
        "rounds per day from an earlier training tell more (--timer-hours with --rounds-per-day)",
    )
    yield Step(
        5,
        "train with adaptive clipping, if the learning rates are known",
        state(5) if now <= 5 else "open",
        "[clipping] quantile = 0.5 with [mechanism] restarts; both are in the guarantee. If it does well, you are done; "
        "otherwise say --clip-norm with what it settled at",
    )
    norm = "the clip norm" if progress.clip_norm is None else f"clip norm {progress.clip_norm:g}"
    yield Step(
        6,
        f"train with {norm} fixed, at the large report goal",
        state(6),
        "a few small cohorts with adaptive clipping tell clip norm and server learning rate; start that at "
        f"{best.learning_rate / (progress.clip_norm or 1.0):.3g}",
    )
    yield Step(
        7,
        "add secure aggregation, and state the guarantee from what occurred",
        "open",
        'secure_aggregation = "protocol" whenever the system bears it; after the run, reticent report computes from the '
        "ledger, whose participation may be better than the one planned for",
    )
