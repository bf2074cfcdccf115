"""Defaults of how far metrics may fall."""

import numpy as np
import pytest

from halfwise.metrics import BUILT_IN, default_drop, metric_loss, resolve

STEPS = np.linspace(-4, 4, 2 * 32 * 32).reshape(1, 2, 32, 32)
MASKS = (1 / (1 + np.exp(-STEPS))).astype(np.float32)


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
