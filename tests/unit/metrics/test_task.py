"""Built-in task metrics by hand, their labels, their refusals and what NaN does to them."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.metrics import BUILT_IN, evidence_of, resolve
from halfwise.metrics.recognised import BY_LAYOUT
from halfwise.metrics.targets import CAP_DB
from halfwise.metrics.task import (
    confidence,
    epe,
    mask_iou,
    mean_iou,
    psnr,
    token_agreement,
    top1,
)

PROBABILITIES = hnp.arrays(np.float32, (8, 8), elements=st.floats(0, 1, width=32))


def one(array: Any, name: str = "y") -> list[dict[str, NDArray[Any]]]:
    return [{name: np.asarray(array)}]


def floats(*rows: Any) -> NDArray[np.float32]:
    return np.asarray(rows, dtype=np.float32)


def test_names() -> None:
    assert {name for name in BUILT_IN if resolve(name) is None} == set(BY_LAYOUT)
    assert resolve("file.py:function") is None


@pytest.mark.parametrize("name", ["top1", "confidence", "mask-iou", "psnr"])
@given(values=PROBABILITIES)
def test_the_reference_is_perfect_against_itself(name: str, values: NDArray[np.float32]) -> None:
    metric = resolve(name)
    assert metric is not None
    assert metric(one(values), one(values.copy()), None) == (100.0 if name == "psnr" else 1.0)


@given(PROBABILITIES, PROBABILITIES)
def test_ranges(left: NDArray[np.float32], right: NDArray[np.float32]) -> None:
    assert 0 <= top1(one(left), one(right), None) <= 1
    assert 0 <= mask_iou(one(left), one(right), None) <= 1
    assert psnr(one(left), one(right), None) <= CAP_DB


class TestTop1:
    def test_without_labels_the_reference_is_right(self) -> None:
        reference = floats([1, 2, 3], [3, 2, 1], [0, 5, 0])
        candidate = floats([1, 2, 3], [1, 2, 3], [0, 4, 0]).astype(np.float16)
        assert top1(one(reference), one(candidate), None) == pytest.approx(2 / 3)

    def test_labels_per_sample_and_per_row(self) -> None:
        reference = [*one(floats([0, 1])), *one(floats([1, 0], [0, 1]))]
        assert top1(reference, reference, [1, [0, 0]]) == pytest.approx(2 / 3)
        assert top1(reference, reference, [np.int64(1), np.array([[0], [1]])]) == 1

    def test_a_row_with_nan_is_wrong_even_if_its_largest_class_is_right(self) -> None:
        reference = floats([0, 1, 0], [0, 1, 0])
        candidate = floats([0, 1, np.nan], [0, 1, 0])
        assert top1(one(reference), one(candidate), None) == 0.5
        candidate = floats([np.nan, np.nan, np.nan], [0, np.inf, 0])
        assert top1(one(reference), one(candidate), [[0, 1]]) == 0.5

    def test_another_shape_is_wrong(self) -> None:
        reference = [*one(floats([0, 1])), *one(floats([0, 1]))]
        candidate = [*one(floats([0, 1])), *one(floats([0, 1], [0, 1]))]
        assert top1(reference, candidate, None) == 0.5

    def test_trailing_axes_of_one(self) -> None:
        scores = floats([0, 1, 0], [1, 0, 0])[:, :, None, None]
        assert top1(one(scores), one(scores), [[1, 0]]) == 1

    def test_no_batch_axis_and_bfloat16(self) -> None:
        scores = np.array([0, 1, 0]).astype(ml_dtypes.bfloat16)
        assert top1(one(scores), one(scores), [1]) == 1

    def test_which_output(self) -> None:
        right, other = floats([0, 1]), floats([1, 0])
        outputs: list[dict[str, NDArray[Any]]]
        for name in ("logits", "class_probs", "Scores", "output_0"):
            outputs = [{"features": other, name: right, "ids": np.array([0])}]
            assert top1(outputs, outputs, [1]) == 1
        outputs = [{"aux_logits": other, "logits": right}]
        assert top1(outputs, outputs, [1]) == 1
        with pytest.raises(CaseError, match=r"features .*embedding"):
            top1([{"features": right, "embedding": right}], [{}], None)
        with pytest.raises(CaseError, match="float output"):
            top1(one(np.array([1])), one(np.array([1])), None)

    def test_what_it_refuses(self) -> None:
        scores = one(floats([0, 1], [1, 0]))
        for labels in ([1], [[1, 2, 3]], [["cat", "dog"]]):
            with pytest.raises(CaseError, match="2 class numbers"):
                top1(scores, scores, labels)
        with pytest.raises(CaseError, match="3 labels for 1 samples"):
            top1(scores, scores, [1, 2, 3])
        with pytest.raises(CaseError, match="two classes"):
            top1(one(floats([1], [2])), one(floats([1], [2])), None)
        with pytest.raises(CaseError, match="two classes"):
            top1(one(np.float32(1)), one(np.float32(1)), None)
        with pytest.raises(CaseError, match="nothing to compare"):
            top1(one(np.zeros((0, 5), "f")), one(np.zeros((0, 5), "f")), None)


class TestConfidence:
    SURE = floats([0.99, 0.01], [0.2, 0.8])

    @pytest.mark.parametrize(
        ("of", "value"),
        [
            (SURE, 1.0),
            (floats([0.6, 0.4], [0.2, 0.8]), 0.6 / 0.99),  # the same class, far less sure of it
            (SURE / 2, 0.5),
            (floats([0.99, 0.01], [np.nan, 0.8]), 0.0),
            (floats([0.99, 0.01], [np.inf, 0.8]), 0.0),
            (floats([0.99, 0.01]), 0.0),
        ],
    )
    def test_by_hand(self, of: NDArray[np.float32], value: float) -> None:
        assert confidence(one(self.SURE), one(of), None) == pytest.approx(value)
        assert confidence(one(self.SURE), one(of), [[1, 1]]) == pytest.approx(value)

    def test_the_worst_sample_counts(self) -> None:
        other = floats([0.5, 0.5], [0.2, 0.8])
        many = one(self.SURE) * 9
        assert confidence(many, [*one(other), *many[1:]], None) == pytest.approx(0.5 / 0.99)

    def test_of_logits_the_softmax_is_compared(self) -> None:
        logits = floats([3, 1, -np.inf], [10, 20, 30])
        assert confidence(one(logits), one(logits + 1e-9), None) == pytest.approx(1)
        # Of labels that do not exclude each other, each is another one now.
        assert confidence(one(logits), one(logits + 5), None) == pytest.approx(0.7203, abs=1e-4)
        less = confidence(one(logits), one(logits - floats([1, 0, 0], [0, 0, 0])), None)
        assert less == pytest.approx((1 + np.exp(-2)) / (1 + np.exp(-1)))

    def test_among_improbable_classes_a_change_counts_by_the_largest(self) -> None:
        shares = floats(np.r_[0.03, np.full(97, 0.01)])
        assert confidence(one(shares), one(shares / 2), None) == pytest.approx(0.5)
        assert confidence(one(shares), one(0 * shares), None) == 0

    def test_rows_without_probabilities_in_fp32_are_left_out(self) -> None:
        for bad in ([np.nan, 0.5], [np.inf, 0.5]):
            reference = np.concatenate([self.SURE, floats(bad)])
            candidate = np.concatenate([floats([0.6, 0.4], [0.2, 0.8]), floats([0, 0])])
            assert confidence(one(reference), one(reference), None) == 1
            assert confidence(one(reference), one(candidate), None) == pytest.approx(0.6 / 0.99)

    def test_what_it_refuses(self) -> None:
        with pytest.raises(CaseError):
            confidence(one(np.zeros((0, 5), "f")), one(np.zeros((0, 5), "f")), None)


class TestMaskIou:
    def test_averages_over_samples_and_outputs(self) -> None:
        reference = [
            {"a": floats([0.9, 0.9, 0.1]), "b": floats([0.9])},
            {"a": floats([0, 0, 0]), "b": floats([0.5])},
        ]
        candidate = [
            {"a": floats([0.9, 0.1, 0.9]).astype(ml_dtypes.bfloat16), "b": floats([0.6])},
            {"a": floats([0, 0, 0]), "b": floats([0.51])},
        ]
        assert mask_iou(reference, candidate, None) == pytest.approx((1 / 3 + 1 + 0) / 3)

    def test_a_small_mask_that_is_lost_counts_as_much_as_a_large_one(self) -> None:
        masks = np.zeros((4, 1, 32, 32), np.float32)
        masks[:3, :, :24], masks[3, :, :3, :3] = 1, 1
        found = masks.copy()
        found[3] = 0
        assert mask_iou(one(masks), one(found), None) == 0.75
        samples, others = ([{"y": m[None]} for m in of] for of in (masks, found))
        assert mask_iou(samples, others, None) == 0.75

    def test_samples_without_a_mask_do_not_dilute_and_must_stay_so(self) -> None:
        samples = [*one(floats([1, 1])), *one(floats([0, 0])) * 9]
        half = [*one(floats([1, 0])), *samples[1:]]
        assert mask_iou(samples, half, None) == 0.5
        found = [samples[0], *one(floats([0, 1])), *samples[2:]]
        assert mask_iou(samples, found, None) == 0.5
        assert mask_iou(samples[1:], samples[1:], None) == 1

    def test_empty_masks_agree(self) -> None:
        assert mask_iou(one(floats([0.1])), one(floats([0.2])), None) == 1
        assert mask_iou(one(floats([0.1])), one(floats([0.9])), None) == 0

    def test_nan_is_outside(self) -> None:
        assert mask_iou(one(floats([1, 1])), one(floats([np.nan, 1])), None) == 0.5

    def test_another_shape_intersects_nothing(self) -> None:
        assert mask_iou(one(floats([1, 1])), one(floats([1, 1], [1, 1])), None) == 0

    @pytest.mark.parametrize(
        "label",
        [np.array([[True, False]]), np.array([[255, 0]], np.uint8), [1, 0], {"y": [1.0, 0.0]}],
    )
    def test_labels(self, label: object) -> None:
        outputs = one(floats([0.9, 0.1])[None, None])
        assert mask_iou(outputs, outputs, [label]) == 1

    def test_labels_that_do_not_fit(self) -> None:
        outputs = one(floats([0.9, 0.1]))
        for label in ([1, 0, 0], [[1], [0], [1]], ["a", "b"]):
            with pytest.raises(CaseError, match="label for output 'y'"):
                mask_iou(outputs, outputs, [label])
        with pytest.raises(CaseError, match="each of the outputs"):
            mask_iou(outputs, outputs, [{"z": [1, 0]}])
        two = [{"a": floats([1]), "b": floats([1])}]
        with pytest.raises(CaseError, match="outputs a, b"):
            mask_iou(two, two, [[1]])
        assert mask_iou(two, two, [{"a": [[1]], "b": [[0]]}]) == 0.5


def tiled(*rows: Any) -> NDArray[np.float32]:
    """Return an image whose every value is a square of 8 x 8 pixels."""
    return np.kron(floats(*rows), np.ones((8, 8), np.float32))


class TestPsnr:
    def test_by_hand(self) -> None:
        reference, candidate = one(tiled([0, 2, 1, 1])), one(tiled([0, 2, 1, 1.5]))
        expected = 10 * math.log10(4 / (0.25 / 4))
        assert psnr(reference, candidate, None) == pytest.approx(expected)
        # An equal sample beside it hides nothing, and is averaged with labels only.
        truth, found = reference * 2, [*candidate, *reference]
        assert psnr(truth, found, None) == pytest.approx(expected)
        labelled = psnr(found, found, [sample["y"] for sample in truth])
        assert labelled == pytest.approx((expected + 100) / 2)

    def test_a_bright_image_hides_no_dark_one(self) -> None:
        bright, dark, lost = tiled([0, 1]), tiled([0, 0.01]), tiled([0, 0])
        truth, found = [*one(bright), *one(dark)], [*one(bright), *one(lost)]
        assert psnr(truth, found, None) == pytest.approx(10 * math.log10(2))
        truth, found = (one(np.stack([bright, last])[:, None]) for last in (dark, lost))
        assert psnr(truth, found, None) == pytest.approx(10 * math.log10(2))

    def test_an_image_that_hardly_varies_has_the_peak_of_all(self) -> None:
        truth = [*one(tiled([0, 1])), *one(tiled([0.5, 0.501])), *one(tiled([0.5, 0.5]))]
        found = [truth[0], *one(tiled([0.501, 0.501])), *one(tiled([0.51, 0.51]))]
        assert psnr(truth, found, None) == pytest.approx(40, abs=1e-3)

    def test_cap_and_failures(self) -> None:
        reference = one(tiled([0, 1]))
        assert psnr(reference, one(tiled([0, 1]) + np.float32(1e-7)), None) == CAP_DB
        for broken in (tiled([0, np.nan]), tiled([0, np.inf]), tiled([0, 1], [0, 1])):
            assert psnr(reference, one(broken), None) == -math.inf
        assert psnr(one(tiled([1, 1])), one(tiled([1, np.nan])), None) == -math.inf

    def test_a_constant_target_is_left_out(self):
        flat, moved = tiled([1, 1]), tiled([1, 2])
        assert psnr(one(flat), one(moved), None) == 100
        both = [{"flat": flat, "y": tiled([0, 2])}]
        assert psnr(both, [{"flat": moved, "y": tiled([0, 1])}], None) < 10
        assert psnr(one(flat), one(flat), None) == CAP_DB

    def test_unknown_target_elements_are_left_out(self) -> None:
        reference = one(tiled([0, 1, np.nan, np.inf]))
        assert psnr(reference, reference, None) == CAP_DB
        with pytest.raises(CaseError, match="nothing to compare"):
            psnr(one(tiled([np.nan])), one(tiled([1])), None)

    def test_labels_are_the_target_and_the_worst_output_counts(self) -> None:
        outputs, label = one(tiled([0.5, 1])), tiled([0, 1])
        value = psnr(outputs, outputs, [label])
        assert value == pytest.approx(10 * math.log10(1 / 0.125))
        both = [{"good": tiled([0, 1]), "bad": tiled([0.5, 1])}]
        assert psnr(both, both, [{"good": label, "bad": label}]) == value

    @pytest.mark.parametrize("shape", [(1, 10), (64, 7), (1, 1, 8000), (10,)])
    def test_rows_of_numbers_are_no_image(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(CaseError, match=r"psnr needs an image or a map .* only y "):
            psnr(one(np.zeros(shape)), one(np.zeros(shape)), None)


class TestEpe:
    def test_by_hand(self) -> None:
        reference = np.zeros((1, 2, 2, 2), np.float32)
        candidate = reference.copy()
        candidate[0, :, 0, 0] = 3, 4
        assert epe(one(reference), one(reference), None) == 0
        assert epe(one(reference), one(candidate), None) == -1.25
        assert epe(one(reference), one(reference), [candidate[0]]) == -1.25

    def test_unknown_pixels_are_left_out_and_other_nans_fail(self) -> None:
        target = np.zeros((2, 1, 2), np.float32)
        target[0, 0, 0] = np.nan
        found = np.zeros((2, 1, 2), np.float32)
        found[1, 0, 0] = np.inf
        assert epe(one(target), one(found), None) == 0
        found[1, 0, 1] = np.nan
        assert epe(one(target), one(found), None) == -math.inf
        assert epe(one(target), one(np.zeros((2, 2, 2), "f")), None) == -math.inf
        with pytest.raises(CaseError, match="nothing to compare"):
            epe(one(target * np.nan), one(found), None)

    def test_other_outputs_are_ignored_but_one_must_be_flow(self) -> None:
        flow = np.zeros((1, 2, 4, 4), np.float32)
        outputs = [{"flow": flow, "confidence": np.zeros((1, 1, 4, 4), np.float32)}]
        assert epe(outputs, outputs, [flow + 1]) == pytest.approx(-math.sqrt(2))
        with pytest.raises(CaseError, match=r"flow output .*\[1, 3, 4, 4\]"):
            epe(one(np.zeros((1, 3, 4, 4), "f")), one(flow), None)


RNG = np.random.default_rng(8)
MAPS = arrays(np.int64, (1, 8, 8), elements=st.integers(0, 3))


def scores(classes: NDArray[Any]) -> NDArray[np.float64]:
    """Return scores [N, 4, height, width] that are largest at the classes."""
    return np.stack([1.0 * (classes == kind) for kind in range(4)], axis=1)


def brute(target: NDArray[Any], found: NDArray[Any]) -> float:
    shares = []
    for kind in set(target.ravel().tolist()):
        pairs = list(zip(target.ravel() == kind, found.ravel() == kind, strict=True))
        shares.append(sum(a and b for a, b in pairs) / sum(a or b for a, b in pairs))
    return float(np.mean(shares))


@given(MAPS, MAPS)
def test_mean_iou_is_the_average_over_the_classes_of_the_target(target, found):
    expected = brute(target, found)
    assert mean_iou([{"y": target}], [{"y": found}], None) == pytest.approx(expected)
    truth, guess = [{"y": scores(target)}], [{"y": scores(found)}]
    assert mean_iou(truth, guess, None) == pytest.approx(expected)
    assert mean_iou(truth, guess, [found]) == 1


@given(arrays(np.int64, (3, 8, 8), elements=st.integers(0, 3)), MAPS)
def test_mean_iou_is_averaged_over_images(target, found):
    found = np.broadcast_to(found, target.shape)
    counts = [(a, b) for a, b in zip(target, found, strict=True) if np.ptp(a) or (a != b).any()]
    expected = pytest.approx(np.mean([brute(a, b) for a, b in counts]) if counts else 1)
    assert mean_iou([{"y": target}], [{"y": found}], None) == expected
    truth, guess = ([{"y": a[None]} for a in of] for of in (target, found))
    assert mean_iou(truth, guess, None) == expected
    every = pytest.approx(np.mean([brute(a, b) for a, b in zip(target, found, strict=True)]))
    assert mean_iou(guess, guess, list(target)) == every


def test_a_region_that_one_image_loses_is_seen():
    target = np.zeros((100, 1, 16, 16), int)
    target[0, :, :12], target[1, :, :2, :2] = 1, 1
    found = target.copy()
    found[1] = 0
    truth, guess = ([{"y": a} for a in of] for of in (target, found))
    assert mean_iou(truth, guess, None) == pytest.approx((1 + 252 / 256 / 2) / 2)


@given(MAPS)
def test_equal_maps_give_1_and_nan_lowers(target):
    assert mean_iou([{"y": target}], [{"y": target}], None) == 1
    broken = scores(target)
    broken[0, 1, :4] = np.nan
    assert mean_iou([{"y": scores(target)}], [{"y": broken}], None) < 1
    assert mean_iou([{"y": target}], [{"y": target[:, :4]}], None) == 0


def test_labels_that_are_no_class_are_left_out():
    target = np.array([[[0, 1, 255, -1]] * 4])
    maps = scores(np.array([[[0, 1, 2, 3]] * 4]))
    assert mean_iou([{"y": maps}], [{"y": maps}], [target]) == 1
    with pytest.raises(CaseError, match="one class for each place"):
        mean_iou([{"y": maps}], [{"y": maps}], [target[..., :2]])


def test_mean_iou_needs_scores_of_pixels():
    with pytest.raises(CaseError, match="needs scores"):
        mean_iou([{"y": np.zeros((1, 9))}], [{"y": np.zeros((1, 9))}], None)


def test_pixels_of_one_class_are_no_evidence():
    zeros, ones = {"y": scores(np.zeros((1, 8, 8)))}, {"y": scores(np.ones((1, 8, 8)))}
    assert evidence_of("mean-iou", mean_iou([zeros], [zeros], None)) == (0, "pixels")
    assert evidence_of("mean-iou", mean_iou([zeros, ones], [zeros, ones], None)) == (128, "pixels")


def test_tokens_are_integers_or_the_largest_of_scores():
    target, found = np.array([[3, 1, 4, 1]]), np.array([[3, 1, 4, 2]])
    assert token_agreement([{"y": target}], [{"y": found}], None) == 0.75
    truth, guess = ([{"y": np.eye(6)[tokens]}] for tokens in (target, found))
    assert token_agreement(truth, guess, None) == 0.75
    assert token_agreement(truth, guess, [[[3, 1, -100, 2]]]) == 1
    with pytest.raises(CaseError, match="one class for each place"):
        token_agreement(truth, guess, [[1, 2]])


def test_what_only_one_sequence_has_is_wrong():
    target = np.arange(8)[None]
    for length, agreement in ((8, 1), (6, 0.75), (16, 0.5), (0, 0)):
        found = np.arange(length)[None]
        assert token_agreement([{"y": target}], [{"y": found}], None) == agreement
    assert token_agreement([{"y": target}], [{"y": target[0]}], None) == 0


def test_a_token_with_nan_is_wrong():
    target = np.eye(6)[[[3, 1, 4, 1]]]
    found = target.copy()
    found[0, 2, 5] = np.nan
    assert token_agreement([{"y": target}], [{"y": found}], None) == 0.75
    nothing = np.full_like(target, np.nan)
    assert token_agreement([{"y": target}], [{"y": nothing}], None) == 0


def test_blanks_that_both_have_do_not_count():
    target = np.zeros((2, 20), int)
    target[:, ::4] = np.arange(1, 11).reshape(2, 5)  # 10 characters, 30 blanks
    truth = [{"y": np.eye(12)[row[None]]} for row in target]

    def agreement(tokens):
        guess = [{"y": np.eye(12)[row[None]]} for row in tokens]
        labelled = token_agreement(guess, guess, [row[None] for row in target])
        assert labelled == token_agreement(truth, guess, None)
        return labelled

    wrong, lost, added = (target.copy() for _ in range(3))
    wrong[0, 4], lost[0, 4], added[0, 1] = 11, 0, 11
    assert [agreement(each) for each in (target, wrong, lost)] == [1, 0.9, 0.9]
    assert agreement(added) == pytest.approx(10 / 11)
    assert evidence_of("token-agreement", token_agreement(truth, truth, None)) == (10, "tokens")
    blank = [{"y": np.zeros((1, 9), int)}]
    assert token_agreement(blank, blank, None) == 1
    assert token_agreement(blank, [{"y": np.ones((1, 9), int)}], None) == 0


@pytest.mark.parametrize("shape", [(1, 10), (1, 7), (10,), (2, 10, 1)])
def test_rows_of_scores_are_no_tokens(shape):
    with pytest.raises(CaseError, match=r"token-agreement needs integers or scores .* only y "):
        token_agreement([{"y": np.zeros(shape)}], [{"y": np.zeros(shape)}], None)


@given(st.permutations(range(5)))
def test_the_order_of_samples_does_not_matter(order):
    truth = [{"y": RNG.integers(0, 3, (1, 8, 8))} for _ in range(5)]
    guess = [{"y": RNG.integers(0, 3, (1, 8, 8))} for _ in range(5)]
    for metric in (mean_iou, token_agreement):
        again = metric([truth[i] for i in order], [guess[i] for i in order], None)
        assert again == pytest.approx(metric(truth, guess, None))


def test_confidence_leaves_out_rows_without_a_probability():
    rows = [[-np.inf] * 3, [np.nan, 0, 1], [np.inf, 0, 1], [-np.inf, 0, 1]]
    one = {"logits": np.array(rows, np.float32)}
    for other in (one, {"logits": one["logits"].copy()}):
        assert confidence([one], [other], None) == 1.0
