"""Participation validates itself and defaults to the most that fit."""

import pytest

from reticent.errors import Refused
from reticent.mechanisms import Participation


def test_the_most_that_fit_is_the_default_and_the_limit():
    assert Participation(2052, 342).most == 6
    assert Participation(10, 3).most == 4
    assert Participation(10, 3, 99).most == 4
    assert Participation(10, 3, 2).most == 2
    assert Participation(5).most == 5


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"rounds": 0}, "rounds"),
        ({"rounds": -3}, "rounds"),
        ({"rounds": 10, "min_separation": 0}, "min_separation"),
        ({"rounds": 10, "min_separation": 11}, "min_separation=10"),
        ({"rounds": 10, "max_participations": 0}, "max_participations"),
        ({"rounds": 2.5}, "whole number"),
        ({"rounds": float("nan")}, "whole number"),
        ({"rounds": float("inf")}, "whole number"),
        ({"rounds": True}, "whole number"),
    ],
)
def test_bad_values_are_refused_with_the_remedy(arguments, word):
    with pytest.raises(Refused, match=word):
        Participation(**arguments)
