"""Streaming measures: equal to pooled numpy, sound early rejection, non-finite rules."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.formats import CHUNK
from halfwise.metrics import (
    Excess,
    OutputMeasure,
    Outputs,
    OutputTotals,
    effective,
    is_default,
    totals,
)
from halfwise.records import Criterion, OutputError
from tests.unit.metrics.pairs import Pairs, criteria, float_pairs, integer_pairs


def f32(values: Any) -> NDArray[np.float32]:
    return np.asarray(values, dtype=np.float32)


def i64(values: Any) -> NDArray[np.int64]:
    return np.asarray(values, dtype=np.int64)


def measure(pairs: Pairs, criterion: Criterion | None = None) -> OutputError:
    one = OutputMeasure(totals([{"y": reference} for reference, _ in pairs])["y"])
    for index, (reference, candidate) in enumerate(pairs):
        one.update(reference, candidate, f"s{index}")
    return one.result(criterion or Criterion())


def excess(pairs: Pairs, criterion: Criterion | None = None) -> Excess:
    one = Excess(criterion or Criterion(), totals([{"y": reference} for reference, _ in pairs]))
    for reference, candidate in pairs:
        one.update({"y": reference}, {"y": candidate})
    return one


@given(float_pairs())
def test_streaming_equals_pooled_numpy(pairs: Pairs) -> None:
    reference = np.concatenate([r.ravel() for r, _ in pairs]).astype(np.float64)
    candidate = np.concatenate([c.ravel() for _, c in pairs]).astype(np.float64)
    assume(reference.size)
    error = np.abs(candidate - reference)
    result = measure(pairs)

    assert result.max_abs == error.max()
    assert result.mean_abs == pytest.approx(error.mean(), rel=1e-12)
    if result.max_abs == 0:
        assert (result.rel_max, result.snr_db, result.cosine) == (0, math.inf, 1)
    elif np.abs(reference).max() == 0:
        assert (result.rel_max, result.snr_db) == (math.inf, -math.inf)
    else:
        assert result.rel_max == error.max() / np.abs(reference).max()
        snr = 10 * np.log10((reference**2).sum() / (error**2).sum())
        assert result.snr_db == pytest.approx(snr, rel=1e-9, abs=1e-9)
        norms = np.linalg.norm(reference) * np.linalg.norm(candidate)
        cosine = reference @ candidate / norms if norms else 0.0
        assert result.cosine == pytest.approx(cosine, abs=1e-12)
    assert result.agreement is None
    assert result.nonfinite == 0
    largest = [np.abs(c.astype(np.float64) - r).max(initial=0) for r, c in pairs]
    assert largest[int(result.worst_sample[1:])] == max(largest)


@given(float_pairs(special=True) | integer_pairs(), criteria)
def test_excess_bounds_the_final_result_and_agrees_with_the_verdict(
    pairs: Pairs, criterion: Criterion
) -> None:
    running = Excess(criterion, totals([{"y": reference} for reference, _ in pairs]))
    before = 0.0
    for reference, candidate in pairs:
        own = running.update({"y": reference}, {"y": candidate})
        assert own <= running.value
        assert before <= running.value
        before = running.value
    assert running.value <= running.final()
    assert not math.isnan(running.final())
    assert (running.final() > 1) == (not measure(pairs, criterion).passed)


@given(float_pairs(special=True), criteria)
def test_passed_means_that_every_reported_measure_keeps_its_threshold(
    pairs: Pairs, criterion: Criterion
) -> None:
    result = measure(pairs, criterion)
    holds = [result.nonfinite == 0]
    if criterion.metric is None:
        rules = effective(criterion)
        if rules.max_abs is not None:
            holds.append(result.max_abs <= rules.max_abs)
        if rules.rel_max is not None:
            holds.append(result.rel_max <= rules.rel_max)
        if rules.snr_db is not None:
            assume(abs(result.snr_db - rules.snr_db) > 1e-9)
            holds.append(result.snr_db >= rules.snr_db)
        if rules.cosine is not None:
            assume(result.cosine == 1 or not abs(result.cosine - rules.cosine) < 1e-11)
            holds.append(result.cosine >= rules.cosine)
    assert result.passed == all(holds)


@given(float_pairs(), st.floats(-0.5, 0.9999), st.data())
def test_the_cosine_bound_holds_whatever_follows(
    pairs: Pairs, required: float, data: st.DataObject
) -> None:
    assume(len(pairs) > 1)
    running = Excess(Criterion(cosine=required), totals([{"y": r} for r, _ in pairs]))
    running.update({"y": pairs[0][0]}, {"y": pairs[0][1]})
    bound = running.value
    for reference, _ in pairs[1:]:
        # Scaled copies of the reference are the best that can follow.
        factor = np.float32(data.draw(st.floats(0, 4, width=32)))
        running.update({"y": reference}, {"y": np.asarray(reference * factor)})
    # Not of `final`, which includes the bound.
    cosine = running._seen["y"].cosine
    assert bound <= math.sqrt(max(0.0, 1 - cosine) / (1 - required)) * (1 + 1e-9)


@given(integer_pairs())
def test_integers_are_judged_by_pooled_agreement(pairs: Pairs) -> None:
    reference = np.concatenate([r.ravel() for r, _ in pairs])
    candidate = np.concatenate([c.ravel() for _, c in pairs])
    # No float threshold matters, however strict.
    result = measure(pairs, Criterion(max_abs=0.0, snr_db=200.0, cosine=1.0))
    assert result.agreement == (reference == candidate).mean()
    assert result.passed == ((reference == candidate).mean() >= 0.99)
    exact = [abs(int(a) - int(b)) for a, b in zip(reference, candidate, strict=True)]
    assert result.max_abs == float(max(exact))


@pytest.mark.parametrize("required", [0.5, 0.7, 0.8, 0.9])
def test_an_agreement_that_equals_the_threshold_passes(required: float) -> None:
    reference = np.arange(10)
    wrong = round(10 * (1 - required))
    candidate = np.where(reference < wrong, -1, reference)
    assert measure([(reference, candidate)], Criterion(agreement=required)).passed
    candidate = np.where(reference < wrong + 1, -1, reference)
    assert not measure([(reference, candidate)], Criterion(agreement=required)).passed


def test_agreement_of_one_allows_no_mismatch() -> None:
    reference = np.arange(1000)
    assert excess([(reference, reference)], Criterion(agreement=1.0)).final() == 0
    assert excess([(reference, reference + 1)], Criterion(agreement=1.0)).value == math.inf


@pytest.mark.parametrize("criterion", [Criterion(), Criterion(metric="top1"), Criterion(snr_db=-9)])
@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (1.0, math.nan),
        (1.0, math.inf),
        (math.nan, 1.0),
        (math.inf, 1.0),
        (math.inf, -math.inf),
        (math.nan, math.inf),
    ],
)
def test_a_nonfinite_mismatch_fails_always(
    criterion: Criterion, reference: float, candidate: float
) -> None:
    pairs: Pairs = [(f32([5, reference, 5]), f32([5, candidate, 5]))]
    result = measure(pairs, criterion)
    assert (result.nonfinite, result.passed) == (1, False)
    assert result.max_abs == result.rel_max == result.mean_abs == math.inf
    assert result.snr_db == -math.inf
    assert math.isnan(result.cosine)
    assert excess(pairs, criterion).value == math.inf


def test_equal_nonfinite_values_pass() -> None:
    values = f32([1, np.nan, np.inf, -np.inf])
    result = measure([(values, values.copy())])
    assert (result.passed, result.nonfinite, result.max_abs, result.cosine) == (True, 0, 0.0, 1.0)
    assert (result.reference.nonfinite, result.reference.elements) == (3, 4)


@pytest.mark.parametrize(
    "reference", [np.zeros((2, 3), np.float32), np.zeros((0, 3)), np.zeros((2, 3), np.int64)]
)
def test_another_shape_fails_unless_a_metric_decides(reference: NDArray[Any]) -> None:
    fine = np.ones((1, 3), reference.dtype)
    pairs: Pairs = [(fine, fine), (reference, np.zeros((4, 3), reference.dtype))]
    result = measure(pairs)
    assert not result.passed
    assert result.max_abs == result.rel_max == result.mean_abs == math.inf
    assert (result.snr_db, result.nonfinite, result.worst_sample) == (-math.inf, 0, "s1")
    assert result.agreement == (0.0 if reference.dtype == np.int64 else None)
    for criterion in (Criterion(), Criterion(snr_db=-100), Criterion(cosine=-1)):
        assert excess(pairs, criterion).value == math.inf
    assert measure(pairs, Criterion(metric="m.py:f")).passed
    assert excess(pairs, Criterion(metric="m.py:f")).final() == 0


def test_zero_reference() -> None:
    zero = np.zeros(4, np.float32)
    assert measure([(zero, zero)]).rel_max == 0
    result = measure([(zero, zero + np.float32(1e-6))])
    assert (result.rel_max, result.snr_db, result.cosine) == (math.inf, -math.inf, 0.0)
    assert not result.passed
    assert measure([(zero, zero + np.float32(1e-6))], Criterion(max_abs=1e-5)).passed


def test_nothing_to_measure() -> None:
    empty = np.zeros((0, 3), np.float32)
    nothing = OutputMeasure(OutputTotals(0.0, 0.0, 0)).result(Criterion())
    for result in (nothing, measure([(empty, empty)])):
        assert result.passed
        assert (result.max_abs, result.mean_abs, result.snr_db) == (0, 0, math.inf)
    assert Excess(Criterion(), {}).final() == 0
    assert excess([(empty, empty)], Criterion(cosine=1.0, snr_db=300)).final() == 0


def test_strings_are_judged_by_agreement() -> None:
    words = np.array(["cat", "dog", "cat", "bird"], dtype=object)
    result = measure([(words, np.array(["cat", "dog", "dog", "bird"], dtype=object))])
    assert (result.agreement, result.passed, result.max_abs) == (0.75, False, 1.0)
    assert measure([(words, words.copy())]).passed


def test_measures_by_hand() -> None:
    pairs: Pairs = [
        (f32([3, 4]), np.array([3, 4.5], np.float16)),
        (f32([0, 0]), np.array([0, 0.5]).astype(ml_dtypes.bfloat16)),
    ]
    result = measure(pairs)
    assert (result.max_abs, result.rel_max, result.mean_abs) == (0.5, 0.125, 0.25)
    assert result.worst_sample == "s0"
    assert result.snr_db == pytest.approx(10 * math.log10(25 / 0.5))
    assert result.cosine == pytest.approx(27 / math.sqrt(25 * (9 + 4.5**2 + 0.25)))
    assert not result.passed
    for criterion, passed in [
        (Criterion(max_abs=0.5), True),
        (Criterion(max_abs=0.49), False),
        (Criterion(rel_max=0.125), True),
        (Criterion(rel_max=0.124), False),
        (Criterion(snr_db=16.9), True),
        (Criterion(snr_db=17.0), False),
        (Criterion(cosine=0.9942), True),
        (Criterion(cosine=0.9943), False),
        (Criterion(max_abs=0.5, rel_max=0.1), False),
        (Criterion(metric="top1"), True),
    ]:
        assert measure(pairs, criterion).passed == passed, criterion


def test_totals_of_more_samples_stand_in_for_the_largest_reference() -> None:
    one = OutputMeasure(OutputTotals(100.0, 1e4, 1))
    one.update(f32([1]), f32([1.5]), "a")
    assert one.result(Criterion()).rel_max == 0.005
    assert one.result(Criterion()).passed


def test_the_worst_sample_of_several_nonfinite_ones_has_the_most() -> None:
    one = np.ones(4, np.float32)
    bad = f32([np.nan, np.nan, 1, 1])
    worse = f32([np.nan, np.nan, np.nan, 1])
    assert measure([(one, one), (one, bad), (one, worse), (one, bad)]).worst_sample == "s2"


def test_the_worst_sample_of_a_discrete_output_has_the_most_mismatches() -> None:
    ids = np.arange(4)
    assert measure([(ids, np.add(ids, [0, 0, 0, 900])), (ids, ids[::-1])]).worst_sample == "s1"


def test_large_arrays_go_chunk_by_chunk() -> None:
    rng = np.random.default_rng(3)
    reference = rng.standard_normal(3 * CHUNK + 5).astype(np.float32)
    candidate = reference + np.float32(1e-3) * rng.standard_normal(reference.size).astype("f")
    candidate[-1] += 1
    error = candidate.astype(np.float64) - reference
    result = measure([(reference, candidate)], Criterion(snr_db=55, cosine=0.9999))
    assert result.max_abs == np.abs(error).max()
    assert result.mean_abs == pytest.approx(np.abs(error).mean(), rel=1e-12)
    snr = 10 * math.log10((reference.astype(np.float64) ** 2).sum() / (error**2).sum())
    assert result.snr_db == pytest.approx(snr, rel=1e-12)
    candidate[CHUNK] = np.nan
    assert measure([(reference, candidate)]).nonfinite == 1


def test_huge_float64_values_do_not_crash() -> None:
    reference = np.array([1e300, -1e300])
    for criterion in (Criterion(), Criterion(snr_db=10), Criterion(cosine=0.9)):
        result = measure([(reference, -reference)], criterion)
        assert (result.passed, result.nonfinite) == (False, 0)
        assert excess([(reference, -reference)], criterion).final() > 1


def test_the_default_tolerance() -> None:
    assert effective(Criterion()).rel_max == 1e-2
    assert is_default(Criterion(agreement=0.5))
    for criterion in (Criterion(max_abs=1), Criterion(metric="top1"), Criterion(cosine=0.9)):
        assert effective(criterion) == criterion
        assert not is_default(criterion)


def test_excess_by_hand() -> None:
    pairs: Pairs = [
        (f32([10, 0]), f32([10, 0.05])),
        (f32([0, 0]), f32([0, 0.2])),
    ]
    one = Excess(Criterion(rel_max=0.01), totals([{"y": r} for r, _ in pairs]))
    assert one.update({"y": pairs[0][0]}, {"y": pairs[0][1]}) == pytest.approx(0.5)
    assert one.update({"y": pairs[1][0]}, {"y": pairs[1][1]}) == pytest.approx(2.0)
    assert one.value == one.final() == pytest.approx(2.0)
    # snr_db: the noise of both samples adds up; 40 dB against 10 allow an amplitude of 0.1.
    snr = excess(pairs, Criterion(snr_db=40.0))
    assert snr.final() == pytest.approx(math.hypot(0.05, 0.2) / 0.1)
    actual = measure(pairs).snr_db
    assert snr.final() == pytest.approx(10 ** ((40 - actual) / 20))


@given(float_pairs(special=True), st.permutations(range(5)))
def test_the_verdict_does_not_depend_on_the_order_of_outputs(
    pairs: Pairs, order: list[int]
) -> None:
    names = [f"o{index}" for index in range(len(pairs))]
    reference = {name: pair[0] for name, pair in zip(names, pairs, strict=True)}
    candidate = {name: pair[1] for name, pair in zip(names, pairs, strict=True)}
    shuffled = {names[i]: candidate[names[i]] for i in order if i < len(names)}
    both = [Excess(Criterion(), totals([reference])) for _ in range(2)]
    assert both[0].update(reference, candidate) == both[1].update(reference, shuffled)


def test_several_outputs_the_worst_counts() -> None:
    reference: Outputs = {"a": f32([1, 1]), "b": i64([1, 2])}
    candidate: Outputs = {"a": f32([1, 1.001]), "b": i64([1, 3]), "extra": f32([9])}
    one = Excess(Criterion(), totals([reference]))
    assert one.update(reference, candidate) == pytest.approx(50.0)
    with pytest.raises(CaseError, match="lacks output 'b'"):
        one.update(reference, {"a": candidate["a"]})


def test_the_cosine_bound_rejects_before_the_end() -> None:
    reference = f32([[3, 0], [1, 0]])
    running = Excess(Criterion(cosine=0.99), totals([{"y": row} for row in reference]))
    assert running.update({"y": reference[0]}, {"y": f32([0, 3])}) > 1
