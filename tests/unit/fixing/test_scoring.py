"""What plans of small models give on held-out samples."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from halfwise.errors import CaseError, RunFailed
from halfwise.fixing import holding, scoring
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.scoring import HeldOut, Scoring, demand, pass_on
from halfwise.judging.judge import Judged, judge_outputs, run_as_file
from halfwise.progress import Silent
from halfwise.records import Criterion, NodeName
from halfwise.reporting.remarks import reasons
from tests import models
from tests.models import Ill, signals, weights
from tests.tasks import classifier, close_calls, fixed
from tests.unit.fixing.running import Listener, found, kept, planner
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.judging.test_inside import cube

pytestmark = pytest.mark.usefixtures("unrepaired")


def given(scoring: Scoring, kept) -> Any:
    return scoring.given(kept)


NONE = frozenset[NodeName]()


@pytest.fixture(scope="module")
def normal() -> Fixed:
    return fixed(models.layer_norm())


def test_a_plan_is_measured_once(normal):
    scoring, trials = Scoring(normal.planner, normal.heldout), normal.planner.trials
    kept = normal.found.kept
    assert scoring.given(kept) is None
    assert scoring.casts(kept) is None
    before = trials.evaluations
    scoring.measure(kept)
    scoring.measure(kept)
    assert trials.evaluations == before + 1
    assert given(scoring, kept).rel_max < 0.01
    assert scoring.casts(kept) == normal.plan.casts


def test_the_model_itself_has_run_already(normal):
    scoring, trials = Scoring(normal.planner, normal.heldout), normal.planner.trials
    everything, before = frozenset(normal.planner.roles), trials.evaluations
    scoring.measure(everything, original=True)
    assert trials.evaluations == before
    assert given(scoring, everything).heldout == 0


def test_what_a_plan_lacks_inside_is_what_overflows(normal):
    scoring = Scoring(normal.planner, normal.heldout)
    assert scoring.needs(NONE) is None
    scoring.look_inside(NONE)
    scoring.look_inside(normal.found.kept)
    needs = scoring.needs(NONE)
    assert needs
    assert needs <= models.layer_norm().kept
    assert scoring.needs(normal.found.kept) == NONE


def test_a_task_is_scored_beside_that_of_fp32():
    found = fixed(classifier())
    scoring: Any = Scoring(found.planner, found.heldout)
    assert scoring.reference == ()
    scoring.measure(NONE)
    (score,) = given(scoring, NONE).scores
    assert (score.metric, score.value, score.passed) == ("top1", 1.0, True)
    (own,) = scoring.reference
    assert own.value == 1.0


def test_with_a_metric_the_error_on_held_out_samples_is_what_it_falls():
    found = fixed(classifier(), metric="snr", metric_drop=0)
    scoring: Any = Scoring(found.planner, found.heldout)
    scoring.measure(NONE)
    mixed = given(scoring, NONE)
    (score,) = mixed.scores
    (own,) = scoring.reference
    assert mixed.heldout == pytest.approx(1 + own.value - score.value)
    assert mixed.heldout > 1


def test_samples_of_the_search_may_fail_where_held_out_ones_pass():
    found = fixed(close_calls())
    scoring: Any = Scoring(found.planner, found.heldout)
    assert scoring.searched(NONE) is None
    scoring.measure(NONE)
    scoring.search(NONE)
    assert all(score.passed for score in given(scoring, NONE).scores)
    assert scoring.searched(NONE) is False


def left_of(fixed: Fixed) -> HeldOut:
    return fixed.heldout.for_watcher(Silent())


def failing(heldout: HeldOut, *indices: int) -> Judged:
    """Judge outputs that are wrong on some samples."""
    results = [
        {name: array + (10.0 if i in indices else 0.0) for name, array in reference.items()}
        for i, reference in enumerate(heldout.references)
    ]
    return judge_outputs(results, heldout.samples, heldout.references, Criterion(), None)


def test_failing_samples_join_the_calibration_and_the_rest_judges():
    fixed = found(models.layer_norm())
    heldout = left_of(fixed)
    first, second = fixed.heldout.samples.ids
    before = fixed.planner.trials.samples.ids
    assert heldout.join(failing(heldout, 1))
    assert (heldout.joined, heldout.filed) == ([second], [])
    assert heldout.samples.ids == (first,)
    assert len(heldout.references) == 1
    assert fixed.planner.trials.samples.ids == (*before, second)
    assert fixed.planner.evidence.observations.samples == (*before, second)
    assert not heldout.join(failing(heldout, 0))


def test_what_passed_does_not_join():
    heldout = left_of(found(models.layer_norm()))
    assert not heldout.join(failing(heldout))
    assert heldout.joined == []


def test_without_any_the_calibration_is_judged():
    ill = models.layer_norm()
    fixed = found(Ill(ill.proto, {"x": ill.inputs["x"][:1]}))
    heldout = left_of(fixed)
    assert not heldout.unseen
    assert heldout.samples.ids == fixed.planner.trials.samples.ids
    assert not heldout.join(failing(heldout, 0))


def chain() -> Ill:
    s = Sketch()
    x = s.input("x", [1, 8])
    for i in range(4):
        x = s.op("MatMul", x, weights(8, 8, seed=i, scale=0.3), name=f"mat{i}")
    return Ill(s.proto(x), {"x": signals(1, 8, seed=3, count=12)})


def reversed_while_low(node, model, samples, references, *, runtime):
    results = run_as_file(model, samples, references, runtime=runtime)
    (own,) = [n for n in model.graph if n.name == node]
    low = own.outputs[0].dtype.name == "FLOAT16"
    return [{n: a[..., ::-1] if low else a for n, a in r.items()} for r in results]


def filed_failing(*_, **__):
    raise RunFailed("it does not run")


def refusing(*_, **__):
    raise CaseError("it does not load")


@pytest.mark.parametrize("options", [{}, {"metric": "snr", "metric_drop": 60.0}])
def test_the_search_goes_on_until_the_file_passes(monkeypatch, options):
    for module in (scoring, holding):
        monkeypatch.setattr(module, "run_as_file", partial(reversed_while_low, "mat2"))
    listener = Listener()
    fixed = found(chain(), listener, **options)
    assert kept(fixed) == {"mat2"}
    assert fixed.verdict.passed
    assert fixed.verdict.as_file is not None
    assert fixed.verdict.as_file.passed
    assert fixed.search.joined
    assert fixed.search.filed == fixed.search.joined
    assert any("fail as ONNX Runtime runs the file" in note for note in listener.notes)


def test_what_is_demanded_of_one_planner_is_of_another(monkeypatch):
    monkeypatch.setattr(scoring, "run_as_file", partial(reversed_while_low, "mat2"))
    one, other = planner(chain()), planner(chain())
    pass_on(one, other)
    nothing, node = frozenset[str](), frozenset({"mat2"})
    assert other.trials.beyond(nothing) == 0
    first, rest = one.trials.samples.select([0]), one.trials.samples.select([1, 2])
    demand(one, first, tuple(one.trials.references[:1]))
    demand(one, rest, tuple(one.trials.references[1:3]))
    pass_on(one, other)
    assert len(other.trials.beyond.samples) == 3
    assert other.trials.beyond(nothing) > 1 > other.trials.beyond(node)


def test_a_file_that_is_refused_demands_nothing_and_one_that_fails_is_out(monkeypatch):
    made = planner(chain())
    demand(made, made.trials.samples, tuple(made.trials.references))
    monkeypatch.setattr(scoring, "run_as_file", refusing)
    assert made.trials.beyond(frozenset()) == 0
    monkeypatch.setattr(scoring, "run_as_file", filed_failing)
    assert made.trials.beyond(frozenset()) > 1


LARGE = f32(np.linspace(-400, 400, 64).reshape(1, 64))


def test_what_is_held_is_told_and_minimal():
    listener = Listener()
    fixed = found(models.small_token(), listener)
    assert kept(fixed) == models.small_token().kept
    assert fixed.plan.minimal
    assert fixed.verdict.passed
    assert any("infinite inside" in note for note in listener.notes)
    assert {g.tensor for g in fixed.guards if g.kind == "infinite"} == {
        *("square_out", "mean_out", "eps_out"),
    }


def test_what_the_outputs_need_too_has_its_own_reason():
    ill = models.small_token()
    both = np.concatenate([ill.inputs["x"], ill.inputs["x"][:, :, ::-1]])
    fixed = found(Ill(ill.proto, {"x": both}))
    assert kept(fixed) == ill.kept
    assert all(k.guard != "infinite" and k.error_without for k in fixed.plan.keep)


def test_heldout_samples_that_alone_are_infinite_inside_join():
    ill = models.small_token()
    calm = np.array(ill.inputs["x"])
    calm[:, :, -1, 5] = 0.1
    fixed = found(Ill(ill.proto, {"x": calm}), heldout={"x": ill.inputs["x"]})
    assert kept(fixed) == ill.kept
    assert fixed.verdict.passed
    assert fixed.search.joined
    assert fixed.verdict.intermediate_nonfinite == ()


def test_the_last_heldout_sample_fails():
    ill = models.small_token()
    calm = np.array(ill.inputs["x"])
    calm[:, :, -1, 5] = 0.1
    fixed = found(Ill(ill.proto, {"x": calm}), heldout={"x": ill.inputs["x"][:1]})
    assert not fixed.verdict.passed
    assert any("infinite inside" in reason for reason in reasons(fixed.verdict.failures))


def test_what_a_rule_lowers_stays_infinite():
    fixed = found(models.small_token(), lower=["square"])
    assert "square" not in kept(fixed)
    assert fixed.verdict.passed
    assert any(i.harmless is False for i in fixed.verdict.intermediate_nonfinite)


def test_what_reads_an_infinity_that_a_rule_makes_is_not_kept_in_vain():
    s = Sketch()
    x = s.input("x", [1, 64])
    inverse = s.op("Reciprocal", s.op("Mul", x, f32(1e6), name="large"), name="inverse")
    y = s.op("Add", x, s.op("Mul", inverse, f32(3.0), name="little"), name="end")
    ill = Ill(s.proto(y), {"x": np.abs(models.signals(1, 64, seed=7)) + np.float32(0.5)})
    assert kept(found(ill)) == {"large", "inverse"}
    fixed = found(ill, lower=["large"])
    assert kept(fixed) == set()
    assert fixed.verdict.passed
    assert any(i.harmless is False for i in fixed.verdict.intermediate_nonfinite)


def test_what_zeros_make_infinite_is_kept_from_it():
    s = Sketch()
    x = s.input("x", [1, 64])
    # log(x²) is -inf where the square becomes zero, and counts a thousandth of the rest.
    log = s.op("Log", s.op("Mul", x, x, name="square"), name="log")
    part = s.op("Max", log, f32(-30.0), name="floor")
    y = s.op("Add", x, s.op("Mul", part, f32(1e-4), name="little"), name="end")
    data = models.signals(1, 64, seed=7)
    data[..., ::7] = 3e-5
    fixed = found(Ill(s.proto(y), {"x": data}))
    assert {"square", "log"} <= kept(fixed)
    assert fixed.verdict.intermediate_nonfinite == ()


def ends(s: Sketch, *outputs: str, x=LARGE) -> dict[str, str | None]:
    """Return how what is infinite inside ends, with everything low."""
    fixed = found(Ill(s.proto(*outputs), {"x": np.stack([x, x / 2])}))
    return {i.tensor: i.ends for i in fixed.verdict.intermediate_nonfinite}


def test_that_the_reference_is_at_the_limit_is_told_where_it_was_seen_alone():
    s = Sketch()
    assert ends(s, s.op("Tanh", cube(s), name="gate")) == {"cube_out": "limit"}
    s = Sketch()
    inner = cube(s)
    sizes = s.op("Shape", inner, name="sizes")
    small = s.op("Mul", "x", f32(2.0), name="small")
    assert ends(s, s.op("Reshape", small, sizes, name="y")) == {"cube_out": "unread"}
