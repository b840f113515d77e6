"""What really happened: the enforced schema carries the guarantee, the worst pattern is for diagnosis."""

import itertools

import numpy as np
import pytest

from reticent.accounting.observed import DIAGNOSTIC, happened
from reticent.errors import Refused
from reticent.mechanisms import Participation, make

ENFORCED = Participation(20, 5, 3)
PATTERNS = [[3, 8, 19], (0, 10), [17], [], [19, 8, 3], [12, 17]]


@pytest.mark.parametrize("kind", ["independent", "tree", "blt-400", "banded", "banded-inverse", "tree-full"])
def test_the_worst_pattern_is_found_and_never_above_the_enforced(kind: str) -> None:
    mechanism = make(kind, ENFORCED)
    found = happened(mechanism, ENFORCED, PATTERNS)
    assert (found.users, found.most_participations, found.smallest_separation) == (5, 3, 5)
    assert found.supported == mechanism.sensitivity(ENFORCED)
    assert found.worst_sensitivity <= found.supported.value * (1 + 1e-12)
    # Against the norm of C u over all signs of one user's contributions.
    columns = mechanism.matrix(20)[:, list(found.worst_pattern)]
    largest = max(np.linalg.norm(columns @ signs) for signs in itertools.product((1, -1), repeat=columns.shape[1]))
    assert found.worst_sensitivity >= largest - 1e-12
    if (mechanism.matrix(20).T @ mechanism.matrix(20) >= -1e-12).all():
        assert found.worst_sensitivity == pytest.approx(largest)
    told = found.summary()
    assert told["sensitivity"] == found.supported.value
    assert told["diagnostic"]["means"] == DIAGNOSTIC
    assert told["diagnostic"]["worst_pattern"] == list(found.worst_pattern)


def test_everybody_at_most_once() -> None:
    found = happened(make("tree", ENFORCED), ENFORCED, [[4], [9], []])
    assert (found.most_participations, found.smallest_separation) == (1, None)
    assert happened(make("tree", ENFORCED), ENFORCED, []).worst_sensitivity == 0


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ([0, 4], "rounds 0 and 4"),
        ([3, 3], "rounds 3 and 3"),
        ([0, 5, 10, 15], "4 times"),
        ([20], "round 20"),
        ([-1, 7], "round -1"),
    ],
)
def test_what_was_to_be_prevented_is_refused(pattern: list[int], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        happened(make("tree", ENFORCED), ENFORCED, [[2], pattern])
    with pytest.raises(Refused, match="rounds 0 and 6"):
        happened(make("tree", ENFORCED), Participation(20, 5, exact=True), [[0, 6]])
