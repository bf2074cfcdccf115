"""Defaults of how far metrics may fall."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError
from halfwise.metrics import (
    BUILT_IN,
    check_labels,
    default_drop,
    metric_loss,
    resolve,
    rises,
    usual,
)
from halfwise.metrics.task import epe

STEPS = np.linspace(-4, 4, 2 * 32 * 32).reshape(1, 2, 32, 32)
MASKS = (1 / (1 + np.exp(-STEPS))).astype(np.float32)


@given(st.floats(allow_nan=False))
def test_errors_are_written_without_their_minus(value):
    assert usual("epe", -value) == value
    assert usual("top1", value) == value
    assert math.copysign(1, usual("epe", -0.0)) == 1
    assert math.copysign(1, usual("file.py:function", -0.0)) == 1


def test_what_rises_is_an_error_of_a_worse_flow():
    assert [name for name in BUILT_IN if rises(name)] == ["epe"]
    flow = np.zeros((1, 2, 8, 8), np.float32)
    assert usual("epe", epe([{"y": flow}], [{"y": flow + 3}], None)) > 0
    assert not rises("file.py:function")


@pytest.mark.parametrize("metric", BUILT_IN)
@pytest.mark.parametrize("labelled", [True, False])
def test_no_built_in_metric_is_held_to_nothing_lost(metric, labelled):
    default = default_drop(metric, labelled=labelled)
    assert default is not None
    assert default.drop > 0
    assert default.source


def test_the_scale_of_other_metrics_is_their_authors():
    assert default_drop("score.py:mask-iou", labelled=False) is None


@pytest.mark.parametrize("metric", ["mask-iou", "psnr", "epe"])
def test_rounding_of_the_outputs_alone_is_within_the_default(metric):
    expected, found = {"y": MASKS}, {"y": MASKS.astype(np.float16)}
    function, default = resolve(metric), default_drop(metric, labelled=False)
    assert function is not None
    assert default is not None
    assert 0 <= metric_loss(function, [expected], [found], None) <= default.drop


@pytest.mark.parametrize("label", ["cat", None, {"mask": "cat"}])
def test_text_and_nothing_are_no_labels(label):
    with pytest.raises(CaseError, match="takes numbers as labels, but label 1 is"):
        check_labels("top1", [3, label])


@pytest.mark.parametrize("label", [3, [1, 2], {"mask": np.zeros((2, 2))}])
def test_numbers_are(label):
    check_labels("mask-iou", [label])


def test_a_metric_of_ones_own_takes_what_it_likes():
    check_labels("file.py:score", ["cat", None])
    check_labels(None, ["cat"])
