"""`audit`: every attack that a run allows, what each found, and what could not be tried; written as `audit.json`.

All that is written may be shown to anybody: it is made of releases, of the final model and of simulated users, who are
nobody. Of what is looked at with the run's secrets only the verdict is written.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reticent.accounting.gaussian import epsilon_of_gaussian
from reticent.audit.bounds import by_counting, from_scores, largest_auc
from reticent.audit.canaries import Scores, canary_scores
from reticent.audit.noise import OPEN, SECRET, stacked, whiteness
from reticent.audit.phrases import by_chance, exposures, user_inference
from reticent.errors import Refused
from reticent.files import write_atomically
from reticent.ledger.durable import Files
from reticent.ledger.releases import read_release, release_path, release_rounds
from reticent.ledger.secrets import Secrets, place_of_secrets
from reticent.ledger.verify import LAST_DIGITS, Row, Verdict
from reticent.report import Run, read_run
from reticent.report.audit import AUDIT_FILE, SCHEMA
from reticent.training.planted import RAW_NORM, Planted

Found = dict[str, Any]
HOLDS, BROKEN, UNTESTED, MEASURED = "holds", "BROKEN", "not tested", "measured"
SECRET_COLUMNS = 2**15


class Untested(Exception):
    """This attack cannot be tried here."""


@dataclasses.dataclass(frozen=True)
class Audit:
    """What an audit found: one finding for each attack, as it is written. `private` is for the run's owner only."""

    run: Run
    content: Found
    private: Found = dataclasses.field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether nothing was found that the run's claim does not allow."""
        return all(one["verdict"] != BROKEN for one in self.content["findings"])


def audit(
    directory: str | Path,
    *,
    secrets: str | Path | None = None,
    verdict: Verdict | None = None,
    confidence: float = 0.95,
    beside: str | Path | None = None,
    people: bool = False,
) -> Audit:
    """Audits the run in a directory and writes `audit.json` into it. `secrets` is the folder that its secrets directory is
    in, if that is still there; `beside` another audited run, whose exposures are set beside this one's; with `people` the
    people themselves are attacked too, which is told to the caller and not written. Refuses a directory without a run."""
    if not 0.5 < confidence < 1:
        raise Refused(f"The confidence is a probability between 0.5 and 1, got {confidence}.")
    run = read_run(directory, verdict=verdict, noise_of=_noise_of(Path(directory)), secrets=secrets)
    return _Auditor(run, secrets, confidence).content(beside, people)


def _noise_of(path: Path) -> Any:
    def noise(description: dict[str, Any], rows: Any, size: int) -> Any:
        from reticent.mechanisms.storage import load
        from reticent.privacy.again import noise_of

        arrays = load(path / "mechanism.npz").arrays() if (path / "mechanism.npz").is_file() else {}
        return noise_of(description, rows, size, arrays)

    return noise


class _Auditor:
    def __init__(self, run: Run, secrets: str | Path | None, confidence: float) -> None:
        self.run, self.confidence = run, confidence
        self.path, self.ledger = run.path, run.ledger
        self.description = run.description
        self.planted = Planted.of(self.description)
        place = place_of_secrets(self.ledger.first["run"], secrets)
        self.secrets = Secrets.open(place, self.ledger.first["run"], Files()) if place.is_dir() else None
        self.lines = {line["round"]: line for line in self.ledger.of_kind("release")}
        self.rounds = [one for one in release_rounds(self.path / "releases") if one in self.lines]
        self.figures: Found = {}

    @property
    def claimed(self) -> float:
        """The epsilon that the run claims, or, simulated, would claim; infinite where it claims none."""
        stated = self.run.epsilon() or self.run.estimated_epsilon()
        return math.inf if stated is None else stated

    def content(self, beside: str | Path | None, people: bool) -> Audit:
        began = time.perf_counter()
        attacks: list[tuple[str, Callable[[], tuple[str, str]]]] = [
            ("what was written", self._written),
            ("epsilon", self._epsilon),
            ("clipping", self._clipping),
            ("noise where nobody moves", self._open_noise),
            ("noise of all coordinates", self._secret_noise),
            ("row keys", self._keys),
            ("exposure", self._exposure),
            ("user inference", self._inference),
        ]
        earlier = self._earlier()
        findings = []
        for name, attack in attacks:
            try:
                mark, detail = attack()
            except Untested as reason:
                mark, detail = UNTESTED, str(reason)
                if name == "noise of all coordinates" and self.secrets is None and name in earlier:
                    mark, detail = earlier[name]["verdict"], earlier[name]["detail"]
            findings.append({"name": name, "verdict": mark, "detail": detail})
        if beside is not None:
            self.figures["beside"] = _exposures_of(Path(beside))
        claimed = self.claimed
        content = {
            "schema": SCHEMA,
            "ledger_head": self.ledger.head,
            "confidence": self.confidence,
            "delta": self.run.delta,
            "claimed_epsilon": claimed if math.isfinite(claimed) else None,
            "findings": findings,
            **self.figures,
            "seconds": time.perf_counter() - began,
        }
        private = self._people() if people else {}
        write_atomically(self.path / AUDIT_FILE, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
        return Audit(self.run, content, private)

    def _earlier(self) -> dict[str, Found]:
        """The findings of an earlier audit of this very ledger: what needed secrets that are now gone."""
        try:
            before = json.loads((self.path / AUDIT_FILE).read_bytes())
            return {one["name"]: one for one in before["findings"]} if before["ledger_head"] == self.ledger.head else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _written(self) -> tuple[str, str]:
        if self.run.verdict.holds:
            return HOLDS, "the run verifies"
        broken = [one.name for one in self.run.verdict.checks if one.holds is False]
        return BROKEN, f"the run does not verify ({', '.join(broken)}); `reticent verify` tells how"

    # What canaries tell.

    def _scores(self) -> Scores:
        if not hasattr(self, "_found"):
            self._found = canary_scores(self.path, self.ledger, self._entries())
        if isinstance(self._found, str):
            raise Untested(self._found)
        return self._found

    def _entries(self) -> np.ndarray:
        """The sizes of the entries of a canary's update after clipping, over the clip norm."""
        size = self.description["model"]["parameters"]
        if not self.planted.canaries or self.run.settings["clipping"].get("style", "flat") == "flat":
            return np.full(size, 1 / math.sqrt(size))
        import jax
        from jax.flatten_util import ravel_pytree

        from reticent.privacy.clipping import Clipping
        from reticent.privacy.grid import Grid

        shapes = jax.eval_shape(self._trained().model.init, jax.random.key(0))
        signs = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes)
        norm, grid = self.description["clip_norm"], Grid.of_step(self.description["grid"])
        clipped = Clipping(norm, grid, self.run.settings["clipping"]["style"])(signs).units
        return np.asarray(ravel_pytree(clipped)[0], np.float64) * (grid.step / norm)

    def _epsilon(self) -> tuple[str, str]:
        found = self._scores()
        there, delta = found.scores[found.present], self.run.delta
        lower = from_scores(there, delta, self.confidence)
        nearer = np.abs(found.moved - 0.5) / found.deviation**2
        guesses = math.ceil(len(nearer) / 4)
        surest = np.argsort(-nearer, kind="stable")[:guesses]
        correct = int(((found.moved > 0.5) == found.present)[surest].sum())
        counted = by_counting(len(nearer), guesses, correct, delta, self.confidence)
        typical = float(np.mean(1 / found.deviation**2)) / 2
        self.figures["epsilon"] = {
            "lower_bound": lower,
            "lower_bound_by_counting": counted,
            "estimate": min(epsilon_of_gaussian(max(typical, 1e-12), delta), 1e4),
            "canaries": len(there),
            "absent": int((~found.present).sum()),
            "guesses": guesses,
            "correct": correct,
        }
        claimed = "none" if math.isinf(self.claimed) else f"{self.claimed:.4g}"
        detail = (
            f"at least {lower:.3g} with {self.confidence:.0%} confidence, from the scores of {len(there)} canaries (by "
            f"counting {correct} of {guesses} right guesses alone: {counted:.3g}); claimed: {claimed}"
        )
        return (BROKEN if max(lower, counted) > self.claimed else HOLDS), detail

    def _clipping(self) -> tuple[str, str]:
        from scipy.stats import norm

        found = self._scores()
        expected = found.present.astype(float)
        most = float(norm.isf(OPEN / 3.2 / len(expected)))
        beyond = (found.moved - expected) / found.deviation
        worst = int(np.argmax(beyond))
        self.figures["clipping"] = {
            "mean_of_present": float(found.moved[found.present].mean()) if found.present.any() else None,
            "furthest": float(found.moved[worst]),
        }
        if beyond[worst] > most:
            told = "one clip norm" if found.present[worst] else "nothing"
            return BROKEN, (
                f"a canary moved the releases by {found.moved[worst]:.2f} clip norms (give or take "
                f"{found.deviation[worst]:.2f}), where it should have moved them by at most {told}"
            )
        if not found.present.any():
            return HOLDS, "no canary that was drawn sent anything, and none moved the releases"
        return HOLDS, (
            f"no canary moved the releases by more than its clip norm; on average those that sent {RAW_NORM:.0f} of them "
            f"moved them by {self.figures['clipping']['mean_of_present']:.2f}"
        )

    # What noise tells.

    def _mechanism(self) -> Any:
        from reticent.accounting.run import mechanism_of

        return mechanism_of(self.run.accounting, self.run.arrays)

    def _released(self, columns: int) -> np.ndarray:
        def rows() -> Iterator[np.ndarray]:
            for round in self.rounds:
                yield np.frombuffer(read_release(release_path(self.path / "releases", round))[1], "<i4")

        return stacked(rows(), columns)

    def _deviations(self, rounds: list[int]) -> np.ndarray:
        noise = self.run.accounting["noise_multiplier"]
        terms = [self.lines.get(round, self.description) for round in rounds]
        return np.array([noise * line["clip_norm"] / line["grid"] for line in terms])

    def _open_noise(self) -> tuple[str, str]:
        count = self.planted.zero_coordinates
        if not count:
            raise Untested("no zero coordinates were planted")
        if not self.rounds:
            raise Untested("no releases are kept")
        values = self._released(count)
        if not self.run.accounting["noise_multiplier"]:
            return (BROKEN if values.any() else HOLDS), "no noise is claimed, and none was there"
        found = whiteness(
            values, self.rounds, self._mechanism(), self.run.planned_rounds, self._deviations(self.rounds)
        )
        self.figures["noise"] = {
            "scale": found.scale,
            "interval": list(found.interval),
            "p_whole": found.whole,
            "p_oddest_round": found.oddest_round[0],
            "p_most_alike": found.most_alike[0],
            "values": int(values.size),
        }
        detail = (
            f"{found.scale:.4f} times the claimed standard deviation (95% interval {found.interval[0]:.4f} to "
            f"{found.interval[1]:.4f}) in {values.size:,} values, once whitened"
        )
        if found.holds(OPEN):
            return HOLDS, detail
        if found.most_alike[0] <= OPEN / 3:
            detail += f"; the rows of rounds {found.most_alike[1]} and {found.most_alike[2]} are alike"
        elif found.whole > OPEN / 3:
            detail += f"; that of round {found.oddest_round[1]} is not as claimed"
        return BROKEN, detail

    def _secret_noise(self) -> tuple[str, str]:
        if self.secrets is None:
            raise Untested("the run's secrets were destroyed, or are elsewhere: the noise cannot be made again")
        if not self.run.accounting["noise_multiplier"] or not self.ledger.rounds:
            raise Untested("there is no noise")
        spent = {line["round"]: line["attempt"] for line in self.ledger.lines if line["kind"] in ("release", "burnt")}
        rows, terms = [], self.description
        for intent in self.secrets.intents():
            if spent.get(intent.round) == intent.attempt:
                terms = self.lines.get(intent.round, terms)
                rows.append(Row(intent.round, intent.row_key, terms["clip_norm"], terms["grid"]))
        size = next(iter(self.lines.values()))["values"] if self.lines else SECRET_COLUMNS
        noise = stacked(_noise_of(self.path)(self.description, rows, size), SECRET_COLUMNS)
        rounds = [row.round for row in rows]
        deviations = np.array(
            [self.run.accounting["noise_multiplier"] * row.clip_norm / row.grid for row in rows], np.float64
        )
        found = whiteness(noise, rounds, self._mechanism(), self.run.planned_rounds, deviations)
        # Nothing else of it may be told (`reticent.audit.noise`).
        if found.holds(SECRET):
            return HOLDS, "made again from the row keys and whitened, it is as claimed"
        return BROKEN, "made again from the row keys and whitened, it is not as claimed"

    def _keys(self) -> tuple[str, str]:
        from reticent.audit import keys

        if self.ledger.first["row_keys"] == "simulated":
            raise Untested("the row keys of a simulated run come from its seed, and protect nobody")
        among = f"{len(keys.WAYS) * keys.SEEDS:,} keys of 16 bits"
        if self.secrets is not None:
            # That the noise is of these keys is what `verify` looks at.
            ways = {keys.way_of(intent.row_key) for intent in self.secrets.intents()} - {None}
            if ways:
                return BROKEN, f"a row key is one of {among}: {ways.pop()}"
            return HOLDS, f"no row key is one of {among}"
        count = self.planted.zero_coordinates
        if count < 2 or self.rounds[:1] != [0] or not self.run.accounting["noise_multiplier"]:
            raise Untested("without zero coordinates, or the secrets, there is nothing to hold a key against")
        line = self.lines[0]
        found = keys.search(
            self._released(min(count, keys.ENTRIES))[0],
            self.description,
            self.run.arrays,
            line["clip_norm"],
            line["grid"],
            LAST_DIGITS,
        )
        if found:
            return BROKEN, f"the noise of round 0 is that of one of {among}: {found}"
        return HOLDS, f"the noise of round 0 is that of none of {among}"

    # What the model tells.

    def _trained(self) -> Any:
        if not hasattr(self, "_model"):
            from reticent.training.finished import load_trained

            try:
                self._model = load_trained(self.path, last=True)
            except Refused as error:
                raise Untested(f"the model cannot be read ({error})") from None
        return self._model

    def _came(self) -> list[list[int]]:
        if not self.planted.phrases:
            raise Untested("no phrases were planted")
        stated = (self.ledger.finished or {}).get("simulated_users")
        if stated is None:
            raise Untested("the run is not finished: its last line tells which writers took part")
        return stated[: self.planted.writers]

    def _exposure(self) -> tuple[str, str]:
        came, trained = self._came(), self._trained()
        length = trained.run_file.data.sequence_length
        found = exposures(trained.model, trained.params, trained.tokenizer, self.planted, came, length)
        self.figures["exposure"] = {
            "bits": found.bits,
            "largest": found.largest,
            "chance": 1 / math.log(2),
            "never_drawn": found.never_drawn,
            "p_by_chance": {kind: by_chance(bits) for kind, bits in found.bits.items()},
        }
        told = [
            f"{kind} {np.mean(bits):.2f} bits (by chance with probability {by_chance(bits):.2g})"
            for kind, bits in found.bits.items()
            if bits
        ]
        return (
            MEASURED,
            f"{', '.join(told) or 'no phrase was ever drawn'}; 1.44 is chance, {found.largest:.2f} the most",
        )

    def _inference(self) -> tuple[str, str]:
        came, trained = self._came(), self._trained()
        length = trained.run_file.data.sequence_length
        first = self._first(trained)
        found = user_inference(trained.model, trained.params, first, trained.tokenizer, self.planted, came, length)
        if found is None:
            raise Untested("no writer was ever drawn")
        allowed = 1.0 if math.isinf(self.claimed) else largest_auc(self.claimed, self.run.delta)
        self.figures["user_inference"] = {"auc": found.auc, "interval": list(found.interval), "members": found.members}
        detail = (
            f"area under the curve {found.auc:.3f} (95% interval {found.interval[0]:.3f} to {found.interval[1]:.3f}; 0.5 is "
            f"chance, {allowed:.4g} the most that the claim allows), from {found.members} simulated users"
        )
        return (BROKEN if found.interval[0] > allowed else HOLDS), detail

    def _first(self, trained: Any) -> Any:
        """The parameters before round 0, which are public."""
        import jax

        if trained.run_file.model.checkpoint is None:
            return trained.model.init(jax.random.key(trained.run_file.run.seed))
        from reticent.training.finished import params_to_start_from

        try:
            return params_to_start_from(Path(trained.run_file.model.checkpoint), trained.model, trained.tokenizer)
        except Refused as error:
            raise Untested(f"the checkpoint that training began with cannot be read ({error})") from None

    def _people(self) -> Found:
        from reticent.audit.people import people_inference

        trained = self._trained()
        found = people_inference(trained.run_file, trained.model, trained.params, self._first(trained))
        return {"user_inference_on_people": dataclasses.asdict(found)}


def _exposures_of(path: Path) -> Found:
    """The exposures of another run, as its audit found them."""
    from reticent.report.audit import read_audit

    other = read_run(path)
    found = read_audit(other)
    if found is None or "exposure" not in found:
        raise Refused(f"{path} has no audit with exposures; run `reticent audit {path}` first.")
    return {"name": other.name, "standing": other.standing, "bits": found["exposure"]["bits"]}


def at_the_end(path: Path, verdict: Verdict, secrets: str | Path | None) -> bool:
    """For `reticent.training.train`: audits a run that has just been verified, while its secrets are there."""
    return audit(path, secrets=secrets, verdict=verdict).holds
