"""The secrets directory of a run: row keys, who took part when, and the secret half of checkpoints.

Never show, copy into the run directory, or log anything of it. From a row key the noise of a release can be made again,
and without its noise a release is the plain sum of what people wrote.
"""

import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reticent.errors import Refused
from reticent.ledger.durable import Files
from reticent.ledger.lines import canonical, digest, sealed, unsealed

PLACE_VARIABLE = "RETICENT_SECRETS"
ROW_KEY_BYTES = 32


@dataclass(frozen=True)
class Intent:
    """What is durable before a round begins: its row key and its cohort.

    `exposed`: members' updates may leave the process before the release does (real devices); if not, an attempt that
    released nothing counts as nobody's participation. `integers`: the cohort is user numbers. `contributions`: the
    largest number of clipped vectors in the sum. `previous`: the hash of the last ledger line at the time.
    """

    round: int
    attempt: int
    row_key: bytes = field(repr=False)
    cohort: bytes = field(repr=False)
    integers: bool = field(repr=False)
    contributions: int = field(repr=False)
    exposed: bool
    previous: str = field(repr=False)

    @property
    def members(self) -> array:
        """The cohort's users as integers; refuses a cohort that was given as bytes of another kind."""
        if not self.integers:
            raise Refused(f"The cohort of round {self.round} is not a list of user numbers.")
        members = array("q", self.cohort)
        if sys.byteorder == "big":
            members.byteswap()
        return members


def cohort_bytes(cohort: Sequence[int] | bytes) -> bytes:
    """A cohort as it is stored: user numbers as little-endian 64-bit integers, or bytes as they are."""
    if isinstance(cohort, bytes):
        return cohort
    members = array("q", cohort)
    if sys.byteorder == "big":
        members.byteswap()
    return members.tobytes()


def fresh_row_key() -> bytes:
    """256 bits from the operating system."""
    return os.urandom(ROW_KEY_BYTES)


def simulated_row_key(seed: int, round: int) -> bytes:
    """A row key anybody can compute: the same for every attempt, so that a killed simulation ends where an undisturbed
    one does. It protects nobody."""
    return bytes.fromhex(digest(f"reticent simulated row key, seed {seed}, round {round}".encode()))


def place_of_secrets(run_id: str, place: str | Path | None = None) -> Path:
    """Where the secrets of a run are: `place`/run id; the place is the option, $RETICENT_SECRETS, or the user's state
    folder."""
    chosen = place or os.environ.get(PLACE_VARIABLE)
    if chosen is None:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        chosen = Path(state) / "reticent"
    return Path(chosen).expanduser().absolute() / run_id


class Secrets:
    """The secrets directory, mode 0700. Its files: `run.json`, `intents/`, `checkpoints/`."""

    def __init__(self, directory: Path, files: Files) -> None:
        self.directory = directory
        self.files = files
        self.intent_directory = directory / "intents"
        self.checkpoint_directory = directory / "checkpoints"
        self.unfinished = directory / ".unfinished"

    @classmethod
    def create(cls, directory: Path, run_id: str, simulated_row_seed: int | None, files: Files) -> "Secrets":
        """Makes the directory of a new run."""
        secrets = cls(directory, files)
        missing = [folder for folder in (directory, *directory.parents) if not folder.is_dir()]
        inner = (secrets.intent_directory, secrets.checkpoint_directory, secrets.unfinished)
        for folder in (*reversed(missing), *inner):
            files.make_directory(folder, 0o700)
        body = sealed({"kind": "secrets", "run": run_id, "simulated_row_seed": simulated_row_seed})
        files.write_file(directory / "run.json", canonical(body) + b"\n", by_way_of=secrets.unfinished, mode=0o600)
        return secrets

    @classmethod
    def open(cls, directory: Path, run_id: str, files: Files) -> "Secrets":
        """Opens the directory of a run; refuses one that is not there, not this run's, or open to others."""
        if not directory.is_dir():
            raise Refused(
                f"The secrets of this run are not at {directory}; say where they are with --secrets or "
                f"${PLACE_VARIABLE}: without its row keys a run cannot go on."
            )
        status = directory.stat()
        if status.st_mode & 0o077 or status.st_uid != os.geteuid():
            raise Refused(f"Others can read the secrets in {directory}; make it yours alone: chmod 700 {directory}.")
        secrets = cls(directory, files)
        if secrets.header()["run"] != run_id:
            raise Refused(f"{directory} holds the secrets of another run; say where this run's are with --secrets.")
        return secrets

    def header(self) -> dict:
        return _read(self.directory / "run.json")

    def row_key(self, round: int) -> bytes:
        """A fresh row key, or the simulated one."""
        seed = self.header()["simulated_row_seed"]
        return fresh_row_key() if seed is None else simulated_row_key(seed, round)

    def write_intent(self, intent: Intent) -> None:
        header = sealed(
            {
                "kind": "intent",
                "round": intent.round,
                "attempt": intent.attempt,
                "row_key": intent.row_key.hex(),
                "contributions": intent.contributions,
                "integers": intent.integers,
                "exposed": intent.exposed,
                "previous": intent.previous,
                "cohort": digest(intent.cohort),
            }
        )
        path = self.intent_directory / f"{intent.round:08d}-{intent.attempt:04d}"
        self.files.write_file(path, canonical(header), b"\n", intent.cohort, by_way_of=self.unfinished, mode=0o600)

    def intents(self, first_round: int = 0) -> Iterator[Intent]:
        """All intents from a round on, by round and attempt; a damaged one is refused by name."""
        for path in sorted(self.intent_directory.iterdir()):
            if int(path.name.split("-")[0]) >= first_round:
                yield _read_intent(path)

    def destroy(self) -> None:
        """Deletes the directory with all that is in it. It leaves its place first: a crash cannot leave a part there."""
        self.files.rename(self.directory, condemned(self.directory))
        self.files.sync_directory(self.directory.parent)
        finish_destroying(self.directory, self.files)


def condemned(directory: Path) -> Path:
    """Where a secrets directory is while it is being deleted."""
    return directory.with_name(f"{directory.name}.condemned")


def finish_destroying(directory: Path, files: Files) -> None:
    """Deletes what `destroy` has begun to delete, if it was interrupted; does no harm where it was not."""
    rest = condemned(directory)
    # Row keys first: without them the rest tells who took part, but no sum.
    for folder in (rest / "intents", rest):
        if folder.is_dir():
            files.empty_directory(folder)
    if rest.is_dir():
        files.rmdir(rest)
        files.sync_directory(rest.parent)


def _read(path: Path) -> dict:
    try:
        return unsealed(path.read_bytes().rstrip(b"\n"))
    except (ValueError, FileNotFoundError) as error:
        raise Refused(f"{path} is damaged ({error}); restore the secrets from a copy.") from None


def _read_intent(path: Path) -> Intent:
    content, _, cohort = path.read_bytes().partition(b"\n")
    try:
        header = unsealed(content)
        if header["cohort"] != digest(cohort):
            raise ValueError("its cohort is not the one it was written with")
    except ValueError as error:
        raise Refused(f"{path} is damaged ({error}); restore the secrets from a copy.") from None
    return Intent(
        round=header["round"],
        attempt=header["attempt"],
        row_key=bytes.fromhex(header["row_key"]),
        cohort=cohort,
        integers=header["integers"],
        contributions=header["contributions"],
        exposed=header["exposed"],
        previous=header["previous"],
    )
