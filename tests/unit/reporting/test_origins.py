"""Words on where an error comes from."""

import math

import pytest

from halfwise.records import Channel, Decided
from halfwise.reporting.guards import carried, flipped, followed_over


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


@pytest.mark.parametrize(("error", "is_told"), [(0.2, True), (math.inf, False)])
def test_errors_of_a_channel_are_told_if_they_are_numbers(error, is_told):
    channel = Channel.model_validate(
        {"tensor": "t", "axis": 1, "index": 3, "size": 8, "error": error, "rest": 0.01}
        | {"left": 0.5, "nodes": ("n",)}
    )
    told = carried(channel, 4.0, followed_over("top1"))
    assert told.startswith("channel 3 of 8 (axis 1) of t carries most of the error")
    assert ("it is off by 20 %, the other channels by 1 %" in told) is is_told
    assert told.endswith("falls from 4 × to 0.5 × the default tolerance")
