import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, KernelMissing
from halfwise.formats import BF16, FP16
from halfwise.graph.casts import low_type, rewrite
from halfwise.graph.roles import float_io, roles_of
from halfwise.graph.sensitivity import decisions
from halfwise.judging.judge import (
    flips,
    judge,
    judge_outputs,
    run_as_file,
)
from halfwise.metrics import OutputMeasure, resolve, totals
from halfwise.records import Criterion, TensorName, replace
from halfwise.reporting.remarks import reasons
from tests import models
from tests.unit.casing import names, prepare
from tests.unit.graph.sketch import Sketch, f32


def mixed(prepared, *kept):
    return rewrite(prepared.network, prepared.roles, names(*kept), FP16).model


def judged(ill, *kept, criterion=None, metric=None, labels=None, **more):
    prepared = prepare(ill, labels=labels)
    return judge(
        mixed(prepared, *kept),
        prepared.samples,
        prepared.references,
        criterion or Criterion(),
        metric,
        **more,
    )


def test_numbers_are_those_of_the_measures_on_the_emulated_outputs():
    prepared = prepare(models.small())
    model = mixed(prepared)
    session = Session(emulate_typed(model))
    measure = OutputMeasure(totals(prepared.references)["relu_out"])
    for sample, reference, name in zip(
        prepared.samples, prepared.references, prepared.samples.ids, strict=True
    ):
        measure.update(reference["relu_out"], session.run(sample)["relu_out"], name)
    verdict = judged(models.small()).verdict
    assert verdict.outputs == {"relu_out": measure.result(Criterion())}
    assert verdict.passed
    assert verdict.level == "emulated"
    assert verdict.samples == prepared.samples.ids
    assert verdict.worst_sample == verdict.outputs["relu_out"].worst_sample
    assert reasons(verdict.failures) == ()


def test_out_of_tolerance_fails_with_numbers_and_the_worst_sample():
    result = judged(models.layer_norm())
    assert not result.verdict.passed
    (reason,) = reasons(result.verdict.failures)
    assert "gamma_out is out of tolerance" in reason
    assert str(result.verdict.worst_sample) in reason


def test_recorded_outputs_are_measured_alike():
    prepared, emulated = prepare(models.layer_norm()), judged(models.layer_norm()).verdict
    session = Session(emulate_typed(mixed(prepared)))
    results = [session.run(sample) for sample in prepared.samples]
    arguments = (prepared.samples, prepared.references, Criterion(), None)
    recorded = judge_outputs(results, *arguments, level="recorded", runner="trt").verdict
    assert (recorded.level, recorded.runner) == ("recorded", "trt")
    assert (recorded.outputs, reasons(recorded.failures)) == (
        emulated.outputs,
        reasons(emulated.failures),
    )
    assert recorded.intermediate_nonfinite == ()


def test_samples_that_fail_by_themselves_bound_how_many_inputs_do():
    references = [{"y": f32([1.0, 100.0])}, {"y": f32([1.0, 1.0])}, {"y": f32([1.0, 2.0])}]
    results = [{"y": f32([1.9, 100.0])}, {"y": f32([1.5, 1.0])}, {"y": f32([1.0, 2.02])}]
    samples = Samples(("a", "b", "c"), lambda _: {})

    def bound(criterion, **more):
        return judge_outputs(
            results, samples, references, criterion, more.pop("metric", None), **more
        ).verdict.failure_bound

    # 1 % of 100, the largest value of them all; but a's first value is off by more than its half.
    assert (bound(Criterion()).judged, bound(Criterion()).failing) == (3, 1)
    assert bound(Criterion(max_abs=2)).upper == pytest.approx(1 - 0.05 ** (1 / 3))
    assert bound(Criterion(max_abs=0.6)).failing == 1
    assert bound(Criterion(max_abs=0.1)).failing == 2
    # Pooled, 40 dB are met; b alone has 9.
    assert bound(Criterion(snr_db=30)).failing == 2
    assert bound(Criterion(cosine=0.99)).failing == 1
    assert bound(Criterion(), unseen=False) is None
    assert bound(Criterion(metric="m"), metric=lambda *_: 1.0).failing == 0


def _rated(off, criterion, metric=None, count=100, worse=lambda y: y * 1.1):
    """Return the verdict on `count` samples, some of which are off by a tenth."""
    references = [{"y": f32([1.0, 2.0, i])} for i in range(count)]
    results = [{"y": worse(one["y"]) if i in off else one["y"]} for i, one in enumerate(references)]
    samples = Samples(tuple(map(str, range(count))), lambda _: {})
    return judge_outputs(results, samples, references, criterion, metric).verdict


@pytest.mark.parametrize(
    ("off", "share", "kinds"),
    [
        ((), 0.03, ()),
        ((), 0.02, ("few",)),
        ((50,), 0.05, ()),
        ((50,), 0.04, ("few",)),
        ((50, 60, 70), 0.02, ("rate", "tolerance")),
        ((50,), None, ("tolerance",)),
    ],
)
def test_a_share_of_inputs_may_fail_if_the_samples_show_it(off, share, kinds):
    verdict = _rated(off, Criterion(max_abs=1, failing=share))
    assert tuple(failure.kind for failure in verdict.failures) == kinds
    assert verdict.passed == (not kinds)
    assert verdict.failure_bound.samples == tuple(map(str, off))


def test_samples_that_may_fail_are_left_out_of_the_figures():
    verdict = _rated((99,), Criterion(snr_db=60, failing=0.05))
    assert verdict.passed
    assert verdict.outputs["y"].max_abs == 0
    assert not _rated((99,), Criterion(snr_db=60)).passed


@pytest.mark.parametrize("worse", [lambda y: y[::-1].copy(), lambda y: y * np.float32(np.nan)])
def test_a_metric_has_a_share_too(worse):
    criterion = Criterion(metric="top1", metric_drop=0.001)
    assert not _rated((7, 9), criterion, resolve("top1"), 400, worse).passed
    rated = replace(criterion, failing=0.02)
    verdict = _rated((7, 9), rated, resolve("top1"), 400, worse)
    assert verdict.passed
    assert (verdict.failure_bound.failing, verdict.failure_bound.judged) == (2, 400)
    assert verdict.metric.candidate == 1


def test_a_function_without_a_value_for_one_sample_bounds_nothing():
    def many(_reference, candidate, _labels):
        if len(candidate) < 2:
            raise CaseError("one is too few")
        return 1.0

    criterion = Criterion(metric="own.py:many", metric_drop=0.1)
    verdict = _rated((), criterion, many)
    assert verdict.passed
    assert verdict.failure_bound is None
    with pytest.raises(CaseError, match="one is too few"):
        _rated((), replace(criterion, failing=0.1), many)


def test_kept_nodes_make_it_pass():
    assert judged(models.layer_norm(), *models.layer_norm().kept).verdict.passed


def test_what_is_infinite_inside_is_told_even_where_the_outputs_pass():
    verdict = judged(models.saturating()).verdict
    assert verdict.passed
    (inside,) = verdict.intermediate_nonfinite
    assert (inside.tensor, inside.producer) == ("cube_out", "cube")
    x = models.saturating().inputs["x"].astype(np.float64)
    exact = np.abs(FP16.round(x.astype(np.float32)).astype(np.float64) ** 3)
    assert inside.elements == int((exact >= FP16.overflow_threshold).sum())


def test_what_the_reference_has_too_is_not_told():
    reported = frozenset([TensorName("cube_out")])
    verdict = judged(models.saturating(), reference_nonfinite=reported).verdict
    assert verdict.intermediate_nonfinite == ()


def test_a_logarithm_of_zero_is_a_new_nonfinite_output():
    verdict = judged(models.bare_logarithm()).verdict
    assert not verdict.passed
    (output,) = verdict.outputs.values()
    assert output.nonfinite > 0
    assert output.max_abs == np.inf
    assert f"{output.nonfinite} non-finite values" in reasons(verdict.failures)[0]


def test_what_is_finite_where_the_reference_is_not_is_no_non_finite_value():
    prepared = prepare(models.layer_norm())
    infinite = [{n: np.full_like(a, np.inf) for n, a in r.items()} for r in prepared.references]
    verdicts = judge(mixed(prepared), prepared.samples, infinite, Criterion(), None).verdict
    assert verdicts.failures[0].numbers == {"unlike": 1024}


def test_a_metric_decides_but_not_over_new_nonfinite_values():
    ill = models.layer_norm()
    criterion = Criterion(metric="fine")
    assert not judged(ill).verdict.passed
    passed = judged(ill, criterion=criterion, metric=lambda *_: 1.0).verdict
    assert passed.passed
    assert passed.metric is not None
    assert (passed.metric.reference, passed.metric.candidate) == (1, 1)
    broken = judged(models.bare_logarithm(), criterion=criterion, metric=lambda *_: 1.0).verdict
    assert not broken.passed


@example(score=0.0, drop=0.3)
@given(st.floats(-2, 2), st.floats(0, 2))
def test_a_metric_may_fall_as_far_as_allowed(score, drop):
    def metric(reference, candidate, labels):
        assert labels is None
        return 0.5 if reference is candidate else score

    criterion = Criterion(metric="m", metric_drop=drop)
    verdict = judged(models.tiny_weights(), criterion=criterion, metric=metric).verdict
    assert verdict.passed == (score >= 0.5 - drop)
    assert (len(reasons(verdict.failures)) == 0) == verdict.passed


def test_a_metric_without_a_number_fails():
    def metric(reference, candidate, _labels):
        return 1.0 if reference is candidate else float("nan")

    verdict = judged(models.small(), criterion=Criterion(metric="m"), metric=metric).verdict
    assert not verdict.passed


def test_labels_reach_the_metric():
    def metric(_reference, candidate, labels):
        assert labels == list(range(8)) or len(labels) == 1
        return float(len(candidate))

    criterion = Criterion(metric="m")
    result = judged(models.small(), criterion=criterion, metric=metric, labels=tuple(range(8)))
    assert result.verdict.passed


@pytest.mark.parametrize(("name", "wanted"), [("cosine", (8, "vectors")), ("m.py:f", (None, None))])
def test_a_metric_tells_what_it_rests_on(name, wanted):
    metric = resolve(name) or (lambda *_: 1.0)
    result = judged(models.small(), criterion=Criterion(metric=name), metric=metric)
    verdicts = result.verdict.metric
    assert verdicts is not None
    assert (verdicts.evidence, verdicts.unit) == wanted


def test_samples_that_the_search_has_seen_are_no_proof():
    verdict = judged(models.small(), unseen=False).verdict
    assert not verdict.passed
    assert not verdict.unseen
    assert "none is held out" in reasons(verdict.failures)[0]


def test_no_sample_no_verdict():
    prepared = prepare(models.small())
    none = prepared.samples.select(())
    result = judge(mixed(prepared), none, [], Criterion(), None)
    assert not result.verdict.passed
    assert not result.verdict.unseen
    assert result.verdict.worst_sample is None
    assert result.failing == ()


def test_samples_that_fail_alone_are_named_worst_first():
    ill = models.root_mean_square()
    data = ill.inputs["x"][:6].copy()
    data[1] *= 30
    data[3] *= 0
    data[4] *= 60
    result = judged(models.Ill(ill.proto, {"x": data}))
    # Samples 1 and 4 overflow; 3 was the large one of the model itself.
    assert set(result.failing) == {1, 4}
    assert [i for i, excess in enumerate(result.verdict.excesses) if excess > 1] == [1, 4]
    assert not result.verdict.passed


def test_where_no_sample_fails_alone_the_worst_is_named():
    """Pooled over samples: each alone is within what all together may have."""
    (pooled,) = judged(models.small()).verdict.outputs.values()
    result = judged(models.small(), criterion=Criterion(snr_db=pooled.snr_db + 1))
    assert not result.verdict.passed
    assert len(result.failing) == 1


def test_with_a_metric_the_samples_that_lose_most_come_first():
    ill = models.huge_weights()

    def metric(reference, candidate, _labels):
        losses = [
            np.abs(r["matmul_out"] - c["matmul_out"]).max()
            for r, c in zip(reference, candidate, strict=True)
        ]
        return -float(max(losses))

    result = judged(ill, criterion=Criterion(metric="m"), metric=metric)
    assert sorted(result.failing) == list(range(8))
    sizes = [np.abs(r["matmul_out"]).max() for r in prepare(ill).references]
    assert result.failing[0] == int(np.argmax(sizes))


def test_discrete_outputs_are_judged_by_agreement():
    ill = models.arg_max()
    verdict = judged(ill).verdict
    (output,) = verdict.outputs.values()
    assert output.agreement is not None
    assert output.agreement < 0.99
    assert not verdict.passed
    assert judged(ill, *ill.kept).verdict.outputs["choose_out"].agreement == 1
    lenient = Criterion(agreement=output.agreement)
    assert judged(ill, criterion=lenient).verdict.passed


@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
def test_sums_in_fp16_overflow_where_they_are_asked_for(accumulate):
    sketch = Sketch()
    y = sketch.op("ReduceMean", sketch.input("x", [1, 64]), name="mean", axes=[-1])
    data = f32(np.linspace(3000, 4000, 8 * 64)).reshape(8, 1, 64)
    ill = models.Ill(sketch.proto(y), {"x": data})
    verdict = judged(ill, accumulate=accumulate).verdict
    assert verdict.passed == (accumulate == "fp32")


@pytest.mark.parametrize("metric", [None, lambda *_: 1.0])
def test_a_candidate_that_cannot_be_run_fails_and_names_node_and_sample(metric):
    criterion = Criterion(metric="m" if metric else None)
    result = judged(models.detector(), criterion=criterion, metric=metric)
    verdict, samples = result.verdict, prepare(models.detector()).samples.ids
    assert [run.sample for run in verdict.failed_runs] == list(samples)
    assert {run.node for run in verdict.failed_runs} == {"rows"}
    assert "requested shape" in verdict.failed_runs[0].why
    (reason,) = reasons(verdict.failures)
    assert f"sample s0 and {len(samples) - 1} more" in reason
    assert "node rows fails" in reason
    assert verdict.metric is None
    assert sorted(result.failing) == list(range(len(samples)))


def test_another_shape_than_the_references_is_told():
    prepared = prepare(models.detector())
    results = [{name: array[:-1] for name, array in r.items()} for r in prepared.references]
    judgement = judge_outputs(results, prepared.samples, prepared.references, Criterion(), None)
    (reason,) = reasons(judgement.verdict.failures)
    assert reason.startswith("output head_out differs in shape from the reference on")


def test_a_file_with_nothing_low_gives_the_reference():
    prepared = prepare(models.layer_norm())
    everything = frozenset(prepared.roles)
    model = rewrite(prepared.network, prepared.roles, everything, FP16).model
    results = run_as_file(model, prepared.samples, prepared.references)
    for result, reference in zip(results, prepared.references, strict=True):
        np.testing.assert_array_equal(result["gamma_out"], reference["gamma_out"])


def test_low_inputs_and_outputs_are_converted():
    prepared = prepare(models.small())
    network = prepared.network
    model = rewrite(network, prepared.roles, names(), FP16, low_io=float_io(network)).model
    for result in run_as_file(model, prepared.samples, prepared.references):
        assert result["relu_out"].dtype == np.float32
        np.testing.assert_array_equal(result["relu_out"], FP16.round(result["relu_out"]))


def test_decisions_that_fall_otherwise_are_counted():
    prepared = prepare(models.position_bucket())
    verdicts = list(decisions(prepared.network))
    low = rewrite(prepared.network, prepared.roles, names(), FP16).model
    (flip,) = flips(low, verdicts, prepared.samples)
    assert (flip.node, flip.op) == ("bucket", "Cast")
    assert 0 < flip.elements < flip.of == 8 * 24
    mended = rewrite(prepared.network, prepared.roles, names("quotient"), FP16).model
    assert flips(mended, verdicts, prepared.samples) == ()


def test_a_type_without_kernels_is_refused():
    prepared = prepare(models.layer_norm())
    roles = roles_of(prepared.network, low_type(BF16))
    model = rewrite(prepared.network, roles, names(), BF16).model
    with pytest.raises(KernelMissing):
        run_as_file(model, prepared.samples, prepared.references)
