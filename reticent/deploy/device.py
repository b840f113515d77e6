"""A device: one letter in, one answer out, perhaps in a new process each time.

It decides by itself: by its own copy of the terms, its own diary and its own budget. Whatever goes wrong, nothing but a
word leaves it; why is written into its diary, for whoever holds it.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from reticent.deploy.diary import Diary
from reticent.deploy.letters import (
    DELIVERY,
    INVITE,
    NO,
    OTHER_TERMS,
    OTHER_VERSION,
    AnotherVersion,
    Letter,
    Unreadable,
    no,
    read_letter,
    yes,
)
from reticent.deploy.settings import DeviceSettings
from reticent.deploy.terms import Terms
from reticent.errors import Refused
from reticent.files import write_atomically
from reticent.secagg import Device as Aggregator

log = logging.getLogger("reticent.device")

Learner = Callable[[DeviceSettings, Terms, bytes, int], np.ndarray]
"""From a model's parameters (float32, end to end) and the number of a round to this device's clipped update, in whole units
of the terms' grid."""
ABANDONED_AFTER = 24 * 3600.0


class Device:
    """The device in a directory. `learner` makes updates in place of training on the device's text: for load tests."""

    def __init__(
        self, directory: str | Path, learner: Learner | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.settings = DeviceSettings.load(directory)
        self.diary = Diary(self.settings.directory / "diary.sqlite", clock)
        self.learner = learner or learned
        self.clock = clock

    def answer(self, content: bytes, model: bytes = b"") -> bytes:
        """The answer to a letter. Never raises: a message of an exception may tell of what it was raised about."""
        run, round, word = "", -1, NO
        try:
            letter = read_letter(content)
            run, round = letter.run, letter.round
            self._forget_abandoned()
            return yes(self._invited(letter) if letter.kind == INVITE else self._step(letter, model))
        except AnotherVersion as error:
            word, why = OTHER_VERSION, f"The server sent {error}; install the same version of reticent on both sides."
        except Unreadable:
            why = "The server sent something that is not a letter."
        except OtherTerms as error:
            word, why = OTHER_TERMS, str(error)
        except Refused as error:
            why = str(error)
        except Exception as error:
            log.debug("a letter was not answered", exc_info=True)
            why = f"A mistake in this program or on this device: {type(error).__name__}."
        self._note(run, round, why)
        return no(word)

    def _invited(self, letter: Letter) -> bytes:
        terms = self._terms(letter.terms)
        self._check_text()
        self.diary.check(terms, letter.run, letter.round, self.settings.budget.check)
        attempt = terms.round(letter.run, letter.round, letter.attempt, letter.nonce)
        aggregator = self._aggregator(letter.run)
        advert = aggregator.join(attempt)
        joined = f"{letter.terms} {letter.round} {letter.attempt} {letter.nonce.hex()}"
        write_atomically(aggregator.directory / "round", joined.encode(), 0o600)
        return advert

    def _step(self, letter: Letter, model: bytes) -> bytes:
        aggregator = self._aggregator(letter.run)
        joined = aggregator.directory / "round"
        if not joined.is_file():
            raise Refused("There is no round under way here.")
        digest, round, attempt, nonce = joined.read_text().split()
        if int(round) != letter.round:
            raise Refused(f"Round {round} is under way here, not round {letter.round}.")
        if letter.kind != DELIVERY:
            return aggregator.step(letter.body)
        terms = self._terms(digest)
        if len(model) != 4 * terms.size or not np.isfinite(np.frombuffer(model, "<f4")).all():
            raise Refused(f"The model of round {round} is not {terms.size} finite numbers.")
        # From here on this device has taken part, whatever becomes of its update.
        self.diary.take_part(terms, letter.run, letter.round, int(attempt), self.settings.budget.check)
        units = self.learner(self.settings, terms, model, letter.round)
        code = terms.code(terms.round(letter.run, letter.round, int(attempt), bytes.fromhex(nonce)))
        return aggregator.step(letter.body, code.encode(terms.sums.vector_of(units)))

    def _terms(self, digest: str) -> Terms:
        terms = self.settings.terms(digest)
        if terms is None:
            raise OtherTerms(
                f"The server runs under terms {digest[:12]}, which this device was not shipped with; give it that run's "
                f"terms.json with `reticent deploy device {self.settings.directory} --terms`."
            )
        return terms

    def _check_text(self) -> None:
        from reticent.deploy.text import own_text

        own_text(self.settings)

    def _aggregator(self, run: str) -> Aggregator:
        return Aggregator(self.settings.directory / "rounds" / run, self.settings.member)

    def _forget_abandoned(self) -> None:
        """Erases the secrets of rounds that ended without this device: no letter came for a day."""
        for state in self.settings.directory.glob("rounds/*/attempt.json"):
            if self.clock() - state.stat().st_mtime > ABANDONED_AFTER:
                Aggregator(state.parent, self.settings.member).leave()

    def _note(self, run: str, round: int, why: str) -> None:
        log.warning("Round %d not taken part in: %s", round, why)
        try:
            self.diary.refused(run, round, why)
        except Exception as error:
            log.warning("The diary was not written: %s.", error if isinstance(error, Refused) else type(error).__name__)


class OtherTerms(Refused):
    """The server's terms are none of those that this device was shipped with."""


def learned(settings: DeviceSettings, terms: Terms, model: bytes, round: int) -> np.ndarray:
    """The clipped update of training on this device's own text. JAX is loaded here, and at no other step."""
    from reticent.deploy.learning import update_of

    return update_of(settings, terms, model, round)
