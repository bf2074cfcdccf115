"""What a bench finds of plans, and what it does not run again."""

from collections import Counter
from math import inf

import numpy as np
import pytest

from halfwise.case import Sample, Samples
from halfwise.emulation.budget import OutOfTime
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.bench import Bench, Outcome, Tolerance, Trial, has_new_nonfinite
from halfwise.fixing.plan.plan import Plan
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.metrics import Excess, Outputs, totals
from halfwise.progress import Silent
from halfwise.records import Criterion, replace
from tests import models
from tests.unit.casing import Kept, Prepared, names, prepare
from tests.unit.fixing.running import space_of
from tests.unit.graph.sketch import Sketch, f32

NONE = names()
ALL = names("matmul", "bias", "relu")


def rounded_once(count: int = 12) -> models.Ill:
    """y = 3·x, whose error is that of storing x and y; sample i has its own size."""
    sketch = Sketch()
    y = sketch.op("Mul", sketch.input("x", [1, 32]), f32(3.0), name="mul")
    inputs = models.signals(1, 32, seed=1, count=count)
    inputs *= f32(1 + np.arange(count) % 5).reshape(-1, 1, 1, 1)[..., 0]
    return models.Ill(sketch.proto(y), {"x": inputs})


def late_failure() -> Prepared:
    """The last of twelve samples is the only one that overflows."""
    ill = models.root_mean_square()
    data = np.repeat(ill.inputs["x"][:1], 12, axis=0)
    data[11] *= 100
    return prepare(models.Ill(ill.proto, {"x": data}))


# --- errors ------------------------------------------------------------------------------------


def test_the_excess_is_the_error_of_the_typed_model():
    prepared = prepare(models.small())
    bench = prepared.bench()
    for kept in (NONE, names("matmul"), ALL):
        model = rewrite(prepared.network, prepared.roles, kept, FP16).model
        session = Session(emulate_typed(model))
        excess = Excess(Criterion(), totals(prepared.references))
        for sample, reference in zip(prepared.samples, prepared.references, strict=True):
            excess.update(reference, session.run(sample))
        outcome = bench.evaluate(kept)
        assert outcome.excess == pytest.approx(excess.final())
    assert bench.evaluate(ALL) == Outcome(True, 0.0)


def test_between_the_factor_and_the_tolerance_a_sample_fails():
    prepared = prepare(models.small())
    excess = prepared.bench().evaluate(NONE).excess
    assert prepared.bench(factor=0.5).evaluate(NONE).excess == pytest.approx(2 * excess)
    criterion = Criterion(rel_max=0.01 * excess / 0.9)
    assert prepared.bench(criterion).evaluate(NONE).passed
    outcome = prepared.bench(criterion, factor=0.8).evaluate(NONE)
    assert not outcome.passed
    assert outcome.sample is not None


def test_the_contribution_is_the_error_on_the_worst_sample():
    bench = prepare(rounded_once()).bench(factor=0.5)
    each = bench.survey(NONE, Silent())
    runs = bench.runs
    assert bench.contribution(NONE) == pytest.approx(max(each))
    assert bench.contribution(names("mul")) == 0
    assert bench.runs == runs + 2


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


# --- which samples are run, and when -----------------------------------------------------------


def test_the_first_sample_that_fails_ends_a_trial():
    bench = prepare(rounded_once()).bench(Criterion(rel_max=1e-9))
    outcome = bench.evaluate(NONE)
    assert not outcome.passed
    assert outcome.excess > 1
    assert bench.runs == 1


def test_a_survey_is_a_trial_and_orders_the_samples_worst_first():
    prepared = prepare(rounded_once())
    bench, surveyed = prepared.bench(), prepared.bench()
    first = bench.evaluate(NONE)
    assert (first.passed, bench.runs) == (True, 12)
    assert len(surveyed.survey(NONE, Silent())) == 12
    assert surveyed.evaluate(NONE) == first
    assert (surveyed.runs, surveyed.evaluations) == (12, 1)
    strict = prepared.bench(Criterion(rel_max=1e-9))
    each = strict.survey(NONE, Silent())
    assert strict.evaluate(NONE) == Outcome(False, strict.excess(NONE))
    assert strict.evaluate(names("mul")).sample in (None, int(np.argmax(each)))
    assert strict.runs > 12


def test_what_gives_infinities_is_told_apart_after_a_survey_too():
    bench = late_failure().bench()
    bench.survey(NONE, Silent())
    runs, outcome = bench.runs, bench.evaluate(NONE)
    assert (outcome.sample, outcome.nonfinite) == (11, True)
    assert bench.runs == runs + 1


def test_a_sample_that_failed_at_last_is_looked_at_first_from_then_on():
    bench = late_failure().bench()
    outcome = bench.evaluate(NONE)
    assert (outcome.passed, outcome.sample) == (False, 11)
    runs = bench.runs
    assert bench.evaluate(names("mean")).sample == 11
    assert bench.runs == runs + 1


def test_few_samples_are_asked_and_what_fails_on_all_is_asked_from_then_on():
    bench = late_failure().bench()
    assert bench.probe(NONE).passed
    assert (bench.runs, bench.exact(NONE)) == (4, None)
    assert bench.evaluate(NONE).sample == 11
    assert bench.runs == 16
    assert bench.probe(names("mean")).sample == 11
    assert bench.runs == 17
    assert not bench.evaluate(names("mean")).passed  # what fails on few samples fails on all
    kept = names("square", "mean", "root")
    assert bench.probe(kept).passed
    assert bench.runs == 22
    assert bench.evaluate(kept).passed
    assert bench.runs == 34


def test_as_many_samples_as_may_fail_are_asked_too():
    prepared = prepare(rounded_once(400))
    bench = prepared.bench(Criterion(rel_max=1e-9, failing=0.02))
    spare = bench.tolerance.spare(400)
    assert spare > 1
    assert not bench.probe(NONE).passed
    assert bench.runs == spare + 1


def test_of_a_metric_the_loss_on_few_samples_counts_as_if_the_others_had_none():
    def exact(references, outputs, _):
        pairs = zip(references, outputs, strict=True)
        return float(
            np.mean([np.array_equal(*(y for o in pair for y in o.values())) for pair in pairs])
        )

    prepared = prepare(rounded_once())
    bench = prepared.bench(Criterion(metric="exact", metric_drop=0.5), exact)
    few, whole = bench.probe(NONE), bench.evaluate(NONE)
    assert few.passed
    assert few.excess == pytest.approx(4 / 12 / 0.5)
    assert not whole.passed
    assert whole.excess == pytest.approx(8 / 12 / 0.5)
    assert bench.runs == 4 + 8
    assert bench.probe(names("mul")).passed
    assert bench.runs == 4 + 8 + 8  # they fail together, so all of them are asked


def test_samples_that_may_fail_do_not_count_among_few_either():
    def equal(references, outputs, _):
        pairs = zip(references, outputs, strict=True)
        return float(np.mean([np.array_equal(one["y"], other["y"]) for one, other in pairs]))

    tolerance = Tolerance(Criterion(metric="equal", metric_drop=0.0, failing=0.02), equal)
    references = [{"y": np.full(1, i, np.float32)} for i in range(400)]
    samples = Samples(tuple(map(str, range(400))), lambda _: {})
    assert tolerance.spare(400) == 3
    trial = Trial(tolerance, samples, references, totals(references))
    for i in range(3):
        trial.add(i, {"y": references[i]["y"] + 1})
        assert trial.error() == 0
    trial.add(3, {"y": references[3]["y"] + 1})
    assert trial.error() > 1


class _Classes:
    """A judge of plans that are the class they give each of twelve samples."""

    samples = Samples(
        tuple(map(str, range(12))), lambda i: {"x": np.full(1, i)}, labels=tuple([0] * 8 + [1] * 4)
    )
    references = ({"y": np.zeros(1)},) * 12  # the last four are wrong

    def prepare(self, _):
        """Nothing to load."""

    def run(self, sample, plan):
        """Return the class of a sample."""
        return {"y": np.array([plan[int(sample["x"][0])]], np.float64)}

    def release(self):
        """Nothing to free."""


def right(references, outputs, labels):
    truth = [y["y"][0] for y in references] if labels is None else labels
    return float(np.mean([y["y"][0] == of for y, of in zip(outputs, truth, strict=True)]))


def test_with_labels_other_samples_may_win_back_what_few_lose():
    tolerance = Tolerance(Criterion(metric="right", metric_drop=0.01), right)
    bench = Bench(_Classes(), _Classes.samples, _Classes.references, tolerance)
    one_for_one, lost = (1, *[0] * 7, 1, *[0] * 3), (1, *[0] * 11)
    assert not bench.probe(one_for_one).passed
    assert bench.evaluate(one_for_one).passed
    assert bench.probe(one_for_one).passed
    assert not bench.evaluate(lost).passed
    assert bench.exact(lost) == pytest.approx(1 / 12 / 0.01)


def test_what_few_samples_lose_together_is_a_bound_and_no_error():
    tolerance = Tolerance(Criterion(metric="right", metric_drop=0.4), right)
    samples, wrong = replace(_Classes.samples, labels=None), (1,) * 12
    known, last = samples.select(range(11)), samples.select([11])
    bench = Bench(_Classes(), known, _Classes.references[:11], tolerance)
    bench.join(last, _Classes.references[11:])
    assert not bench.probe(wrong).passed
    assert bench.runs == 5
    assert bench.exact(wrong) is None
    assert bench.excess(wrong) == pytest.approx(1 / 0.4)


def test_samples_that_join_are_looked_at_first():
    prepared = late_failure()
    known = replace(
        prepared, samples=prepared.samples.select(range(11)), references=prepared.references[:11]
    )
    bench = known.bench()
    assert bench.evaluate(NONE).passed
    bench.join(prepared.samples.select([11]), prepared.references[11:])
    assert bench.samples.ids == prepared.samples.ids
    runs = bench.runs
    outcome = bench.evaluate(NONE)
    assert (outcome.passed, outcome.sample) == (False, 11)
    assert bench.runs == runs + 1
    assert bench.evaluate(names("square", "mean", "root")).passed
    assert bench.tried()[NONE] == outcome


def test_each_run_is_paid_for_before_it_begins():
    def spend():
        paid.append(bench.runs)
        if len(paid) == 3:
            raise OutOfTime

    paid: list[int] = []
    prepared = prepare(rounded_once())
    tolerance = prepared.bench().tolerance
    bench = Bench(prepared.bench().judge, prepared.samples, prepared.references, tolerance, spend)
    with pytest.raises(OutOfTime):
        bench.survey(NONE, Silent())
    assert paid == [0, 1, 2]
    assert bench.runs == 2
    assert bench.exact(NONE) is None


# --- one memo ----------------------------------------------------------------------------------


def test_what_was_seen_on_all_samples_is_known_at_every_depth():
    bench = prepare(rounded_once()).bench()
    assert bench.exact(NONE) is None
    first = bench.evaluate(NONE)
    assert bench.evaluate(NONE) == first
    assert bench.exact(NONE) == bench.excess(NONE) == first.excess
    assert (bench.runs, bench.evaluations) == (12, 1)
    assert bench.tried() == {NONE: first}


def test_the_error_of_what_failed_is_measured_once():
    bench = prepare(rounded_once()).bench(Criterion(rel_max=1e-9))
    failed = bench.evaluate(NONE)
    assert bench.exact(NONE) is None
    assert bench.excess(NONE) >= failed.excess
    runs = bench.runs
    assert bench.excess(NONE) == bench.exact(NONE)
    assert bench.runs == runs


def test_samples_that_join_are_another_question_at_every_depth():
    prepared = prepare(models.small())
    bench = prepared.bench()
    looks: Counter[str] = Counter()

    def inside() -> int:
        looks["inside"] += 1
        return looks["inside"]

    first = bench.excess(NONE)
    assert [bench.once(NONE, "inside", inside) for _ in range(2)] == [1, 1]
    assert bench.once(NONE, "inside", inside, key="other") == 2
    bench.join(prepared.samples.select([0]), prepared.references[:1])
    assert bench.recall(NONE, "inside") is None
    assert bench.exact(NONE) is None
    assert bench.excess(NONE) == pytest.approx(first)
    assert bench.once(NONE, "inside", inside) == 3
    assert bench.evaluations == 2


def test_another_judge_of_the_same_samples_knows_nothing_of_the_first():
    bench = prepare(models.small()).bench()
    bench.excess(NONE)
    other = bench.on(bench.judge)
    assert (other.evaluations, other.runs, other.tried()) == (0, 0, {})
    assert other.excess(NONE) == bench.excess(NONE)
    assert other.evaluations == 1


# --- judges ------------------------------------------------------------------------------------


class AsFile:
    """Runs the file of a plan in ONNX Runtime, which leaves out roundings between low nodes."""

    def __init__(self) -> None:
        self._loaded: tuple[Plan, Session] | None = None

    def prepare(self, plan: Plan, /) -> None:
        if self._loaded is None or self._loaded[0] != plan:
            self._loaded = plan, Session(plan.of.write(plan)[0].model)

    def run(self, sample: Sample, plan: Plan, /) -> Outputs:
        assert self._loaded is not None
        assert self._loaded[0] == plan
        return self._loaded[1].run(sample)

    def release(self) -> None:
        self._loaded = None


def test_a_judge_is_one_class_and_a_search_takes_it_as_it_is():
    space = space_of(models.position_bucket(), no_repair=True)
    low = space.plan(NONE)
    assert space.evaluate(NONE).passed
    filed = replace(space, bench=space.bench.on(AsFile()))
    assert not filed.evaluate(NONE).passed
    assert filed.bench.runs == 1
    assert filed.bench.evaluate(low) == filed.evaluate(NONE)
    found = filed.find()
    assert found.passed
    assert NONE < found.kept < filed.choices
    # Each bench keeps what its own judge finds.
    assert space.bench.evaluate(low).passed
    filed.bench.release()
    assert filed.bench.excess(filed.plan(found.kept)) <= 1


def test_what_passes_may_be_demanded_more_of():
    bench = prepare(models.small()).bench()
    bench.demand(lambda kept, _: 0.5 if kept else 3.0)
    assert bench.evaluate(NONE) == Outcome(False, 3.0)
    assert bench.evaluate(names("matmul")).passed
    surveyed = prepare(models.small()).bench()
    surveyed.demand(lambda *_: 3.0)
    surveyed.survey(NONE, Silent())
    assert not surveyed.evaluate(NONE).passed


# --- runs that fail ----------------------------------------------------------------------------


def test_a_sample_that_could_not_be_run_says_so_and_the_plan_did_not_pass():
    prepared = prepare(models.detector())
    bench = prepared.bench()
    outcome = bench.evaluate(NONE)
    assert (outcome.passed, outcome.excess, outcome.sample) == (False, inf, 0)
    assert outcome.not_run == bench.refused != ""
    assert not outcome.nonfinite
    assert bench.evaluate(names("square", "energy", "norm")).passed
    assert bench.survey(NONE, Silent()) == [inf] * len(prepared.samples)
    assert bench.contribution(NONE) == bench.excess(NONE) == inf


def test_no_metric_is_asked_about_it():
    bench = prepare(models.detector()).bench(Criterion(metric="m"), lambda *_: 1.0)
    assert bench.evaluate(NONE).not_run
    assert bench.excess(NONE) == inf


def test_a_plan_that_is_wrong_was_run():
    outcome = late_failure().bench().evaluate(NONE)
    assert (outcome.passed, outcome.nonfinite, outcome.not_run) == (False, True, "")


class Failing:
    """A judge that runs nothing."""

    def __init__(self, *failures: RunFailed) -> None:
        self._failures = iter(failures)

    def prepare(self, kept: Kept, /) -> None:
        """Load nothing."""

    def run(self, _sample: Sample, _kept: Kept, /) -> Outputs:
        raise next(self._failures)

    def release(self) -> None:
        """Free nothing."""


def test_runs_that_take_too_long_are_counted_and_the_first_other_failure_is_kept():
    bench = prepare(models.small()).bench()
    slow = bench.on(Failing(RunFailed("too long", late=True)))
    assert slow.evaluate(NONE).not_run == "too long"
    assert (slow.late, slow.refused) == (1, "")
    refusing = bench.on(Failing(RunFailed("first"), RunFailed("second")))
    assert refusing.evaluate(NONE).excess == inf
    refusing.contribution(NONE)
    assert (refusing.refused, refusing.late) == ("first", 0)
    assert (bench.late, bench.refused) == (0, "")


# --- metrics -----------------------------------------------------------------------------------


def agreement(reference, candidate, labels):
    """Return the fraction of samples whose largest output is at its label."""
    assert len(reference) == len(candidate) == len(labels)
    hits = [c["matmul_out"].argmax() == label for c, label in zip(candidate, labels, strict=True)]
    return sum(hits) / len(hits)


def test_a_metric_decides_alone():
    ill = models.huge_weights()
    exact = [int(r["matmul_out"].argmax()) for r in prepare(ill).references]
    prepared = prepare(ill, labels=tuple(exact))
    bench = prepared.bench(Criterion(metric="agreement"), agreement)
    # Weights that saturate are far off, yet point the same way for most samples.
    outcome = bench.evaluate(NONE)
    kept = bench.evaluate(names("matmul"))
    assert (kept.passed, kept.excess) == (True, 0.0)
    model = rewrite(prepared.network, prepared.roles, NONE, FP16).model
    low = [*map(Session(emulate_typed(model)).run, prepared.samples)]
    lost = 1 - agreement(prepared.references, low, exact)
    assert (outcome.passed, outcome.excess) == ((False, inf) if lost else (True, 0.0))


def test_of_what_a_metric_may_lose_a_trial_may_use_a_part():
    def closeness(reference, candidate, _labels):
        pairs = zip(reference, candidate, strict=True)
        return -sum(float(np.abs(r["y"] - c["y"]).sum()) for r, c in pairs)

    ill = rounded_once()
    ill.proto.graph.node[0].output[0] = ill.proto.graph.output[0].name = "y"
    prepared = prepare(ill)

    def outcome(drop: float, factor: float) -> Outcome:
        criterion = Criterion(metric="closeness", metric_drop=drop)
        return prepared.bench(criterion, closeness, factor).evaluate(NONE)

    lost = outcome(1.0, 1.0).excess
    assert outcome(lost, 0.8).excess == pytest.approx(1 / 0.8)
    assert outcome(lost / 0.9, 1.0).passed
    assert not outcome(lost / 0.9, 0.8).passed


@pytest.mark.parametrize(
    ("drop", "value", "used"),
    [
        (0.5, 0.8, 0.5),
        (0.5, 2, 0),
        (0.5, np.nan, inf),
        (0.5, -inf, inf),
        (0, 1, 0),
        (0, 2, 0),
        (0, 0.999, inf),
        (0, np.nan, inf),
    ],
)
def test_what_a_plan_uses_of_what_a_trial_may_lose(drop, value, used):
    def metric(_references, candidates, _labels):
        return float(candidates[0]["y"])

    tolerance = Tolerance(Criterion(metric="own", metric_drop=drop), metric, 0.8)
    samples = prepare(models.small()).samples.select([0])
    found = tolerance.excess([{"y": np.array(value)}], samples, [{"y": np.array(1.0)}])
    assert found == pytest.approx(used)


def test_new_nonfinite_values_fail_whatever_the_metric_says():
    bench = prepare(models.bare_logarithm()).bench(Criterion(metric="fine"), lambda *_: 1.0)
    outcome = bench.evaluate(NONE)
    assert (outcome.passed, outcome.excess, outcome.nonfinite) == (False, inf, True)
    assert bench.evaluate(names("square", "log")).passed


@pytest.mark.parametrize("labels", [tuple(range(100, 112)), None])
def test_labels_stay_with_their_samples(labels):
    seen = []

    def metric(_reference, _candidate, labels):
        seen.append(labels if labels is None else tuple(labels))
        return 1.0

    prepared = prepare(rounded_once(), labels=labels)
    assert isinstance(prepared.samples, Samples)
    bench = prepared.bench(Criterion(metric="m"), metric)
    bench.survey(NONE, Silent())
    assert bench.evaluate(names("mul")).passed
    assert {*seen} == {labels}


@pytest.mark.parametrize(("lost", "passed"), [(0.0, True), (1.0, False)])
def test_what_a_survey_shows_of_a_metric_is_not_run_again(lost, passed):
    metric = lambda ref, new, _: 1.0 if new is ref else 1.0 - lost  # noqa: E731
    bench = prepare(rounded_once()).bench(Criterion(metric="m", metric_drop=0.1), metric)
    bench.survey(NONE, Silent())
    assert bench.evaluate(NONE).passed is passed
    assert bench.exact(NONE) == bench.evaluate(NONE).excess
    assert bench.evaluations == 1


def test_a_metric_that_cannot_judge_at_all_is_reported():
    def metric(*_):
        raise CaseError("broken", "")

    bench = prepare(rounded_once()).bench(Criterion(metric="broken"), metric)
    with pytest.raises(CaseError, match="broken"):
        bench.evaluate(NONE)
