from dataclasses import replace
from math import inf

import numpy as np
import pytest
from onnx import TensorProto

from halfwise.case import Samples, Settings
from halfwise.emulation.budget import OutOfTime
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.plan.found import FP32_ALONE, Types
from halfwise.fixing.trial import (
    Outcome,
    gather,
    has_new_nonfinite,
    headroom_limits,
)
from halfwise.formats import BF16, FP16, Format
from halfwise.graph.casts import low_type, rewrite
from halfwise.graph.roles import roles_of
from halfwise.metrics import Excess, totals
from halfwise.progress import Silent
from halfwise.records import Criterion, NodeName, Observations, TensorName
from tests import models
from tests.unit.casing import names, prepare
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.reporting.runs import observation

NONE = names()
ALL = names("matmul", "bias", "relu")


def rounded_once(count: int = 12) -> models.Ill:
    """y = 3·x, whose error is that of storing x and y; sample i has its own size."""
    sketch = Sketch()
    y = sketch.op("Mul", sketch.input("x", [1, 32]), f32(3.0), name="mul")
    inputs = models.signals(1, 32, seed=1, count=count)
    inputs *= f32(1 + np.arange(count) % 5).reshape(-1, 1, 1, 1)[..., 0]
    return models.Ill(sketch.proto(y), {"x": inputs})


def test_the_excess_is_the_error_of_the_typed_model():
    prepared = prepare(models.small())
    trials = prepared.trials()
    for kept in (NONE, names("matmul"), ALL):
        model = rewrite(prepared.network, prepared.roles, kept, FP16).model
        session = Session(emulate_typed(model))
        excess = Excess(Criterion(), totals(prepared.references))
        for sample, reference in zip(prepared.samples, prepared.references, strict=True):
            excess.update(reference, session.run(sample))
        assert trials.evaluate(kept).excess == pytest.approx(excess.final())


def test_everything_kept_has_no_error():
    assert prepare(models.small()).trials().evaluate(ALL) == Outcome(True, 0.0)


def test_a_factor_tightens_the_tolerance():
    prepared = prepare(models.small())
    plain = prepared.trials().evaluate(NONE).excess
    trials = prepared.trials(factor=0.5)
    assert trials.evaluate(NONE).excess == pytest.approx(2 * plain)


def test_between_the_factor_and_the_tolerance_a_sample_fails():
    prepared = prepare(models.small())
    excess = prepared.trials().evaluate(NONE).excess
    criterion = Criterion(rel_max=0.01 * excess / 0.9)
    assert prepared.trials(criterion).evaluate(NONE).passed
    outcome = prepared.trials(criterion, factor=0.8).evaluate(NONE)
    assert not outcome.passed
    assert outcome.sample is not None


def test_the_first_sample_that_fails_ends_a_trial():
    prepared = prepare(rounded_once())
    trials = prepared.trials(Criterion(rel_max=1e-9))
    outcome = trials.evaluate(NONE)
    assert not outcome.passed
    assert outcome.excess > 1
    assert trials.runs == 1


def test_a_survey_orders_the_samples_worst_first():
    prepared = prepare(rounded_once())
    trials = prepared.trials()
    each = trials.survey(NONE, Silent())
    assert len(each) == 12
    assert trials.runs == 12
    trials = prepared.trials(Criterion(rel_max=1e-9))
    each = trials.survey(NONE, Silent())
    assert trials.evaluate(NONE).sample == int(np.argmax(each))


def test_a_survey_is_a_trial():
    trials = prepare(rounded_once()).trials()
    first = trials.evaluate(NONE)
    assert (first.passed, trials.runs) == (True, 12)
    surveyed = prepare(rounded_once()).trials()
    surveyed.survey(NONE, Silent())
    assert surveyed.evaluate(NONE) == first
    assert (surveyed.runs, surveyed.evaluations) == (12, 1)


def test_an_answer_is_remembered():
    trials = prepare(models.small()).trials()
    first = trials.evaluate(NONE)
    runs, evaluations = trials.runs, trials.evaluations
    assert trials.evaluate(NONE) == first
    assert (trials.runs, trials.evaluations) == (runs, evaluations)


def late_failure():
    """The last of twelve samples is the only one that overflows."""
    ill = models.root_mean_square()
    data = np.repeat(ill.inputs["x"][:1], 12, axis=0)
    data[11] *= 100
    return prepare(models.Ill(ill.proto, {"x": data}))


def test_a_sample_that_failed_at_last_is_looked_at_first_from_then_on():
    trials = late_failure().trials()
    outcome = trials.evaluate(NONE)
    assert (outcome.passed, outcome.sample) == (False, 11)
    runs = trials.runs
    assert trials.evaluate(names("mean")).sample == 11
    assert trials.runs == runs + 1


def test_the_errors_are_those_of_all_samples():
    trials = prepare(rounded_once()).trials()
    [measured] = trials.errors(NONE).values()
    assert measured.rel_max / 0.01 == pytest.approx(trials.evaluate(NONE).excess)
    assert 60 < measured.snr_db < 80
    [nothing] = trials.errors(names("mul")).values()
    assert nothing.max_abs == 0


def test_samples_that_join_are_looked_at_first():
    prepared = late_failure()
    trials = prepared.trials()
    known = prepared.samples.select(range(11))
    trials.samples, trials.references = known, prepared.references[:11]
    trials.__post_init__()
    assert trials.evaluate(NONE).passed
    trials.join(prepared.samples.select([11]), prepared.references[11:])
    assert trials.samples.ids == (*known.ids, "s11")
    runs = trials.runs
    outcome = trials.evaluate(NONE)
    assert (outcome.passed, outcome.sample) == (False, 11)
    assert trials.runs == runs + 1
    assert trials.evaluate(names("square", "mean", "root")).passed


def test_the_contribution_is_the_error_on_the_worst_sample():
    prepared = prepare(rounded_once())
    trials = prepared.trials(factor=0.5)
    each = trials.survey(NONE, Silent())
    runs = trials.runs
    assert trials.contribution(NONE) == pytest.approx(max(each) / 0.5)
    assert trials.contribution(names("mul")) == 0
    assert trials.runs == runs + 2


def agreement(reference, candidate, labels):
    """Return the fraction of samples whose largest output is at its label."""
    assert len(reference) == len(candidate) == len(labels)
    hits = [c["matmul_out"].argmax() == label for c, label in zip(candidate, labels, strict=True)]
    return sum(hits) / len(hits)


def test_a_metric_decides_alone():
    ill = models.huge_weights()
    exact = [int(r["matmul_out"].argmax()) for r in prepare(ill).references]
    prepared = prepare(ill, labels=tuple(exact))
    trials = prepared.trials(Criterion(metric="agreement"), agreement)
    # Weights that saturate are far off, yet point the same way for most samples.
    outcome = trials.evaluate(NONE)
    kept = trials.evaluate(names("matmul"))
    assert kept == Outcome(True, 1.0)
    lost = 1 - agreement(prepared.references, _low(prepared), exact)
    assert outcome.excess == pytest.approx(1 + lost)
    assert outcome.passed == (lost == 0)
    allowed = prepared.trials(Criterion(metric="agreement", metric_drop=lost), agreement)
    assert allowed.evaluate(NONE).passed


def _low(prepared):
    model = rewrite(prepared.network, prepared.roles, NONE, FP16).model
    session = Session(emulate_typed(model))
    return [session.run(sample) for sample in prepared.samples]


def test_new_nonfinite_values_fail_whatever_the_metric_says():
    prepared = prepare(models.bare_logarithm())
    trials = prepared.trials(Criterion(metric="fine"), lambda *_: 1.0)
    outcome = trials.evaluate(NONE)
    assert not outcome.passed
    assert outcome.excess == np.inf
    assert trials.evaluate(names("square", "log")).passed


def test_labels_stay_with_their_samples():
    seen = []

    def metric(_reference, _candidate, labels):
        seen.append(tuple(labels))
        return 1.0

    prepared = prepare(rounded_once(), labels=tuple(range(100, 112)))
    trials = prepared.trials(Criterion(metric="m"), metric)
    trials.survey(NONE, Silent())
    trials.evaluate(ALL)
    assert {*seen} == {tuple(range(100, 112))}


def test_what_a_survey_shows_of_a_metric_is_not_run_again():
    for lost, passed in ((0.0, True), (1.0, False)):
        prepared = prepare(rounded_once())
        metric = lambda ref, new, _, lost=lost: 1.0 if new is ref else 1.0 - lost  # noqa: E731
        trials = prepared.trials(Criterion(metric="m", metric_drop=0.1), metric)
        trials.survey(NONE, Silent())
        assert trials.evaluate(NONE).passed is passed
        assert trials.evaluations == 1


def test_a_metric_that_cannot_judge_at_all_is_reported():
    def metric(*_):
        raise CaseError("broken", "")

    trials = prepare(rounded_once()).trials(Criterion(metric="broken"), metric)
    with pytest.raises(CaseError, match="broken"):
        trials.evaluate(NONE)


def outputs(*values, dtype=np.float32):
    return {"y": np.array(values, dtype)}


@pytest.mark.parametrize(
    ("reference", "candidate", "expected"),
    [
        (outputs(1, 2), outputs(1, 3), False),
        (outputs(1, 2), outputs(1, np.inf), True),
        (outputs(1, 2), outputs(1, np.nan), True),
        (outputs(1, np.inf), outputs(1, np.inf), False),
        (outputs(1, np.inf), outputs(1, -np.inf), True),
        (outputs(1, np.nan), outputs(1, np.nan), False),
        (outputs(1, np.nan), outputs(1, np.inf), True),
        (outputs(1, np.inf), outputs(1, 5), False),
        (outputs(1, 2), outputs(1, 2, 3), False),
        (outputs(1, 2), outputs(1, 2, np.nan), True),
        (outputs(1, 2, dtype=np.int64), outputs(1, 3, dtype=np.int64), False),
    ],
)
def test_new_nonfinite_values(reference, candidate, expected):
    assert has_new_nonfinite(reference, candidate) == expected


def test_samples_need_no_labels():
    prepared = prepare(rounded_once())
    assert isinstance(prepared.samples, Samples)
    trials = prepared.trials(Criterion(metric="m"), lambda _r, _c, labels: float(labels is None))
    assert trials.evaluate(NONE).passed


def test_an_error_is_computed_once_until_samples_join():
    prepared = prepare(models.small())
    trials = prepared.trials()
    first = trials.excess(NONE)
    assert trials.excess(NONE) == first
    assert trials.evaluations == 1
    trials.join(prepared.samples.select([0]), prepared.references[:1])
    assert trials.excess(NONE) == pytest.approx(first)
    assert trials.evaluations == 2


def test_trials_on_another_emulation_know_nothing_of_the_first():
    prepared = prepare(models.small())
    trials = prepared.trials()
    trials.excess(NONE)
    trials.evaluate(NONE)
    other = trials.on(trials.runner)
    assert (other.evaluations, other.runs) == (0, 0)
    assert other.excess(NONE) == trials.excess(NONE)
    assert other.evaluations == 1


def test_a_trial_that_cannot_be_run_to_the_end_has_failed():
    prepared = prepare(models.detector())
    trials = prepared.trials()
    assert trials.evaluate(NONE) == Outcome(False, inf, 0)
    assert trials.evaluate(names("square", "energy", "norm")).passed
    assert trials.survey(NONE, Silent()) == [inf] * len(prepared.samples)
    assert trials.contribution(NONE) == trials.excess(NONE) == inf
    [error] = trials.errors(NONE).values()
    assert (error.misshapen, error.passed) == (len(prepared.samples), False)


def test_no_metric_is_asked_about_it():
    trials = prepare(models.detector()).trials(Criterion(metric="m"), lambda *_: 1.0)
    assert trials.evaluate(NONE) == Outcome(False, inf, 0)
    assert trials.excess(NONE) == inf


def test_what_was_seen_on_all_samples_is_known_exactly():
    trials = prepare(rounded_once()).trials()
    assert trials.exact(NONE) is None
    assert trials.evaluate(NONE).passed
    before = trials.evaluations
    assert trials.exact(NONE) == trials.excess(NONE)
    assert trials.evaluations == before
    assert trials.since == {NONE: 1}


def test_a_metric_that_fails_on_all_samples_is_no_bound():
    prepared = prepare(rounded_once())

    def metric(reference, candidate, _):
        return float(reference is candidate)

    criterion = Criterion(metric="mine", metric_drop=0.5)
    trials = prepared.trials(criterion, metric=metric)
    outcome = trials.evaluate(NONE)
    assert not outcome.passed
    assert trials.exact(NONE) == outcome.excess == 1.5


def test_trials_of_other_samples_know_nothing_yet():
    prepared = prepare(rounded_once())
    trials = prepared.trials()
    trials.evaluate(NONE)
    others = trials.of(prepared.samples.select([2, 3]), prepared.references[2:4])
    assert (others.evaluations, others.tried, others.since) == (0, {}, {})
    assert len(others.results(NONE)) == 2
    assert 0 < others.excess(NONE) <= trials.excess(NONE)


def test_runs_that_take_too_long_fail_and_are_counted(monkeypatch):
    def slow(*_):
        raise RunFailed("too long", late=True)

    trials = prepare(models.small()).trials()
    monkeypatch.setattr(trials.runner, "run", slow)
    assert not trials.evaluate(NONE).passed
    assert trials.late == 1
    assert (trials.on(trials.runner).late, trials.refused) == (0, "")


def test_what_onnx_runtime_refuses_fails_and_is_told(monkeypatch):
    said = iter(("first", "second", "third"))

    def refuse(*_):
        raise RunFailed(next(said))

    trials = prepare(models.small()).trials()
    monkeypatch.setattr(trials.runner, "run", refuse)
    assert trials.evaluate(NONE).excess == inf
    trials.contribution(NONE)
    assert (trials.refused, trials.late) == ("first", 0)


def test_each_run_is_paid_for_before_it_begins():
    def spend():
        paid.append(trials.runs)
        if len(paid) == 3:
            raise OutOfTime

    paid: list[int] = []
    trials = replace(prepare(rounded_once()).trials(), spend=spend)
    with pytest.raises(OutOfTime):
        trials.survey(NONE, Silent())
    assert paid == [0, 1, 2]
    assert trials.runs == 2


def test_what_passes_is_told_once():
    told: list[tuple[frozenset[str], float]] = []
    trials = replace(prepare(models.small()).trials(), passed=lambda *which: told.append(which))
    assert trials.evaluate(ALL).passed
    assert trials.evaluate(ALL).passed
    assert told == [(ALL, 0.0)]
    trials.of(trials.samples, trials.references).evaluate(ALL)
    assert len(told) == 1


def network():
    sketch = Sketch()
    x = sketch.input("x", [4])
    a = sketch.op("Mul", x, 2.0, name="a")
    moved = sketch.op("Reshape", a, [2, 2], name="move")
    counted = sketch.op("Cast", moved, name="count", to=TensorProto.INT64)
    back = sketch.op("Cast", counted, name="back", to=TensorProto.FLOAT)
    return sketch.network(sketch.op("Exp", back, name="b"))


def seen(**absmax: float) -> Observations:
    producers = {"x": None}
    return Observations(
        tensors=tuple(
            observation(name if name == "x" else f"{name}_out", producers.get(name, name), value)
            for name, value in absmax.items()
        ),
        inner=(),
        samples=("s0", "s1"),
    )


def limits(observations: Observations, fmt: Format, headroom: float) -> dict[TensorName, float]:
    roles = roles_of(network(), low_type(fmt))
    return headroom_limits(network(), roles, observations, fmt, headroom)


@pytest.mark.parametrize(
    ("absmax", "limited"),
    [(32_759, False), (32_760, True), (65_519, True), (65_520, False), (1e9, False), (0, False)],
)
def test_what_fits_but_not_with_headroom_is_limited(absmax, limited):
    found = limits(seen(a=absmax), FP16, 2.0)
    assert found == ({"a_out": 32_760} if limited else {})


def test_inputs_have_the_same_headroom():
    assert limits(seen(x=60_000), FP16, 2.0) == {"x": 32_760}


def test_without_headroom_nothing_is_limited():
    assert limits(seen(a=65_519, b=3), FP16, 1.0) == {}


def test_a_format_with_the_range_of_fp32_has_no_limits():
    assert limits(seen(a=65_519, b=2e38), BF16, 2.0) == {}


def test_a_mask_does_not_grow_with_the_data():
    sketch = Sketch()
    allowed = sketch.input("allowed", [4], TensorProto.BOOL)
    filled = sketch.op("Where", allowed, 0.0, -60_000.0, name="fill")
    masked = sketch.network(sketch.op("Add", sketch.input("x", [4]), filled, name="add"))
    found = headroom_limits(masked, roles_of(masked), seen(fill=60_000, add=60_010), FP16, 2.0)
    assert found == {"add_out": 32_760}


def evidence(ill, **settings):
    prepared = prepare(ill)
    found = gather(
        prepared.network, prepared.roles, prepared.samples, Settings(**settings), lambda *_: None
    )
    return prepared, found


def test_references_come_with_the_observation():
    prepared, found = evidence(models.small())
    assert len(found.references) == len(prepared.samples)
    for one, other in zip(found.references, prepared.references, strict=True):
        assert all((one[name] == other[name]).all() for name in one)


def test_what_overflows_is_certain():
    _, found = evidence(models.layer_norm())
    assert models.layer_norm().kept <= found.suspected
    assert frozenset().union(*found.certain) <= found.suspected
    assert found.certain


def test_a_healthy_model_raises_no_suspicion():
    _, found = evidence(models.small())
    assert found.guards == ()
    assert found.limits == {}
    assert found.nonfinite == frozenset()


def test_headroom_gives_smaller_ranges():
    _, found = evidence(models.near_the_edge())
    assert found.limits
    _, without = evidence(models.near_the_edge(), headroom=1.0)
    assert without.limits == {}


def test_nothing_narrower_is_fp32_alone():
    some = frozenset((NodeName("a"),))
    assert Types() == FP32_ALONE
    assert FP32_ALONE not in (Types(some), Types(tf32=True))
    # A plan's types are part of the key that what is known of it is stored under.
    assert len({Types(some), Types(some, tf32=True), FP32_ALONE}) == 3
