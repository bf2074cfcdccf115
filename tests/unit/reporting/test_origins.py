"""Words on where an error comes from."""

import math

import pytest

from halfwise.records import Decided
from halfwise.reporting.guards import flipped


def decided(**changed):
    flip = {"node": "choose", "op": "ArgMax", "elements": 3, "of": 9}
    told = {"flips": (flip,), "nodes": ("choose", "before"), "error": 4.0, "left": 0.5}
    return Decided.model_validate(told | {"read": 0.1, "samples": 2} | changed)


def test_decisions_are_told_with_what_they_read_and_what_is_left():
    told = flipped(decided(), "what is allowed")
    assert told.startswith("choose decides 3 of 9 values differently on 2 samples, reading ")
    assert "falls from 4 × to 0.5 × what is allowed" in told


@pytest.mark.parametrize("read", [0.0, math.inf])
def test_floats_that_are_exact_until_they_are_read_say_nothing(read):
    assert "reading" not in flipped(decided(read=read), "x")
