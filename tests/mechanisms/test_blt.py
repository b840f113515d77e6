"""BLT: closed-form loss against plain sums, gradients against differences, optima against the papers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.errors import Refused
from reticent.mechanisms import Participation, Workload, make
from reticent.mechanisms.base import lower_toeplitz
from reticent.mechanisms.blt import BLT, PRODUCTION
from reticent.mechanisms.blt_loss import distances, geometric, log_loss, output_scales, weighted_geometric
from tests.mechanisms.brute import brute_sensitivity, check_stream
from tests.mechanisms.test_gram import participations


def blt_of(logits):
    u, w, _ = distances(np.array(logits))
    return BLT(tuple(1 - u), tuple(output_scales(u, w)))


@st.composite
def blts(draw):
    buffers = draw(st.integers(1, 4))
    steps = draw(st.lists(st.floats(-2, 1), min_size=2 * buffers - 1, max_size=2 * buffers - 1))
    return [draw(st.floats(-14, 0)), *steps]


@settings(max_examples=60, deadline=None)
@given(blts(), participations(9))
def test_sensitivity_is_exact(logits, participation):
    mechanism = blt_of(logits)
    found = mechanism.sensitivity(participation)
    assert found.exact
    assert found.value == pytest.approx(brute_sensitivity(mechanism.matrix(participation.rounds), participation))


@settings(max_examples=40, deadline=None)
@given(blts())
def test_the_inverse_inverts_and_the_stream_is_the_inverse(logits):
    mechanism = blt_of(logits)
    np.testing.assert_allclose(mechanism.inverse(30) @ mechanism.matrix(30), np.eye(30), atol=1e-12)
    check_stream(mechanism, 12)
    assert mechanism.memory(10**6) == len(mechanism.decays)


@settings(max_examples=60, deadline=None)
@given(
    blts(),
    st.sampled_from(["max", "rms"]),
    st.sampled_from([0.0, 0.9]),
    st.sampled_from([(1, 1, 1), (17, 17, 1), (40, 7, 4), (60, 1, 60), (90, 30, 3)]),
)
def test_the_closed_form_is_the_plain_sum_and_its_gradient_the_difference(logits, objective, momentum, shape):
    logits, participation, workload = np.array(logits), Participation(*shape), Workload(momentum)
    poles = 1 - distances(logits)[1]
    if momentum and np.min(np.abs(poles - momentum)) < 1e-3:
        return  # two poles meet, where partial fractions lose their digits
    value, gradient = log_loss(logits, participation, momentum, objective)
    mechanism = blt_of(logits)
    plain = mechanism.max_loss if objective == "max" else mechanism.rms_loss
    assert np.exp(value) == pytest.approx(plain(participation, workload), rel=1e-6)
    step = 1e-5 * np.eye(len(logits))
    numeric = [
        (
            log_loss(logits + e, participation, momentum, objective)[0]
            - log_loss(logits - e, participation, momentum, objective)[0]
        )
        / 2e-5
        for e in step
    ]
    np.testing.assert_allclose(gradient, numeric, atol=2e-5)


@pytest.mark.parametrize("length", [1, 2, 5, 1000, 10**6])
def test_geometric_sums_keep_their_digits_near_one(length):
    from fractions import Fraction

    for distance in (1e-14, 1e-9, 0.049 / length, 0.051 / length, 1e-3, 0.5):
        if length <= 1000:
            r = 1 - Fraction(distance)
            powers = [r**i for i in range(min(length, 60))] if length <= 60 else None
            if powers is not None:
                plain = float(sum(powers)), float(sum((length - i) * p for i, p in enumerate(powers)))
            else:
                d = Fraction(distance)
                inner = (1 - r**length) / d
                plain = float(inner), float((length - r * inner) / d)
        else:
            i = np.arange(length)
            powers = np.exp(i * np.log1p(-distance))
            plain = float(powers.sum()), float(((length - i) * powers).sum())
        assert geometric(np.array([distance]), length)[0][0] == pytest.approx(plain[0], rel=1e-9)
        assert weighted_geometric(np.array([distance]), length)[0][0] == pytest.approx(plain[1], rel=1e-9)


@pytest.mark.parametrize(
    ("shape", "objective", "buffers", "most"),
    [
        ((2052, 342, 6), "max", 2, 10.807),
        ((2052, 342, 6), "max", 3, 10.752),
        ((2052, 342, 6), "max", 4, 10.735),
        ((2052, 342, 6), "rms", 2, 9.184),
        ((2052, 342, 6), "rms", 3, 9.172),
        ((4000, 400, 5), "max", 4, 10.673),
    ],
)
def test_optima(shape, objective, buffers, most):
    participation = Participation(*shape)
    mechanism = make("blt", participation, objective, size=buffers)
    # The loss is taken the plain way, from explicit columns, not from the closed form that was minimised.
    rounds = participation.rounds
    columns = lower_toeplitz(mechanism.coefficients(rounds))[:, :: participation.min_separation][
        :, : participation.most
    ]
    sensitivity = np.linalg.norm(columns.sum(axis=1))
    b = np.cumsum(mechanism.inverse_coefficients(rounds))
    squares = np.cumsum(b**2)
    error = np.sqrt(squares[-1] if objective == "max" else squares.mean())
    assert sensitivity * error <= most
    assert mechanism.sensitivity(participation).value == pytest.approx(sensitivity)


def test_the_optimum_for_400_is_that_of_production():
    participation = Participation(4000, 400, 5)
    optimised, production = make("blt", participation, "max", size=4), make("blt-400", participation)
    # The loss is flat in the fastest decay: it is found to 3 digits, the others to 4 and more.
    np.testing.assert_allclose(optimised.decays, PRODUCTION["blt-400"][0], atol=3e-4)
    assert optimised.max_loss(participation) == pytest.approx(production.max_loss(participation), rel=1e-6)
    assert production.max_loss(participation) == pytest.approx(10.672, abs=1e-3)


def test_a_buffer_that_does_not_help_is_dropped():
    assert make("blt", Participation(10, 2), size=8).memory(10) < 8


def test_it_works_past_the_rounds_it_was_optimised_for():
    mechanism = make("blt", Participation(100, 20), size=2)
    check_stream(mechanism, 150)
    assert mechanism.sensitivity(Participation(150, 20)).exact


def test_momentum_is_optimised_for():
    participation, workload = Participation(200, 50), Workload(0.9)
    with_it, without = (make("blt", participation, "rms", w) for w in (workload, Workload()))
    assert with_it.rms_loss(participation, workload) < without.rms_loss(participation, workload)


@pytest.mark.parametrize(
    ("decays", "scales", "word"),
    [
        ((0.9,), (1.1,), "increase"),
        ((0.9,), (-0.1,), "not negative"),
        ((1.1,), (0.1,), "lie in"),
        ((float("nan"),), (0.1,), "finite"),
        ((0.9, 0.5), (0.1,), "as many"),
        ((), (), "as many"),
    ],
)
def test_what_is_no_blt_is_refused(decays, scales, word):
    with pytest.raises(Refused, match=word):
        BLT(decays, scales)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5, 7, 10, 20, 80, 200])
def test_any_short_separation_has_a_blt(rounds: int) -> None:
    for separation in range(1, min(rounds, 4) + 1):
        participation = Participation(rounds, separation)
        for objective in ("max", "rms"):
            losses = [
                getattr(make("blt", participation, objective, size=buffers), f"{objective}_loss")(participation)
                for buffers in (1, 2, 4)
            ]
            assert np.isfinite(losses).all()
            assert losses[2] <= losses[1] * (1 + 1e-4)
            assert losses[1] <= losses[0] * (1 + 1e-4)
