"""Restarts: block-diagonal C, and participations spread over the blocks in the worst way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.errors import Refused
from reticent.mechanisms import Participation, Workload, load, make
from reticent.mechanisms.independent import Independent
from reticent.mechanisms.restarted import Restarted
from reticent.mechanisms.tree import Tree, TreeFull
from tests.mechanisms.brute import brute_sensitivity, check_stream
from tests.mechanisms.test_blt import blt_of, blts
from tests.mechanisms.test_gram import assert_honest, participations


@settings(max_examples=80, deadline=None)
@given(blts(), participations(10), st.sets(st.integers(1, 9), min_size=1, max_size=3))
def test_sensitivity_of_restarted_blts_is_exact(logits, participation, restarts):
    mechanism = Restarted(blt_of(logits), (0, *sorted(restarts)))
    found = mechanism.sensitivity(participation)
    assert found.exact or participation.exact
    assert_honest(found, mechanism.matrix(participation.rounds), participation)


@settings(max_examples=40, deadline=None)
@given(participations(9), st.integers(1, 8))
def test_bounds_of_other_bases_are_honest(participation, restart):
    mechanism = Restarted(TreeFull(9), (0, restart))
    assert_honest(mechanism.sensitivity(participation), mechanism.matrix(participation.rounds), participation)
    long = mechanism._any_spread(mechanism.blocks(participation.rounds), participation)
    assert long.value >= brute_sensitivity(mechanism.matrix(participation.rounds), participation) * (1 - 1e-9)


def test_noise_starts_anew_at_each_restart():
    mechanism = Restarted(make("blt-100", Participation(30, 5)), (0, 7, 20))
    check_stream(mechanism, 30)
    check_stream(Restarted(Tree(), (0, 8)), 16)
    inverse = mechanism.inverse(30)
    assert not inverse[7:20, :7].any()
    prefix = np.tril(np.ones((30, 30)))
    np.testing.assert_allclose(mechanism.errors(30), np.linalg.norm(prefix @ inverse, axis=1))
    momentum = Workload(0.5)
    np.testing.assert_allclose(mechanism.errors(30, momentum), np.linalg.norm(momentum.matrix(30) @ inverse, axis=1))
    np.testing.assert_allclose(mechanism.column_norms(30), np.linalg.norm(mechanism.matrix(30), axis=0))


def test_it_is_saved_with_its_base(tmp_path):
    mechanism = Restarted(make("blt-400", Participation(30, 5)), (0, 7))
    mechanism.save(tmp_path / "restarted.json")
    assert load(tmp_path / "restarted.json") == mechanism


def test_bad_restarts_are_refused():
    for starts in ((), (1, 2), (0, 5, 5), (0, 4, 3)):
        with pytest.raises(Refused, match="increasing rounds"):
            Restarted(Independent(), starts)
    with pytest.raises(Refused, match="restarted again"):
        Restarted(Restarted(Independent(), (0, 2)), (0, 4))
    with pytest.raises(Refused, match="made for 8 rounds"):
        Restarted(TreeFull(8), (0, 9))
