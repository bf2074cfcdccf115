"""Bounds on the share of inputs that fail."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom, binomtest

from halfwise.metrics import (
    evidence_of,
    resolve,
    settled_metric,
    takes_any_sample,
    task_scores,
    untested_outputs,
)
from halfwise.metrics.kinds import recognise
from halfwise.metrics.task import token_agreement
from halfwise.metrics.untested import (
    CONFIDENCE,
    failure_bound,
    may_fail,
    needed,
    untested_metric,
    upper_bound,
)
from halfwise.records import Criterion, Unjudged
from tests.unit.metrics import scenes
from tests.unit.metrics.looked import DISC, IMAGE, normal, softmax, unit_rows

DRAWN = np.random.default_rng(3)
NAN, INF = np.full((3, 4), np.nan, np.float32), np.full((3, 4), np.inf, np.float32)
NOTHING = np.zeros((3, 0, 4), np.float32)
COUNTS = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def rows(count=4, size=10):
    return DRAWN.normal(size=(count, size)).astype(np.float32)


def outputs(arrays, name="y"):
    return [{name: np.asarray(array)} for array in arrays]


def kinds(found):
    return {one.name: one.kind for one in found}


@pytest.mark.parametrize(
    ("arrays", "kind"),
    [
        (NAN, "non-finite"),
        (INF, "non-finite"),
        (NOTHING, "empty"),
        (np.zeros((3, 4), np.float32), "zeros"),
        (np.zeros((3, 4), bool), "zeros"),
        (np.zeros((3, 0), np.int64), "empty"),
    ],
    ids=["nan", "inf", "nothing", "zeros", "false", "no-classes"],
)
def test_an_output_that_nothing_tests_is_named(arrays, kind):
    (found,) = untested_outputs(Criterion(), outputs(arrays))
    assert found == Unjudged(kind=kind, name="y")
    beside = [{"y": a, "other": b} for a, b in zip(arrays, rows(3), strict=True)]
    # Beside an output that is tested, integers may all be 0 by right: a detector of one class.
    by_right = kind == "zeros" and np.asarray(arrays).dtype.kind in "bi"
    assert kinds(untested_outputs(Criterion(), beside)) == ({} if by_right else {"y": kind})


def test_one_finite_element_and_one_row_are_tested():
    some = NAN.copy()
    some[1, 2] = 1
    assert untested_outputs(Criterion(), outputs(some)) == ()
    assert untested_outputs(Criterion(), outputs([np.zeros((0, 4)), np.ones((1, 4))])) == ()
    assert untested_outputs(Criterion(), []) == ()


@pytest.mark.parametrize(
    ("criterion", "told"),
    [
        (Criterion(), False),
        (Criterion(max_abs=0.1), False),
        (Criterion(max_abs=100.0), True),
        (Criterion(max_abs=100.0, snr_db=20), False),
        (Criterion(rel_max=1.0), True),
        (Criterion(snr_db=-1.0), True),
        (Criterion(cosine=0.0), True),
        (Criterion(agreement=0.0), False),
        (Criterion(metric="psnr"), False),
    ],
)
def test_thresholds_that_zeros_pass_test_nothing(criterion, told):
    references = outputs(rows())
    found = untested_outputs(criterion, references)
    assert kinds(found) == ({"y": "zeros"} if told else {})
    if told:
        assert found[0].reference == max(np.abs(r["y"]).max() for r in references)


@pytest.mark.parametrize(
    ("span", "criterion", "told"),
    [
        (3e-3, Criterion(), True),
        (5e-3, Criterion(), False),
        (5e-3, Criterion(max_abs=3e-3), True),
        (5e-3, Criterion(max_abs=2e-3), False),
        (0.1, Criterion(rel_max=0.1), True),
        (1e-4, Criterion(), False),
        (3e-3, Criterion(snr_db=80), False),
    ],
)
def test_values_in_whose_place_a_constant_passes_are_not_judged(span, criterion, told):
    values = np.linspace(1, 1 + span, 40).reshape(4, 10)
    found = untested_outputs(criterion, outputs(values))
    flat = Unjudged(kind="flat", name="y", reference=1, other=1 + span)
    assert found == ((flat,) if told else ())
    # Of few values nothing is known, and of integers all have to agree.
    assert untested_outputs(criterion, outputs(values[:1, :7])) == ()
    assert untested_outputs(criterion, outputs([[1000, 1001] * 9])) == ()


def fitting(references):
    return [int(outputs["y"].argmax()) for outputs in references]


@pytest.mark.parametrize("name", ["top1", "mask-iou", "snr"])
def test_a_metric_of_outputs_that_vary_tests_them(name):
    references = outputs(rows(8))
    for drop in (0.01, 0.3):
        criterion = Criterion(metric=name, metric_drop=drop)
        assert untested_metric(criterion, resolve(name), references, None) == ()


def test_classes_that_are_all_the_first_are_no_zeros():
    references = outputs(np.eye(1, 10, dtype=np.float32)[[0, 0, 0]])
    criterion = Criterion(metric="top1", metric_drop=0.01)
    assert untested_metric(criterion, resolve("top1"), references, None) == ()
    assert takes_any_sample(criterion, resolve("top1"), references, None)
    assert not takes_any_sample(criterion, resolve("top1"), outputs(np.eye(10)), None)


def test_masks_that_never_cross_the_threshold_are_not_judged():
    criterion = Criterion(metric="mask-iou", metric_drop=0.01)
    references = outputs(-1 - np.abs(rows()))
    (found,) = untested_metric(criterion, resolve("mask-iou"), references, None)
    assert (found.kind, found.name) == ("absent", "mask-iou")


def test_outputs_of_psnr_without_a_peak_are_named():
    criterion = Criterion(metric="psnr", metric_drop=60)
    flat = np.full(10, 0.5, np.float32)
    references = [{"y": np.outer(row, row), "flat": flat} for row in rows()]
    assert untested_metric(criterion, resolve("psnr"), references, None) == (
        Unjudged(kind="constant", name="flat"),
    )


@pytest.mark.parametrize("shift", [1, -1, 5])
def test_labels_with_which_fp32_has_nothing_right_judge_nothing(shift):
    references = outputs(rows(12))
    criterion = Criterion(metric="top1", metric_drop=0.01)
    labels = fitting(references)
    assert untested_metric(criterion, resolve("top1"), references, labels) == ()
    (found,) = untested_metric(
        criterion, resolve("top1"), references, [(label + shift) % 10 for label in labels]
    )
    assert (found.kind, found.reference, found.labelled) == ("metric", 0, True)


def test_labels_with_which_fp32_guesses_judge_nothing():
    references = outputs(np.eye(4, dtype=np.float32)[[1, 2, 3, 0] * 4])
    criterion = Criterion(metric="top1", metric_drop=0.01)
    labels = [1, 2, 3, 0] + [3, 3, 1, 1] * 3
    (found,) = untested_metric(criterion, resolve("top1"), references, labels)
    assert (found.kind, found.reference, found.other) == ("guessing", 0.25, 0.25)
    assert untested_metric(criterion, resolve("top1"), references[:4], labels[:4]) == ()


def test_metrics_that_see_nothing_are_not_judged():
    references = outputs(rows())

    def blind(*_):
        return 0.5

    def anything(_, candidate, __):
        return float(any(outputs["y"].any() for outputs in candidate))

    for function in (blind, anything):
        assert kinds(untested_metric(Criterion(metric="m.py:f"), function, references, None)) == {
            "m.py:f": "metric"
        }
    assert untested_metric(Criterion(metric="m.py:f"), None, references, None) == ()
    assert takes_any_sample(Criterion(metric="m.py:f"), blind, references, None)
    assert not takes_any_sample(Criterion(metric="m.py:f"), blind, references[:1], None)


@pytest.mark.parametrize("labels", [None, [0, 0, 0]])
def test_a_metric_of_zeros_alone_tests_nothing(labels):
    references = outputs(np.zeros((3, 4), np.float32))
    found = untested_metric(Criterion(metric="top1"), resolve("top1"), references, labels)
    assert found == (Unjudged(kind="zeros", name="y"),)


@pytest.mark.parametrize(
    ("failing", "judged", "bound"), [(0, 10, 0.2589), (0, 59, 0.0495), (3, 3, 1), (0, 1, 0.95)]
)
def test_known_bounds(failing, judged, bound):
    assert upper_bound(failing, judged) == pytest.approx(bound, abs=1e-4)


@given(COUNTS)
def test_it_is_that_of_clopper_and_pearson(counts):
    failing, judged = counts
    exact = binomtest(failing, judged, alternative="less").proportion_ci(CONFIDENCE, "exact")
    assert upper_bound(failing, judged) == pytest.approx(exact.high, rel=1e-6)


@pytest.mark.parametrize(
    ("failing", "share", "fewest"), [(0, 0.01, 299), (0, 0.05, 59), (7, 0.05, 260), (7, 0.03, 436)]
)
def test_how_many_samples_show_a_share(failing, share, fewest):
    assert needed(failing, share) == fewest
    assert upper_bound(failing, fewest) <= share < upper_bound(failing, fewest - 1)
    assert may_fail(fewest, share) == failing
    assert may_fail(fewest - 1, share) == max(0, failing - 1)


@given(st.floats(0, 1), st.integers(1, 60))
def test_it_holds_as_often_as_it_says(share, judged):
    missed = sum(
        binom.pmf(failing, judged, share)
        for failing in range(judged + 1)
        if upper_bound(failing, judged) < share
    )
    assert missed <= 1 - CONFIDENCE + 1e-9


@pytest.mark.parametrize("causes", [1, 5, 20, 100, 10_000])
def test_it_holds_where_a_search_learns_nothing_but_what_joined(causes):
    """Each failing input has one of equal causes; the samples that have it join, and it is gone."""
    rng, judged, rate = np.random.default_rng(causes), 60, 0.2
    missed = 0
    for _ in range(2000):
        hit = rng.integers(causes, size=rng.binomial(judged, rate))
        # One sample of each cause joins; others of it pass from then on.
        joined = len(set(hit.tolist()))
        true = rate * (1 - joined / causes)
        missed += failure_bound((), judged - joined, joined).upper < true
    assert missed <= 0.05 * 2000


def test_samples_that_joined_raise_the_bound():
    bound = failure_bound(("a",), 20, 10)
    assert (bound.judged, bound.failing, bound.joined) == (20, 1, 10)
    assert bound.upper == upper_bound(11, 30) > upper_bound(1, 20)


def test_boxes_are_counted_as_fp32_detects_them() -> None:
    samples = [{"y": scenes.joined()}, {"y": scenes.joined()}]
    recognised = recognise(samples, scenes.INPUTS)
    (score,) = task_scores(recognised, samples, samples)
    assert (score.evidence, score.unit) == (6, "boxes")  # a fourth box has a score of 0.1
    nothing = [{"y": scenes.joined() * 0}]
    (score,) = task_scores(recognised, nothing, nothing)
    assert (score.evidence, score.passed) == (0, False)
    named = Criterion(metric="detection-f1", metric_drop=0.01, recognised=recognised)
    metric = settled_metric(named)
    assert metric is not None
    assert evidence_of("detection-f1", metric(samples, samples, None)) == (6, "boxes")


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


def test_a_metric_of_ones_own_tells_nothing() -> None:
    assert evidence_of("mine.py:f", 1.0) == (None, None)


def test_tokens_that_labels_leave_out_do_not_count() -> None:
    samples = [{"tokens": np.arange(4)[None]}]
    assert evidence_of("token-agreement", token_agreement(samples, samples, [[0, 1, -1, -1]])) == (
        2,
        "tokens",
    )


@pytest.mark.parametrize(
    ("swing", "criterion", "taken"),
    [
        (2e-4, Criterion(), True),
        (0.5, Criterion(), False),
        (1e-3, Criterion(snr_db=40), True),
        (1e-3, Criterion(snr_db=80), False),
        (1e-3, Criterion(max_abs=1e-5), False),
    ],
)
def test_without_a_metric_samples_that_hardly_differ_take_one_another(
    swing: float, criterion: Criterion, taken: bool
) -> None:
    noise = np.random.default_rng(1).normal(size=(8, 5))
    samples = [{"y": 1 + swing * each} for each in noise]
    assert takes_any_sample(criterion, None, samples, None) is taken


@pytest.mark.parametrize(
    "arrays",
    [
        (np.ones(2), np.ones(3)),
        (np.arange(4), np.arange(4)[::-1]),
        (np.empty((0, 4)), np.empty((0, 4))),
        (np.full(3, np.inf), -np.full(3, np.inf)),
        (np.ones(2),),
    ],
)
def test_what_is_empty_or_differs_takes_no_other_sample(arrays: tuple[np.ndarray, ...]) -> None:
    assert not takes_any_sample(Criterion(), None, [{"y": array} for array in arrays], None)
