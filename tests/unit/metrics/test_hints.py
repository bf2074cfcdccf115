"""Which outputs bring which hint, and which bring none."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.metrics import criterion_hints, fitting_metric, is_tested
from halfwise.metrics.hints import unvarying_hint
from halfwise.records import Criterion
from tests.unit.metrics.test_evidence import FALLING, ranked

RNG = np.random.default_rng(7)


def normal(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def unit(*shape: int) -> NDArray[np.float32]:
    return RNG.random(shape).astype(np.float32)


def softmax(*shape: int) -> NDArray[np.float32]:
    values = np.exp(normal(*shape))
    return np.asarray(values / values.sum(axis=-1, keepdims=True))


def embedding(*shape: int) -> NDArray[np.float32]:
    values = normal(*shape)
    return np.asarray(values / np.linalg.norm(values, axis=-1, keepdims=True))


def yolo(classes: int) -> NDArray[np.float32]:
    return np.concatenate([640 * unit(1, 300, 4), unit(1, 300, classes + 1)], axis=-1)


def detr_like_end_to_end() -> NDArray[np.float32]:
    classes = np.floor(80 * unit(1, 300, 1))
    return np.concatenate([640 * unit(1, 300, 4), unit(1, 300, 1), classes], axis=-1)


def hints(**outputs: NDArray[Any]) -> tuple[str, ...]:
    return criterion_hints(Criterion(), [outputs, outputs])


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (softmax(1, 1000), "--metric top1"),
        (softmax(4, 2).astype(np.float16), "--metric top1"),
        (softmax(2, 7, 30), "--metric token-agreement"),
        (normal(1, 1000), "--metric top1"),
        (normal(1, 1000, 1, 1), "--metric top1"),
        (unit(1, 1, 16, 16), "--metric mask-iou"),
        (unit(1, 16, 16, 1), "--metric mask-iou"),
        (8 * normal(1, 2, 16, 16), "--metric epe"),
        (8 * normal(1, 16, 16, 2), "optical flow in NHWC"),
        (yolo(80), "--metric file.py:function"),
        (yolo(1).swapaxes(-1, -2), "--metric file.py:function"),
        (detr_like_end_to_end(), "--metric file.py:function"),
        (embedding(3, 512), "--metric cosine"),
        (embedding(3, 500), "--metric cosine"),
        (np.arange(5), "--agreement"),
        (np.array([True]), "--agreement"),
    ],
)
def test_what_each_output_brings(array: NDArray[Any], expected: str) -> None:
    (hint,) = hints(y=array)
    assert expected in hint
    assert "'y'" in hint
    assert hint.endswith(".")
    assert criterion_hints(Criterion(), [{"y": array}] * 20) == (hint,)


@pytest.mark.parametrize(
    "array",
    [
        normal(1, 512),
        normal(4, 2048, 1, 1),
        normal(1, 5),
        normal(1, 197, 768),
        normal(1, 64, 16, 16),
        normal(1, 1, 16, 16),
        unit(1, 2, 16, 16),
        softmax(1, 16, 16, 2).transpose(0, 3, 1, 2),
        np.full((1, 3), np.nan, np.float32),
        np.zeros((0, 1000), np.float32),
        np.float32(1),
    ],
)
def test_what_brings_none(array: NDArray[Any]) -> None:
    assert hints(y=array) == ()


@pytest.mark.parametrize(
    ("boxes", "scores"),
    [
        (normal(1, 50, 4), unit(1, 50)),
        (300 * unit(50, 4), unit(50)),
        (normal(1, 50, 4), softmax(1, 50, 21)),
        (unit(1, 50, 4), normal(1, 50, 92)),
    ],
)
def test_boxes_and_scores_bring_one_hint(boxes: NDArray[Any], scores: NDArray[Any]) -> None:
    (hint,) = hints(scores=scores, boxes=boxes)
    assert "'boxes' and 'scores'" in hint
    assert "--metric file.py:function" in hint


def test_four_values_per_row_alone_are_no_boxes() -> None:
    assert hints(rotation=normal(8, 4)) == ()
    (hint,) = hints(rotation=normal(8, 4), kind=softmax(8, 10))
    assert "'kind'" in hint


@pytest.mark.parametrize("name", ["embeddings", "pooler_output", "image_features"])
def test_what_is_called_a_vector_is_no_class_score(name: str) -> None:
    assert not any("class scores" in hint for hint in hints(**{name: normal(2, 1000)}))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_looks_like_no_scores_and_warns_of_nothing(value):
    odd = np.where(np.arange(1001) % 2, value, 3.0).astype(np.float32)[None]
    assert criterion_hints(Criterion(), [{"y": odd}, {"y": 2 * odd}]) == ()


@pytest.mark.parametrize("name", ["logits", "class_scores", "pred"])
def test_what_is_called_a_score_is_one_whatever_its_size(name: str) -> None:
    (hint,) = hints(**{name: normal(2, 512)})
    assert "class scores" in hint


def test_rows_of_one_length_on_all_samples_may_be_an_embedding() -> None:
    samples = [{"y": 7 * embedding(1, 1000)} for _ in range(3)]
    assert criterion_hints(Criterion(), samples) == ()
    assert "class scores" in criterion_hints(Criterion(), [{"y": 7 * normal(1, 1000)}] * 2)[0]


def test_every_output_brings_its_own() -> None:
    first, second, third = hints(mask=unit(1, 1, 8, 8), logits=normal(2, 10), ids=np.arange(3))
    assert "'ids'" in first
    assert "'mask'" in second
    assert "'logits'" in third


def test_one_sample_that_does_not_look_like_it_is_enough_against() -> None:
    samples = [{"y": unit(1, 1, 8, 8)}, {"y": 2 + unit(1, 1, 8, 8)}]
    assert criterion_hints(Criterion(), samples) == ()


def test_no_hint_where_the_user_decided_or_nothing_ran() -> None:
    outputs = {"y": softmax(1, 10)}
    for criterion in (Criterion(rel_max=0.1), Criterion(metric="psnr"), Criterion(max_abs=1.0)):
        assert criterion_hints(criterion, [outputs]) == ()
    assert criterion_hints(Criterion(), []) == ()


def test_the_fraction_in_force_is_told() -> None:
    (hint,) = criterion_hints(Criterion(agreement=0.5), [{"y": np.arange(3)}])
    assert "at least 0.5 " in hint


def test_the_metric_that_fits_is_a_value():
    values = unit(1, 1, 16, 16)
    references = [{"mask": (values > 0.5).astype(np.float32)}]
    assert fitting_metric(Criterion(), references) == "mask-iou"
    assert fitting_metric(Criterion(), [{"mask": values}]) is None  # --metric auto takes none
    assert fitting_metric(Criterion(max_abs=0.1), references) == "mask-iou"
    assert fitting_metric(Criterion(metric="psnr"), references) is None
    assert fitting_metric(Criterion(), [{"boxes": yolo(80)}]) is None
    assert fitting_metric(Criterion(), []) is None


def test_boxes_that_are_joined_with_scores_have_each_their_scale() -> None:
    (hint,) = hints(y=np.concatenate([640 * np.ones((1, 300, 4)), unit(1, 300, 3)], axis=-1))
    assert "follows the scores (up to 0.999) for scores and the boxes (up to 640) for boxes" in hint
    assert "--max-abs" not in hint


def test_boxes_near_the_scores_hide_their_errors() -> None:
    (hint,) = hints(y=np.concatenate([3 * np.ones((1, 300, 4)), unit(1, 300, 3)], axis=-1))
    assert "(up to 3), so every score may be off by about 0.03" in hint
    assert "--max-abs" in hint
    assert "harmlessly" not in hint


@pytest.mark.parametrize(
    ("name", "array"),
    [("attention", normal(1, 20)), ("attn_weights", softmax(1, 20)), ("y", softmax(1, 8, 20, 20))],
)
def test_attention_weights_are_no_class_scores(name: str, array: NDArray[Any]) -> None:
    assert hints(**{name: array}) == ()


@pytest.mark.parametrize(
    ("criterion", "told"),
    [
        (Criterion(snr_db=40), "--snr-db"),
        (Criterion(cosine=0.999, snr_db=40), "--snr-db and --cosine"),
        (Criterion(snr_db=40, rel_max=0.01), ""),
        (Criterion(max_abs=0.1), ""),
        (Criterion(metric="top1"), ""),
    ],
)
def test_pooled_thresholds_go_by_the_largest_scale(criterion: Criterion, told: str) -> None:
    joined = np.concatenate([640 * np.ones((1, 4, 300)), unit(1, 3, 300)], axis=1)
    found = criterion_hints(criterion, [{"y": joined, "flat": unit(1, 300)}])
    assert len(found) == bool(told)
    assert all(
        "(slices 4-6 of axis 1 up to " in h
        and f"others up to 640), and the largest decide {told}:" in h
        for h in found
    )


@pytest.mark.parametrize(
    "array",
    [
        np.full((1, 16), 1.25),
        np.where(np.arange(16) % 2, np.nan, normal(1, 16)),
        np.full((1, 16), np.inf),
        np.array([[np.inf, -np.inf] * 8]),
        np.zeros((1, 1, 16, 16)),
    ],
)
def test_constants_and_undefined_values_look_like_nothing(array: NDArray[Any]) -> None:
    assert hints(scores=array) == ()
    assert fitting_metric(Criterion(), [{"scores": array}]) is None


def test_scores_with_an_infinite_mask_are_scores_still() -> None:
    (hint,) = hints(scores=np.where(np.arange(40) > 30, -np.inf, normal(1, 40)))
    assert "class scores" in hint


def test_a_series_of_frames_is_no_set_of_classes() -> None:
    pitch = 200 + 60 * np.sin(np.arange(62) / 9)
    assert hints(pitch=pitch[None]) == ()


def test_outputs_that_look_alike_share_a_hint() -> None:
    many = {f"o{i}": normal(1, 20) for i in range(30)}
    first, second = hints(**many, mask=unit(1, 1, 16, 16))
    assert first == (
        "Outputs 'o{0–29}' have the shape of class scores ([1, 20], each): if only the predicted "
        "class matters, judge them with --metric top1."
    )
    assert "'mask'" in second


OTHER = np.random.default_rng(1)


def outputs(swing, count=8):
    return [{"y": 1 + swing * OTHER.normal(size=5)} for _ in range(count)]


@pytest.mark.parametrize(
    ("swing", "criterion", "told"),
    [
        (5e-4, Criterion(), True),
        (0.5, Criterion(), False),
        (1e-3, Criterion(snr_db=40), True),
        (1e-3, Criterion(snr_db=80), False),
        (1e-3, Criterion(max_abs=1e-5), False),
        (1e-3, Criterion(metric="m"), False),
    ],
)
def test_a_constant_that_would_pass_is_told(swing, criterion, told):
    hints = unvarying_hint(criterion, outputs(swing))
    assert len(hints) == told
    assert all("a constant would pass" in hint for hint in hints)


def test_one_output_that_varies_is_enough_to_tell():
    still, moving = outputs(1e-4), outputs(0.5)
    both = [{"y": a["y"], "z": b["y"]} for a, b in zip(still, moving, strict=True)]
    assert unvarying_hint(Criterion(), both) == ()


def test_single_samples_and_ragged_or_integer_outputs_say_nothing():
    assert unvarying_hint(Criterion(), outputs(0.0, count=1)) == ()
    assert unvarying_hint(Criterion(), []) == ()
    assert unvarying_hint(Criterion(), [{"y": np.ones(2)}, {"y": np.ones(3)}]) == ()
    assert unvarying_hint(Criterion(), [{"y": np.arange(4)}, {"y": np.arange(4)[::-1]}]) == ()


def test_empty_and_infinite_outputs_say_nothing():
    for one, other in (
        (np.empty((0, 4)), np.empty((0, 4))),
        (np.full(3, np.inf), -np.full(3, np.inf)),
    ):
        references = [{"y": one.astype(np.float32)}, {"y": other.astype(np.float32)}]
        assert unvarying_hint(Criterion(), references) == ()


def test_boxes_of_which_none_is_detected_are_to_be_judged_on_other_samples() -> None:
    inputs = {"image": (1, 3, 64, 128)}
    rows = {"y": ranked(FALLING)}
    (hint,) = criterion_hints(Criterion(), [rows], inputs)
    assert "as FP32 detects nothing here, with --metric detection-f1" in hint
    assert fitting_metric(Criterion(), [rows], inputs) is None
    assert not is_tested([rows], inputs)
    rows["y"][0, :9, 4] = 0.9
    (hint,) = criterion_hints(Criterion(), [rows], inputs)
    assert "detects nothing" not in hint
    assert fitting_metric(Criterion(), [rows], inputs) == "detection-f1"
    assert is_tested([rows], inputs)


def test_one_number_for_each_step_is_of_no_class() -> None:
    assert hints(load=normal(1, 16, 1)) == ()
    assert "top1" in hints(logits=normal(1, 16, 1))[0]
    assert "top1" in hints(y=normal(1, 16, 1, 1))[0]
