"""Tree aggregation: sensitivity against brute force and golden values, noise against its derivation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.errors import Refused
from reticent.mechanisms import Participation, Workload, make
from reticent.mechanisms.restarted import Restarted
from reticent.mechanisms.tree import Tree, TreeFull
from tests.mechanisms.brute import brute_sensitivity, check_stream, normals, run_stream
from tests.mechanisms.test_gram import participations

GOLDEN = {
    (1, 8, 8): 4,
    (3, 4, 9): 11,
    (3, 3, 7): 9,
    (8, 3, 24): 88,
    (2, 1, 8): 14,
    (8, 1, 8): 120,
    (1, 1, 2048): 12,
    (6, 342, 2048): 118,
    (6, 314, 2000): 79,
    (8, 171, 1290): 132,
    (7, 171, 1290): 121,
}


@pytest.mark.parametrize(("case", "squared"), GOLDEN.items())
def test_golden_squared_sensitivities(case, squared):
    times, separation, rounds = case
    assert Tree().sensitivity(Participation(rounds, separation, times)).value ** 2 == pytest.approx(squared)


@settings(max_examples=80, deadline=None)
@given(participations(11))
def test_sensitivity_is_exact(participation):
    found = Tree().sensitivity(participation)
    assert found.exact
    assert found.value == pytest.approx(brute_sensitivity(Tree().matrix(participation.rounds), participation))


@settings(max_examples=60, deadline=None)
@given(participations(11), st.sets(st.integers(1, 10), max_size=3))
def test_sensitivity_of_restarted_trees_is_exact(participation, restarts):
    mechanism = Restarted(Tree(), (0, *sorted(restarts)))
    found = mechanism.sensitivity(participation)
    assert found.exact
    assert found.value == pytest.approx(brute_sensitivity(mechanism.matrix(participation.rounds), participation))


@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 8, 13, 16, 33])
def test_online_noise_is_the_stream_of_a_left_inverse(rounds):
    check_stream(Tree(), rounds)
    assert Tree().memory(rounds) == int(np.ceil(np.log2(rounds)))


def test_online_noise_has_the_variance_of_the_recursion():
    # By hand for 4 rounds: v0 = 1, v1 = 1/(1 + 1/2) = 2/3, v2 = 1/(1 + 1/(4/3)) = 4/7.
    np.testing.assert_allclose(Tree().errors(4) ** 2, [1, 2 / 3, 2 / 3 + 1, 4 / 7])
    for rounds in (5, 12, 31):
        dense = np.linalg.norm(np.tril(np.ones((rounds, rounds))) @ Tree().inverse(rounds), axis=1)
        np.testing.assert_allclose(Tree().errors(rounds), dense)
    momentum = Workload(momentum=0.9)
    dense = np.linalg.norm(momentum.matrix(12) @ Tree().inverse(12), axis=1)
    np.testing.assert_allclose(Tree().errors(12, momentum), dense)


def test_online_noise_is_the_best_that_sees_only_the_past():
    # Given the nodes complete so far, no unbiased estimate of a prefix sum at a power of two beats the pseudo-inverse.
    for rounds in (2, 4, 8, 16):
        assert Tree().errors(rounds)[-1] == pytest.approx(TreeFull(rounds).errors(rounds)[-1])


@pytest.mark.parametrize("rounds", [1, 2, 5, 8, 13])
def test_full_noise_has_the_covariance_of_the_pseudo_inverse(rounds):
    pseudo = np.linalg.pinv(Tree().matrix(rounds))
    inverse = TreeFull(rounds).inverse(rounds)
    np.testing.assert_allclose(inverse @ inverse.T, pseudo @ pseudo.T, atol=1e-12)
    z = normals(TreeFull(rounds), rounds, 3)
    np.testing.assert_allclose(run_stream(TreeFull(rounds), rounds), inverse @ z, atol=1e-12)
    assert (TreeFull(rounds).errors(rounds) <= Tree().errors(rounds) + 1e-12).all()


def test_full_tree_has_the_sensitivity_of_the_tree_and_a_bound_when_stopped_early():
    participation = Participation(13, 4)
    assert TreeFull(13).sensitivity(participation) == Tree().sensitivity(participation)
    early = Participation(9, 4)
    found = TreeFull(13).sensitivity(early)
    assert not found.exact
    assert found.value >= brute_sensitivity(TreeFull(13).matrix(9), early)


def test_what_cannot_be_is_refused():
    with pytest.raises(Refused, match="made for 8 rounds"):
        TreeFull(8).errors(9)
    with pytest.raises(Refused, match="GiB"):
        TreeFull(10**6)
    with pytest.raises(Refused, match="neither buffers nor bands"):
        make("tree", Participation(8), size=3)


@pytest.mark.parametrize(
    ("rounds", "separation", "times"), [(2000, 10, 200), (2000, 10, 20), (5000, 50, 40), (2000, 1, 2000)]
)
def test_many_participations_stay_fast_and_above_the_earliest_pattern(rounds, separation, times):
    participation = Participation(rounds, separation, times)
    taken = np.arange(0, times * separation, separation)
    earliest = sum(
        (np.bincount(taken >> level, minlength=rounds)[: rounds >> level] ** 2).sum()
        for level in range(rounds.bit_length())
    )
    assert Tree().sensitivity(participation).value ** 2 >= earliest - 1e-6
