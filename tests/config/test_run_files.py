"""Run files: what is refused, with which sentence, and what is read back."""

import copy
import tomllib
from pathlib import Path

import pytest

from reticent.config import differences, load, parse, resolved
from reticent.config.fields import describe
from reticent.config.schema import TABLES
from reticent.config.toml import to_toml
from reticent.errors import Refused

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))
QUICKSTART = next(path for path in EXAMPLES if path.name == "quickstart.toml")


@pytest.fixture
def content() -> dict:
    return copy.deepcopy(tomllib.loads(QUICKSTART.read_text()))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_valid_and_read_back_the_same(path: Path) -> None:
    run_file = load(path)
    assert parse(tomllib.loads(resolved(run_file))) == run_file


def test_the_quickstart_is_what_the_demo_promises() -> None:
    run_file = load(QUICKSTART)
    assert (run_file.run.rounds, run_file.data.people, run_file.data.store) == (100, 20_000, "crowd")
    assert run_file.population.report_goal == 400
    assert run_file.population.min_separation == 50
    assert (run_file.mechanism.kind, run_file.mechanism.buffers) == ("blt", 3)
    assert run_file.privacy.epsilon == 8
    assert run_file.delta == pytest.approx(20_000**-1.1)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("population.reportgoal=3", "key population.reportgoal in a run file; the nearest is population.report_goal."),
        ("privacy.norm=3", "There is no key privacy.norm in a run file; the nearest is clipping.norm."),
        ("privcy.epsilon=3", "There is no table [privcy] in a run file; the nearest is [privacy]."),
        ("rounds=3", "written table.key=value"),
        ("run.rounds=0", "run.rounds: input should be greater than or equal to 1, got 0"),
        ("run.rounds=many", "run.rounds: input should be a valid integer, got 'many'"),
        ("run.rounds=2.5", "run.rounds: input should be a valid integer"),
        ("run.rounds=true", "run.rounds: input should be a valid integer"),
        ("run.algorithm=fedprox", "run.algorithm: input should be 'fedavg', 'fedsgd'"),
        ("model.kind=gru", "There is no model.kind 'gru'; there are lstm"),
        ("clipping.norm=inf", "clipping.norm: input should be a finite number"),
        ("clipping.norm=nan", "clipping.norm: input should be"),
        ("clipping.norm=-1", "clipping.norm: input should be greater than 0"),
        ("population.min_separation=51", "the largest population.min_separation they can give is 50"),
        ("population.min_separation=101", "min_separation 101 is larger than the 100 rounds"),
        ("population.report_goal=20001", "above the population of 20000"),
        ("population.probability=0.1", "does not use population.probability"),
        ("population.sampler=poisson", "needs population.probability"),
        ("population.simulated_cohort=400", "smaller than the report goal"),
        ("mechanism.bands=4", "kind 'blt' takes no mechanism.bands"),
        ("mechanism.buffers=101", "more than the 100 rounds"),
        ("mechanism.restarts=[10, 100]", "stay below 100 rounds"),
        ("mechanism.restarts=[20, 10]", "must rise"),
        ("clipping.quantile=0.5", "give mechanism.restarts"),
        ("clipping.quantile=1.0", "clipping.quantile: input should be less than 1"),
        ("clipping.quantile_noise=20", "of no use without clipping.quantile"),
        ("clipping.estimator=clipped", "proven for the sampler 'poisson' only"),
        ("clipping.min_weight=0.5", "belongs to the estimator 'clipped'"),
        ("server.warm_up=1.0", "server.warm_up: input should be less than 1"),
        ("privacy.noise_multiplier=1.0", "exactly one of epsilon"),
        ("privacy.epsilon_budget=1.0", "goes with privacy.noise_multiplier"),
        ("privacy.delta=1.0", "privacy.delta: input should be less than 1"),
        ("privacy.random_bits=threefry", "is for simulation"),
        ("run.algorithm=pretrain", "without privacy; leave the table [population] out"),
        ("run.algorithm=els", "needs data.max_examples_per_user"),
        ("data.store=plays", "data.people is for the generated store"),
        ("run.schema_version=2", "run.schema_version: input should be 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_key(override: str, sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        load(QUICKSTART, [override])
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["server.warm_up=0.6", "server.cool_down=0.6"], "together are more than all rounds"),
        (["run.algorithm=dpsgd", "run.secure_aggregation=protocol"], "Secure aggregation sums the updates of devices"),
        (["run.encoding_inflation=0.02"], "of no use with secure_aggregation 'off'"),
        (["run.secure_aggregation=encoding", "run.tolerated_dropout=0.1"], "of no use without secure_aggregation"),
        (["run.secure_aggregation=encoding", "run.encoding_inflation=0.2"], "less than or equal to 0.1"),
        (["run.secure_aggregation=protocol", "clipping.quantile=0.5"], "does not sum"),
        (["clipping.quantile=0.5", "mechanism.restarts=[9]", "clipping.style=per-layer"], "use style 'flat'"),
        (["mechanism.file=blt.json"], "A mechanism from a file takes no mechanism.buffers"),
    ],
)
def test_keys_that_do_not_go_together(overrides: list[str], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        load(QUICKSTART, overrides)


def test_secure_aggregation_needs_sums_of_known_size_over_a_constant(content: dict) -> None:
    size = content["population"]["size"]
    content["population"] = {"sampler": "poisson", "probability": 0.01, "size": size}
    content["mechanism"] = {"kind": "independent"}
    with pytest.raises(Refused, match="cohorts of a known size"):
        parse(content, ["run.secure_aggregation=protocol"])
    content["clipping"] |= {"estimator": "clipped", "min_weight": 0.5}
    with pytest.raises(Refused, match="use 'fixed' with secure aggregation"):
        parse(content, ["run.secure_aggregation=encoding"])


def test_missing_tables_and_keys_are_named(content: dict) -> None:
    del content["privacy"]
    with pytest.raises(Refused, match=r"no table \[privacy\], which algorithm 'fedavg' needs"):
        parse(content)
    del content["run"]["rounds"], content["data"]
    with pytest.raises(Refused, match=r"run\.rounds is missing; The run file has no table \[data\]"):
        parse(content)


def test_exactly_one_of_target_and_noise(content: dict) -> None:
    del content["privacy"]["epsilon"]
    with pytest.raises(Refused, match="exactly one"):
        parse(content)
    assert parse(content, ["privacy.noise_multiplier=0"]).privacy.noise_multiplier == 0


def test_without_size_delta_must_be_given(content: dict) -> None:
    del content["population"]["size"]
    with pytest.raises(Refused, match=r"give privacy\.delta or population\.size"):
        parse(content)
    assert parse(content, ["privacy.delta=1e-6"]).delta == 1e-6


def test_overrides_are_toml_values_or_bare_words() -> None:
    run_file = load(
        QUICKSTART, ["run.rounds=60", "run.name=two words", 'model.kind="cifg"', "mechanism.restarts=[9, 20]"]
    )
    assert (run_file.run.rounds, run_file.run.name, run_file.model.kind) == (60, "two words", "cifg")
    assert run_file.mechanism.restarts == (9, 20)
    assert parse(tomllib.loads(resolved(run_file))) == run_file


def test_differences_name_the_keys() -> None:
    assert differences(load(QUICKSTART), load(QUICKSTART, ["run.rounds=60"])) == ["run.rounds: 100, now 60"]
    assert differences(load(QUICKSTART), load(QUICKSTART)) == []


def test_files_that_are_not_run_files(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="There is no run file"):
        load(tmp_path / "absent.toml")
    for bad in (b"[run\n", b"\xff\xfe"):
        (tmp_path / "bad.toml").write_bytes(bad)
        with pytest.raises(Refused, match="is not TOML"):
            load(tmp_path / "bad.toml")


def test_every_key_is_described() -> None:
    described = describe()
    assert list(described) == list(TABLES)
    for table, keys in described.items():
        for key, field in keys.items():
            assert (field["description"] or "").endswith("."), f"{table}.{key}"
    with pytest.raises(Refused, match=r"nearest is \[privacy\]"):
        describe("privcy")


def test_toml_keeps_every_value() -> None:
    tables = {
        "a b": {"text": 'quotes " and \\ and \n and \x7f and \x00 and ü', "list": [1, 2.5, True, "x"], "empty": []},
        "n": {"small": 1e-300, "large": 1e22, "whole": 10**15, "no": False, "infinite": float("inf")},
    }
    assert tomllib.loads(to_toml(tables)) == tables
    assert to_toml({"a": {"gone": None}}) == "[a]\n"
    with pytest.raises(TypeError):
        to_toml({"a": {"b": object()}})
