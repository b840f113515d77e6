"""Reports of real run directories: what they state is what the accountant says, and nothing private is in them."""

import itertools
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from reticent.accounting.run import guarantee_of
from reticent.cli.main import main
from reticent.errors import Refused
from reticent.ledger import resume
from reticent.ledger.durable import Files
from reticent.ledger.secrets import Secrets, place_of_secrets
from reticent.ledger.verify import verify
from reticent.mechanisms import Participation
from reticent.report import Run, read_run, report
from reticent.report.curves import epsilon_curve
from reticent.report.figures import figures
from reticent.report.participations import histogram, what_happened
from tests.report.runs import POPULATION, ROUNDS, SEPARATION, evaluation, make_run, mechanism_of

VOID = {"meta", "img", "source", "br", "hr"}
PROBABILITY = 0.1


class Page(HTMLParser):
    """A page as a browser has it; tags that do not match are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def value(self, name: str) -> float:
        (found,) = [attributes for tag, attributes in self.tags if tag == "data" and attributes["class"] == name]
        return float(found["value"])


def reported(directory: Path) -> tuple[Run, Page, str]:
    """The run, its page and its Markdown, as they were written."""
    secrets = directory.parent / "secrets"
    run = read_run(directory, secrets=secrets)
    report(run, secrets).write()
    return run, Page((directory / "report.html").read_text()), (directory / "report.md").read_text()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is about words: plots are drawn elsewhere, and take a second each."""
    monkeypatch.setattr("reticent.report.page.png", lambda plot, theme=None: b"\x89PNG " + plot.says.encode())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run, Page, str]:
    """A finished run with all its plots."""
    directory = make_run(tmp_path_factory.mktemp("whole"))
    return (directory, *reported(directory))


def oracle(kind: str, rounds: int) -> float:
    """Epsilon by the textbook: the exact curve of one Gaussian of mu = sensitivity / sigma, inverted by bisection."""
    separation = min(SEPARATION, rounds)
    mu = mechanism_of(kind).sensitivity(Participation(rounds, separation)).value / 3.0

    def normal(value: float) -> float:
        return math.erfc(-value / math.sqrt(2)) / 2

    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        delta = normal(mu / 2 - middle / mu) - math.exp(middle) * normal(-mu / 2 - middle / mu)
        low, high = (middle, high) if delta > 1e-6 else (low, middle)
    return high


def test_every_number_is_the_accountants(whole: tuple) -> None:
    _, run, page, markdown = whole
    expected = oracle("blt-400", ROUNDS)
    assert page.value("epsilon") == pytest.approx(expected, rel=1e-6)
    assert page.value("rho") == run.guarantee.rho
    shown = float(re.search(r"epsilon (\S+) exactly|Privacy epsilon (\S+)", page.text).group(2))
    assert expected <= shown <= 1.001 * expected
    assert f"epsilon {shown:g}" in markdown
    assert f"epsilon = {shown:g}, delta = 1e-06" in page.text
    assert "for each user, under zero-out adjacency" in page.text
    assert "1.76 times the unigram baseline's 3.20%" in page.text
    best = evaluation(ROUNDS)
    assert f"{best['top1']:.2%}" in page.text
    assert f"{best['top1'] / best['unigram_top1']:.2f}" == "1.76"
    assert "ESTIMATE" not in page.text + markdown
    assert run.ledger.head in page.text
    facts = run.facts()
    assert facts["epsilon"] == page.value("epsilon")
    assert facts["verified"]
    json.dumps(facts, allow_nan=False)


@pytest.mark.parametrize("kind", ["blt-400", "tree", "banded", "independent"])
def test_epsilon_after_each_round(kind: str, tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path, kind=kind), secrets=tmp_path / "secrets")
    curve = epsilon_curve(run)
    assert list(curve) == list(range(1, ROUNDS + 1))
    values = list(curve.values())
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in itertools.pairwise(values))
    assert curve[ROUNDS] == run.epsilon()
    if kind != "banded":  # whose sensitivity under fewer rounds has a test of its own
        for rounds in (1, 5, 6, 7, 13, 24):
            assert curve[rounds] == pytest.approx(oracle(kind, rounds), rel=1e-6)
    if kind == "blt-400":
        assert curve[7] > 1.2 * curve[6]


def test_the_plots_show_what_the_ledger_and_the_metrics_say(whole: tuple) -> None:
    directory, run, page, markdown = whole
    curve = epsilon_curve(run)
    counted = histogram(run, directory.parent / "secrets")
    plots = {plot.name: plot.panels[0] for plot in figures(run, curve, counted)}
    assert dict(zip(plots["epsilon"].curves[0].x, plots["epsilon"].curves[0].y, strict=True)) == curve
    assert plots["accuracy"].curves[0].y == [evaluation(rounds)["top1"] for rounds in range(4, 25, 4)]
    assert plots["accuracy"].curves[1].y == [0.032, 0.032]
    assert plots["trade-off"].curves[0].x == [curve[rounds] for rounds in range(4, 25, 4)]
    assert plots["participations"].bars == {3: POPULATION}
    mechanism = mechanism_of("blt-400")
    assert list(plots["coefficients"].curves[0].y) == list(mechanism.coefficients(ROUNDS))
    for name in plots:
        assert (directory / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"](plots/{name}.png)" in markdown
    assert sum(tag == "img" for tag, _ in page.tags) == len(plots)
    assert all(attributes["alt"] for tag, attributes in page.tags if tag == "img")


def test_the_page_needs_nothing_beside_it(whole: tuple) -> None:
    directory, _, page, markdown = whole
    text = (directory / "report.html").read_text()
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r"base64,[A-Za-z0-9+/=]+", "", text))
    assert "://" not in markdown
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "a")
        for name in ("src", "srcset"):
            assert attributes.get(name, "data:image/png;base64,").startswith("data:image/png;base64,")
    assert "url(" not in text
    assert "@import" not in text
    assert any(attributes.get("name") == "viewport" for tag, attributes in page.tags if tag == "meta")
    assert "prefers-color-scheme: dark" in text


def test_nothing_secret_is_in_it(whole: tuple) -> None:
    directory, run, _, _ = whole
    run_id = run.ledger.first["run"]
    place = place_of_secrets(run_id, directory.parent / "secrets")
    intents = list(Secrets.open(place, run_id, Files()).intents())
    assert len(intents) == ROUNDS
    written = [path for path in directory.rglob("*") if path.name.startswith("report") or path.suffix == ".png"]
    assert len(written) == 2 + 6
    for path in written:
        content = path.read_bytes()
        assert str(directory.parent).encode() not in content
        for intent in intents:
            assert intent.row_key.hex().encode() not in content
            assert intent.row_key not in content
            assert intent.cohort not in content


@pytest.mark.parametrize(
    ("changes", "standing", "told"),
    [
        ({"simulated_row_seed": 3}, "simulated", "SIMULATED RUN"),
        ({"estimate": "4 clients stand for 40"}, "estimate", "4 clients stand for 40"),
        ({"noise_multiplier": 0.0}, "no privacy", "NO PRIVACY"),
    ],
)
def test_what_is_no_guarantee_is_not_called_one(
    changes: dict, standing: str, told: str, tmp_path: Path, undrawn: None
) -> None:
    directory = make_run(tmp_path, **changes)
    run, page, markdown = reported(directory)
    facts = run.facts()
    assert run.standing == facts["standing"] == standing
    assert facts["epsilon"] is None
    assert facts["rho"] is None
    assert not any(tag == "data" for tag, _ in page.tags)
    assert told in page.text
    assert told in markdown.replace("\\", "")
    assert any(attributes.get("role") == "alert" for _, attributes in page.tags)
    if standing == "no privacy":
        assert "epsilon is infinite" in page.text
        return
    for text in (page.text, markdown):
        assert "ESTIMATE" in text
        assert "ccuracy (estimate)" in text
        # Every epsilon that is written is called an estimate just before, or stands under that name.
        assert not re.search(r"privacy \| \*\*epsilon|Privacy epsilon", text)
    if standing == "simulated":
        assert facts["estimated_epsilon"] == pytest.approx(oracle("blt-400", ROUNDS), rel=1e-6)
        assert "protects nobody" in page.text
        assert "epsilon (estimate)" in page.text
    else:
        assert facts["estimated_epsilon"] is None
        assert not re.search(r"epsilon = \d|epsilon \d+\.\d", page.text + markdown)
    titles = [plot.panels[0].title for plot in figures(run, epsilon_curve(run), None)[:-2]]
    assert titles
    assert all("(estimate)" in title for title in titles)


def test_an_unfinished_run_says_so(tmp_path: Path, undrawn: None) -> None:
    run, page, markdown = reported(make_run(tmp_path, until=13))
    for text in (page.text, markdown):
        assert "NOT FINISHED" in text
        assert "13 of at most 24 rounds" in text
        assert "so far" in text
    assert page.value("epsilon") == pytest.approx(oracle("blt-400", 13), rel=1e-6)
    assert run.facts()["finished"] is False
    nothing, page, _ = reported(make_run(tmp_path / "second", until=0))
    assert nothing.standing == "nothing released"
    assert nothing.facts()["epsilon"] is None
    assert "nothing released yet" in page.text


def test_a_resumed_run_that_wrote_half_a_metric(tmp_path: Path) -> None:
    directory = make_run(tmp_path, until=13)
    with (directory / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "evalua')
    assert [one["rounds"] for one in read_run(directory).evaluations] == [4, 8, 12]
    with (directory / "metrics.jsonl").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(Refused, match=r"Line 17 of .*metrics\.jsonl is damaged"):
        read_run(directory)


def test_metrics_may_be_missing_or_odd(tmp_path: Path, undrawn: None) -> None:
    directory = make_run(tmp_path)
    kept = (directory / "metrics.jsonl").read_text()
    (directory / "metrics.jsonl").unlink()
    _, page, _ = reported(directory)
    assert "no evaluation was recorded" in page.text
    odd = [
        {"schema": 1, "rounds": 2},
        {"schema": 1, "rounds": 2, "kind": "evaluation", "top1": float("nan")},
        {"schema": 1, "rounds": 3, "kind": "evaluation", "top1": 0.25},
        {"schema": 1, "rounds": 3, "kind": "round", "clients_per_second": None},
        {"schema": 1, "rounds": 3, "kind": "end"},
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in odd))
    run, page, _ = reported(directory)
    assert run.facts()["best_top1"] == 0.25
    assert run.facts()["clients_per_second"] is None
    assert "25.00%" in page.text
    assert "baseline" not in page.text
    (directory / "metrics.jsonl").write_text(kept)
    assert read_run(directory).best["rounds"] == ROUNDS


def test_training_says_which_model_is_the_best(tmp_path: Path) -> None:
    directory = make_run(tmp_path)
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["kind"] == "end"
    lines[-1] = json.dumps({"schema": 1, "rounds": ROUNDS, "kind": "end", "best_round": 11})
    (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert read_run(directory).facts()["best_rounds"] == 12


HOSTILE = '<script>alert(1)</script> | **x** [y](http://evil.example) `z` $\\frac$ "q" & \u202e\x1b[31m'


def test_a_hostile_name_is_only_a_name(tmp_path: Path, undrawn: None) -> None:
    directory = make_run(tmp_path, name=HOSTILE)
    run, page, markdown = reported(directory)
    assert run.name == '<script>alert(1)</script> | **x** [y](http://evil.example) `z` $\\frac$ "q" & [31m'
    assert not any(tag == "script" for tag, _ in page.tags)
    assert "<script>alert(1)</script>" in page.text
    before_the_run_file = markdown.split("```")[0]
    assert "<script" not in re.sub(r"\\<", "", before_the_run_file)
    assert not re.search(r"(?<!\\)\]\(http", before_the_run_file)
    heading = before_the_run_file.splitlines()[0]
    assert heading.startswith(r"# \<script\>alert(1)\</script\> \| \*\*x\*\* \[y\](http")


def test_a_run_file_cannot_end_its_block(tmp_path: Path, undrawn: None) -> None:
    _, page, markdown = reported(make_run(tmp_path, name="```\n</pre><script>x</script>"))
    assert not any(tag == "script" for tag, _ in page.tags)
    assert "\n````toml\n" in markdown
    assert markdown.rstrip().splitlines()[-3] == "````"


def test_a_damaged_ledger_is_refused_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    directory = make_run(tmp_path)
    lines = (directory / "ledger.jsonl").read_bytes().split(b"\n")
    lines[6] = lines[6].replace(b"0.5", b"0.6")
    (directory / "ledger.jsonl").write_bytes(b"\n".join(lines))
    with pytest.raises(SystemExit) as end:
        main(["report", str(directory)])
    assert end.value.code == 2
    assert "Line 7 of" in capsys.readouterr().err
    assert not (directory / "report.html").exists()
    with pytest.raises(Refused, match="holds no run"):
        read_run(tmp_path / "nowhere")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture, undrawn: None) -> None:
    directory = make_run(tmp_path)
    main_of(["report", str(directory), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["epsilon"] == pytest.approx(oracle("blt-400", ROUNDS), rel=1e-6)
    assert all(Path(file).is_file() for file in told["files"])
    main_of(["report", str(directory)])
    assert f"epsilon {told['epsilon']:.3f}"[:-1] in capsys.readouterr().out
    (directory / "run.toml").write_text("")
    with pytest.raises(SystemExit) as end:
        main(["report", str(directory)])
    assert end.value.code == 1
    assert "DOES NOT VERIFY" in capsys.readouterr().out


def main_of(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0


def test_a_run_that_does_not_verify_gets_no_guarantee(tmp_path: Path, undrawn: None) -> None:
    directory = make_run(tmp_path)
    content = bytearray((directory / "releases" / "00000003.release").read_bytes())
    content[-1] ^= 1
    (directory / "releases" / "00000003.release").write_bytes(content)
    run, page, markdown = reported(directory)
    assert run.standing == "broken"
    assert run.facts()["epsilon"] is None
    for text in (page.text, markdown):
        assert "DOES NOT VERIFY" in text
        assert "BROKEN" in text
        assert not re.search(r"epsilon = \d|epsilon \d+\.\d", text)
    assert not (directory / "plots" / "participations.png").exists()


def test_what_broke_with_the_secrets_is_not_told(tmp_path: Path, undrawn: None) -> None:
    """`verify` tells its reader the norm of a sum, or a cohort's size; a report is for everybody."""
    directory = make_run(tmp_path)
    secrets = tmp_path / "secrets"

    def other_noise(description, rows, size):  # noise that the releases do not have
        for _ in rows:
            yield np.full(size, 10**6)

    verdict = verify(
        directory, lambda accounting, delta: guarantee_of(accounting).describe(delta), other_noise, secrets
    )
    (broken,) = [check for check in verdict.checks if check.holds is False]
    assert "norm" in broken.detail
    made = report(read_run(directory, verdict=verdict, secrets=secrets), secrets)
    assert b"a sum of norm" not in made.files["report.html"]
    assert b"found broken with the run's secrets" in made.files["report.md"]


def sampled(path: Path, **changes) -> Path:
    """Poisson sampling: under add-or-remove, who takes part is private."""
    participation = {"kind": "poisson", "population": 40, "probability": PROBABILITY}
    return make_run(path, kind="independent", participation=participation, **changes)


def test_participations_are_shown_under_zero_out_only(tmp_path: Path, undrawn: None) -> None:
    directory = make_run(tmp_path / "first", until=10)
    assert histogram(read_run(directory), tmp_path / "first" / "secrets") == {1: 24, 2: 8}
    _, page, _ = reported(directory)
    assert "is not shown" not in page.text
    assert "secrets were destroyed" in histogram(read_run(directory), tmp_path / "elsewhere")
    directory = sampled(tmp_path / "second")
    assert "is not shown" in histogram(read_run(directory), tmp_path / "second" / "secrets")
    _, page, _ = reported(directory)
    assert "is not shown" in page.text
    assert not (directory / "plots" / "participations.png").exists()


def test_no_secrets_after_the_end(tmp_path: Path, undrawn: None) -> None:
    directory = make_run(tmp_path)
    secrets = tmp_path / "secrets"
    run, _, _ = reported(directory)
    again, _ = resume(directory, secrets=secrets)
    with again:
        again.destroy_secrets(run.verdict)
    run, page, _ = reported(directory)
    assert run.standing == "private"
    assert "secrets were destroyed" in page.text
    assert "largest participation that occurred 3" in page.text


def test_the_worst_that_occurred_is_for_the_owner(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from reticent.cli.main import main

    directory = make_run(tmp_path / "first")
    secrets = tmp_path / "first" / "secrets"
    found = what_happened(read_run(directory), secrets)
    mechanism = mechanism_of("blt-400")
    assert (found.users, found.most_participations, found.smallest_separation) == (POPULATION, 3, 8)
    assert found.worst_pattern == (0, 8, 16)
    assert found.worst_sensitivity == pytest.approx(np.linalg.norm(mechanism.matrix(ROUNDS)[:, [0, 8, 16]].sum(1)))
    assert found.supported == mechanism.sensitivity(Participation(ROUNDS, SEPARATION))
    with pytest.raises(SystemExit):
        main(["verify", str(directory), "--secrets", str(secrets), "--occurred", "--json"])
    told = json.loads(capsys.readouterr().out)["occurred"]
    assert told["diagnostic"]["worst_pattern"] == [0, 8, 16]
    with pytest.raises(SystemExit):
        main(["verify", str(directory), "--secrets", str(secrets), "--occurred"])
    assert "in rounds 0, 8, 16: a diagnostic" in capsys.readouterr().out
    with pytest.raises(Refused, match="secrets were destroyed"):
        what_happened(read_run(directory), tmp_path / "elsewhere")
    with pytest.raises(Refused, match="sampling is random"):
        what_happened(read_run(sampled(tmp_path / "second")), tmp_path / "second" / "secrets")
