"""How many boxes, pixels or rows a score is told to rest on."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.metrics import recognise, support_of, task_scores
from halfwise.metrics.support import support
from halfwise.records import Criterion
from tests.unit.metrics import scenes
from tests.unit.metrics.looked import DISC, IMAGE, normal, softmax, unit_rows


def test_boxes_are_counted_as_fp32_detects_them() -> None:
    samples = [{"y": scenes.joined()}, {"y": scenes.joined()}]
    recognised = recognise(samples, scenes.INPUTS)
    (score,) = task_scores(recognised, samples, samples)
    assert (score.evidence, score.unit) == (6, "boxes")  # a fourth box has a score of 0.1
    nothing = [{"y": scenes.joined() * 0}]
    (score,) = task_scores(recognised, nothing, nothing)
    assert (score.evidence, score.untested) == (0, True)
    named = Criterion(metric="detection-f1", metric_drop=0.01, recognised=recognised)
    assert support_of(named, samples, None) == (6, "boxes")


@pytest.mark.parametrize(
    ("name", "array", "evidence", "unit"),
    [
        ("p", softmax(normal(3, 5)), 6, "rows"),
        ("m", DISC, 2 * int(DISC.sum()), "mask pixels"),
        ("embedding", unit_rows(3, 64), 6, "vectors"),
        ("tokens", np.arange(12).reshape(1, 12), 24, "tokens"),
        ("seg_logits", np.repeat(4 * np.eye(2)[[0] * 32 + [1] * 32].T[None, :, :, None], 64, 3),
         2 * 64 * 64, "pixels"),
        ("flow", 9 * normal(1, 2, 64, 64), 2 * 64 * 64, "pixels"),
        ("audio", normal(2, 500), 4, "signals"),
        ("mel_spectrum", normal(1, 80, 50), 2, "signals"),
        ("heatmap", np.abs(np.sin(normal(1, 3, 9, 9))), 486, "values"),
    ],
)  # fmt: skip
def test_each_metric_has_its_unit(name: str, array: NDArray[Any], evidence: int, unit: str) -> None:
    samples = [{name: array}, {name: array}]
    (score,) = task_scores(recognise(samples, IMAGE), samples, samples)
    assert (score.evidence, score.unit) == (evidence, unit)


def test_other_outputs_rest_on_their_numbers() -> None:
    samples = [{"p": softmax(normal(3, 5)), "z": normal(3, 7)}]
    last = task_scores(recognise(samples, {}), samples, samples)[-1]
    assert (last.metric, last.evidence, last.unit) == ("rel-max", 21, "values")


def test_a_metric_of_ones_own_and_outputs_that_do_not_fit_tell_nothing() -> None:
    assert support("mine.py:f", [{"p": DISC}]) == (None, None)
    assert support("epe", [{"p": DISC}]) == (None, None)


def test_tokens_that_labels_leave_out_do_not_count() -> None:
    samples = [{"tokens": np.arange(4)[None]}]
    assert support("token-agreement", samples, [[0, 1, -1, -1]]) == (2, "tokens")
