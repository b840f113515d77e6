import numpy as np
import pytest

from reticent.mechanisms import KINDS, Participation, make
from reticent.mechanisms.restarted import Restarted

ROUNDS = 21


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("blt-1")])
@pytest.mark.parametrize("starts", [(), (0, 3, 12)])
def test_the_deviation_of_each_round_s_noise_is_its_row_of_the_inverse(kind, starts):
    mechanism = make(kind, Participation(ROUNDS, 5))
    mechanism = Restarted(mechanism, starts) if starts else mechanism
    for rounds in (1, 8, 13, ROUNDS):
        if kind != "tree-full" or rounds == ROUNDS:
            expected = np.linalg.norm(mechanism.inverse(rounds), axis=1)
            np.testing.assert_allclose(mechanism.noise_deviations(rounds), expected)
