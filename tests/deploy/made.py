"""Small terms and device directories, without JAX: three or more devices that add up random integers."""

from pathlib import Path

import numpy as np

from reticent.config import parse, resolved
from reticent.data.store import StoreWriter
from reticent.data.tokenizers import WordTokenizer
from reticent.deploy.budget import Budget
from reticent.deploy.settings import DeviceSettings
from reticent.deploy.terms import Terms
from reticent.secagg import Member

SIZE = 40
GRID = 2.0**-20


def terms_of(
    *,
    goal: int = 3,
    over_selection: float = 1.3,
    rounds: int = 6,
    separation: int = 2,
    most: int | None = None,
    noise: float = 2.0,
    rest_hours: float = 0.0,
    size: int = SIZE,
    name: str = "toy",
    scale: float | None = None,
) -> Terms:
    """Terms of a run whose mechanism is independent noise."""
    run_file = parse(
        {
            "run": {"name": name, "rounds": rounds, "secure_aggregation": "protocol"},
            "data": {"store": "nowhere"},
            "population": {"size": 1000, "report_goal": goal, "min_separation": separation},
            "mechanism": {"kind": "independent"},
            "clipping": {"norm": 1.0},
            "privacy": {"noise_multiplier": noise, "delta": 1e-6},
            "deploy": {"over_selection": over_selection, "rest_hours": rest_hours, "deadline": 60.0},
        }
    )
    participation = {"kind": "deterministic", "min_separation": separation, "exact": False}
    participation["max_participations"] = most or -(-rounds // separation)
    description = {
        "delta": 1e-6,
        "mechanism_digest": "0" * 64,
        "clip_norm": 1.0,
        "grid": GRID,
        "accounting": {
            "rounds": rounds,
            "mechanism": "independent",
            "participation": participation,
            "unit": "device",
            "noise_multiplier": noise,
        },
        "model": {"kind": "toy", "parameters": size, "vocabulary": 40},
        "report_goal": float(goal),
        "tokenizer": "toy",
        "secure_aggregation": {"setting": "protocol"} | ({} if scale is None else {"scale": scale}),
    }
    return Terms(resolved(run_file), description, {})


def enrolled(folder: Path, names: list[str], terms: Terms, budget: Budget | None = None) -> dict[str, Path]:
    """Device directories by name, each with a text of its own, that know each other and these terms."""
    tokenizer = WordTokenizer([f"word{number}" for number in range(36)], origin={"source": "given"})
    members = Member.enrol(names)
    made = {}
    for name, member in members.items():
        directory = folder / name
        (directory / "terms").mkdir(parents=True)
        with StoreWriter(directory / "text", tokenizer) as writer:
            writer.add_user(name, [np.array([1, 5, 6, 7, 2], np.int32)])
        write_keys(directory, member)
        terms.save(directory / "terms" / f"{terms.digest}.json")
        DeviceSettings(
            directory, name, directory / "text", 1, budget or Budget(100.0, 1e-6), directory / "compiled"
        ).save()
        made[name] = directory
    return made


def write_keys(directory: Path, member: Member) -> None:
    import json

    (directory / "signing.key").touch(0o600)
    (directory / "signing.key").write_text(member.signing_key.hex())
    devices = {name: key.hex() for name, key in member.registry.items()}
    (directory / "registry.json").write_text(json.dumps({"devices": devices}))


def random_update(seed: int = 0):
    """A learner that gives every device and round integers of its own, within the clip norm."""

    def learner(settings, terms, model, round):
        generator = np.random.default_rng([seed, round, *settings.name.encode()])
        return generator.integers(-1000, 1001, terms.size, dtype=np.int32)

    return learner
