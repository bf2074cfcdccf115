"""Token agreement and mean IoU, against both counted one by one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.metrics.labelling import classes_in, mean_iou, token_agreement, tokens_in

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


def test_how_many_classes_there_are():
    assert classes_in([{"y": np.zeros((1, 8, 8), int)}]) == 1
    assert classes_in([{"y": scores(np.zeros((1, 8, 8)))}, {"y": scores(np.ones((1, 8, 8)))}]) == 2


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
    assert tokens_in(truth, None) == 10
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
