"""Which outputs bring which hint, and which bring none."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.metrics import criterion_hints, fitting_metric, is_tested
from halfwise.records import Criterion
from tests.unit.metrics.looked import DISC, IMAGE, PICTURE, RNG, normal, softmax, unit_rows
from tests.unit.metrics.test_evidence import FALLING, ranked


def hints(**outputs: NDArray[Any]) -> tuple[str, ...]:
    return criterion_hints(Criterion(), [outputs, outputs], IMAGE)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (softmax(normal(1, 1000)), "top1"),
        (softmax(normal(4, 2)).astype(np.float16), "top1"),
        (softmax(normal(2, 7, 30)), "token-agreement"),
        (normal(1, 1000, 1, 1), "top1"),
        (DISC, "mask-iou"),
        (PICTURE, "psnr"),
        (unit_rows(3, 500), "cosine"),
    ],
)
def test_a_recognised_output_brings_the_hint_of_its_metric(
    array: NDArray[Any], expected: str
) -> None:
    (hint,) = hints(y=array)
    assert f" --metric {expected}." in hint
    assert "'y'" in hint


@pytest.mark.parametrize("array", [np.arange(5), np.array([True])])
def test_an_output_that_is_not_floating_point_brings_the_fraction(array: NDArray[Any]) -> None:
    (hint,) = criterion_hints(Criterion(agreement=0.5), [{"y": array}], {})
    assert "at least 0.5 " in hint
    assert "--require agreement" in hint


@pytest.mark.parametrize(
    "array",
    [
        normal(1, 5),  # its shape alone
        8 * normal(1, 2, 16, 16),
        RNG.random((1, 1, 16, 16)),
        np.full((1, 3), np.nan, np.float32),
        np.zeros((0, 1000), np.float32),
        np.float32(1),
    ],
)
def test_what_is_not_recognised_brings_no_hint(array: NDArray[Any]) -> None:
    assert hints(y=array) == ()


def test_boxes_are_judged_by_their_metric_where_something_is_detected() -> None:
    inputs = {"image": (1, 3, 64, 128)}
    rows = {"y": ranked(FALLING)}
    assert criterion_hints(Criterion(), [rows], inputs) == ()
    assert fitting_metric(Criterion(), [rows], inputs) is None
    assert not is_tested([rows], inputs)
    rows["y"][0, :9, 4] = 0.9
    (hint,) = criterion_hints(Criterion(), [rows], inputs)
    assert "--metric detection-f1" in hint
    assert fitting_metric(Criterion(), [rows], inputs) == "detection-f1"
    assert is_tested([rows], inputs)


def test_what_may_be_boxes_is_of_no_other_kind() -> None:
    scores = softmax(normal(1, 50, 21))
    assert hints(boxes=normal(1, 50, 4), scores=scores) == ()
    assert hints(scores=scores)


def test_no_hint_where_the_user_decided_or_nothing_ran() -> None:
    outputs = {"y": softmax(normal(1, 10))}
    for criterion in (Criterion(rel_max=0.1), Criterion(metric="psnr"), Criterion(max_abs=1.0)):
        assert criterion_hints(criterion, [outputs], {}) == ()
    assert criterion_hints(Criterion(), [], {}) == ()


def test_the_metric_that_fits_is_a_value() -> None:
    references = [{"mask": DISC}]
    assert fitting_metric(Criterion(), references, IMAGE) == "mask-iou"
    assert fitting_metric(Criterion(max_abs=0.1), references, IMAGE) == "mask-iou"
    assert fitting_metric(Criterion(metric="psnr"), references, IMAGE) is None
    assert fitting_metric(Criterion(), [], {}) is None


def test_outputs_of_one_kind_and_shape_share_a_hint() -> None:
    first, second = hints(**{f"o{i}": unit_rows(1, 20) for i in range(30)}, mask=DISC)
    assert "Outputs 'o{0–29}' look like embeddings ([1, 20], rows of length 1)" in first
    assert "'mask'" in second
