"""A run as people watch it: a bar on a terminal, plain lines elsewhere, all on standard error."""

import sys
import time
from typing import Any

import typer

from reticent.report.numbers import plain, upper
from reticent.training.events import Callback, Record

LINES = 20


class Watch(Callback):
    """Shows stages, then rounds with people per second, accuracy, epsilon so far and the time left."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.facts: Record = {}
        self.evaluation: Record = {}
        self.began = 0.0
        self._bar: Any = None
        self._task: Any = None
        self._stage = ""

    def stage(self, stage: str, done: float) -> None:
        """What is going on before the first round."""
        if self.quiet or stage == self._stage:
            return
        self._stage = stage
        typer.echo(f"{stage} ...", err=True)

    def on_start(self, facts: Record) -> None:
        self.facts, self.began = facts, time.monotonic()
        self._say(*before(facts))
        if self.quiet or not sys.stderr.isatty() or facts["done"] >= facts["rounds"]:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._bar.start()
        self._task = self._bar.add_task("", total=facts["rounds"], completed=facts["done"])

    def on_round(self, record: Record) -> None:
        told = self._told(record)
        if self._bar is not None:
            self._bar.update(self._task, completed=record["rounds"], description=told)
            return
        every = max(1, self.facts["rounds"] // LINES)
        if record["rounds"] % every == 0 or record["rounds"] == self.facts["rounds"]:
            made = record["rounds"] - self.facts["done"]
            left = (time.monotonic() - self.began) / made * (self.facts["rounds"] - record["rounds"])
            self._say(f"round {record['rounds']} of {self.facts['rounds']}  {told}  {left:.0f} s left")

    def on_evaluation(self, record: Record) -> None:
        self.evaluation = record

    def on_end(self, record: Record) -> None:
        self.close()
        best = record.get("best") or record.get("last")
        if best:
            times = best["top1"] / best["unigram_top1"] if best["unigram_top1"] else float("inf")
            self._say(
                f"Best top-1 accuracy on {best['users']:,} held-out users: {best['top1']:.2%}, after {best['rounds']} "
                f"rounds; {times:.2f} times that of always saying the commonest word."
                if "rounds" in best
                else f"Top-1 accuracy on {best['users']:,} held-out users: {best['top1']:.2%}."
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _told(self, record: Record) -> str:
        parts = []
        if "clients_per_second" in record:
            parts.append(f"{record['clients_per_second']:.0f} people/s")
        if "training_loss" in record:
            parts.append(f"loss {record['training_loss']:.3f}")
        if "clip_norm" in record:
            parts.append(f"clip norm {record['clip_norm']:.3g}")
        if self.evaluation:
            parts.append(f"top-1 {self.evaluation['top1']:.2%}")
        if record.get("epsilon") is not None:
            parts.append(f"epsilon so far {upper(record['epsilon'], 3)}")
        return "  ".join(parts)

    def _say(self, *lines: str) -> None:
        for line in lines if not self.quiet else ():
            typer.echo(line, err=True)


def before(facts: Record) -> list[str]:
    """What is told of a run before its first round: above all, the guarantee that it will give."""
    lines = [f"{facts['name']}: {facts['model']} of {facts['parameters']:,} parameters, {facts['rounds']:,} rounds"]
    if facts["algorithm"] == "pretrain":
        return [lines[0].replace("rounds", "steps") + " on public text, without privacy"]
    lines[0] += f" of {facts['report_goal']:,.0f} people, into {facts['directory']}"
    if facts["rounds"] < facts["planned_rounds"]:
        lines.append(f"The epsilon budget ends the run before its {facts['planned_rounds']:,} planned rounds.")
    stated = facts["guarantee"]
    if stated is None:
        return [*lines, "NO PRIVACY: no noise is added, the model may repeat what any one person wrote."]
    noise = (
        f"{facts['mechanism']} noise, multiplier {plain(facts['noise_multiplier'])}, clip norm {facts['clip_norm']:g}"
    )
    if facts["estimate"]:
        return [*lines, noise, "SIMULATED: an estimate of what a real run would give. It protects nobody."]
    promise = (
        f"This run will give epsilon {upper(stated['epsilon'])} at delta {upper(stated['delta'])} for each "
        f"{stated['unit']}, under {stated['adjacency']} adjacency."
    )
    more = [facts["warning"]] if facts.get("warning") else []
    return [*lines, noise, *more, promise, *(f"  assuming that {one}" for one in stated["assumptions"])]
