"""Which looks an output has, and what they go by."""

from typing import get_args

import numpy as np

from halfwise.metrics import BUILT_IN
from halfwise.metrics.kinds import LOOKED_AT, METRIC_OF, looks
from halfwise.records import Kind
from tests.unit.metrics.looked import DISC, IMAGE, RNG, normal, shown, softmax


def test_every_kind_has_a_built_in_metric() -> None:
    assert set(METRIC_OF) == set(get_args(Kind))
    assert set(METRIC_OF.values()) < set(BUILT_IN)


def test_one_sample_is_enough_against() -> None:
    assert shown("y", DISC, 2 + DISC) is None


def test_the_first_samples_are_looked_at_and_no_more() -> None:
    samples = [{"y": DISC}] * LOOKED_AT
    assert looks([*samples, {"y": 2 + DISC}])[0].shown
    assert not looks([{"y": 2 + DISC}, *samples])
    assert looks([]) == ()


def test_nothing_is_said_of_weights_nan_and_constants() -> None:
    scores = softmax(normal(2, 5))
    for outputs in ({"attention": scores}, {"y": scores * np.nan}, {"y": np.full((2, 5), 0.2)}):
        assert looks([outputs]) == ()


def test_boxes_come_first_and_take_their_outputs() -> None:
    corners = np.cumsum(RNG.random((9, 4)) + 1, axis=1)
    outputs = {"mask": DISC, "scores": RNG.random(9), "boxes": corners}
    first, second = looks([outputs], IMAGE)
    assert (first.kind, first.outputs) == ("boxes", ("boxes", "scores"))
    assert (second.kind, second.outputs) == ("mask", ("mask",))
