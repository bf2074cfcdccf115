import numpy as np
import pytest

from halfwise.fixing.engines.attempts import USUAL, Candidate
from halfwise.fixing.engines.table import Table
from halfwise.tensorrt.failures import EngineFailed
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.models import Ill
from tests.unit.casing import names
from tests.unit.graph.sketch import Sketch
from tests.unit.reporting.engine_runs import build

KEPT = names(*models.layer_norm().kept)
NOTHING = names()


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_plans_are_built_and_measured(stage, version):
    ready = stage(models.layer_norm(), version=version)
    attempts, trials = ready.attempts, ready.fixed.planner.trials
    mixed, plain = attempts.attempt(KEPT, "mixed"), attempts.attempt(NOTHING, "plain")
    assert (mixed.passed, plain.passed) == (True, False)
    assert mixed.excess == pytest.approx(trials.excess(KEPT), rel=1e-3)
    assert plain.excess > 10
    assert mixed.latency.shapes == {"x": (1, 4, 32)}
    weak = version == "8.6.1"
    assert mixed.build.config.low == ("fp16" if weak else None)
    assert (set(mixed.build.config.keep) >= KEPT) == weak
    assert plain.build.config.keep == ()
    assert (mixed.build.config.model_sha256 == plain.build.config.model_sha256) == weak


def test_what_does_not_run_is_told(stage):
    ready = stage(models.layer_norm(), faults=[Fault("run", "segv")])
    attempts = ready.attempts
    candidate = attempts.attempt(KEPT, "mixed")
    assert (candidate.excess, candidate.passed) == (None, False)
    assert "SIGSEGV" in candidate.failure
    assert any("does not run" in note for note in ready.notes)
    assert attempts.again(candidate) == candidate


def test_a_worker_that_is_lost_when_a_plan_is_measured_again_tells_nothing_of_it(
    stage, monkeypatch
):
    ready = stage(models.layer_norm())
    candidate = ready.attempts.attempt(KEPT, "mixed")

    def lost(*_):
        raise EngineFailed("The connection is lost.", status="lost")

    with monkeypatch.context() as patched:
        patched.setattr(ready.run.measure, "outputs", lost)
        assert ready.attempts.again(candidate).untold
    assert ready.attempts.again(candidate).passed


def test_what_cannot_be_built_has_no_error(stage):
    ready = stage(models.layer_norm(), faults=[Fault("build", "memory")])
    candidate = ready.attempts.attempt(KEPT, "mixed")
    assert candidate.build.status == "failed"
    assert (candidate.excess, candidate.failure) == (None, "")


@pytest.mark.parametrize(("on", "builds"), [((1,), 2), (range(1, 10), 2)])
def test_a_connection_lost_in_a_run_is_not_held_against_a_plan_at_once(stage, on, builds):
    ready = stage(models.layer_norm(), faults=[Fault("run", "disconnect", on=tuple(on))])
    candidate = ready.attempts.attempt(KEPT, "mixed")
    assert candidate.passed == (len(on) == 1)
    assert candidate.lost == (len(on) > 1)
    assert [o.status for o in ready.run.builds.outcomes] == ["built"] * builds
    first, *later = ready.notes
    assert "is lost: " in first
    assert [note.endswith("does not run, as before") for note in later] == [True] * (len(on) > 1)


def test_what_an_engine_alone_refuses_is_its_own_failure(stage):
    fault = Fault("deserialise", "device", when={"low": "fp16"})
    ready = stage(models.layer_norm(), faults=[fault])
    candidate = ready.attempts.attempt(KEPT, "mixed")
    assert candidate.build.engine is not None
    assert "cannot read the engine" in candidate.failure


def here(ready):
    return {path.stem for path in ready.run.fetched.folder.glob("*.engine")}


def test_of_a_plan_s_engines_that_pass_the_fastest_is_brought_here(stage, monkeypatch):
    ready = stage(models.layer_norm(), vary=(0.5, 1))
    attempts, took = ready.attempts, iter((5.0, 3.0, 4.0))
    time = ready.worker.time
    monkeypatch.setattr(
        ready.worker,
        "time",
        lambda *a, **k: time(*a, **k).model_copy(update={"median_ms": next(took)}),
    )
    built = []
    for step in ("first", "faster", "slower"):
        candidate = attempts.attempt(KEPT, step)
        assert candidate.passed
        built.append(candidate.build.engine.sha256)
        assert here(ready) == {built[0] if step == "first" else built[1]}
    assert len(set(built)) == 3


def test_what_fails_is_not_brought_here_but_for_the_table(stage):
    ready = stage(models.layer_norm())
    attempts = ready.attempts
    assert not attempts.attempt(names("gamma"), "wrong").passed
    assert here(ready) == set()
    plain = attempts.attempt(NOTHING, "plain low precision")
    assert not plain.passed
    assert here(ready) == {plain.build.engine.sha256}


def test_candidates_are_measured_again_on_samples_that_joined(stage):
    ready = stage(models.layer_norm())
    attempts, planner = ready.attempts, ready.fixed.planner
    first = attempts.attempt(KEPT, "mixed")
    larger = ready.case.heldout.select([0])
    grown = type(larger)(larger.ids, lambda _: {"x": larger[0]["x"] * 0 + 1e-3})
    planner.join(grown, ready.run.measure.references(grown), planner.evidence)
    again = attempts.again(first)
    assert again.build == first.build
    assert again.latency == first.latency
    assert again.excess == pytest.approx(planner.trials.excess(KEPT), rel=1e-3)


def test_marked_tensors_are_outputs(stage):
    ready = stage(models.layer_norm())
    build = ready.attempts.marked((KEPT, USUAL), ["square_out"])
    assert build.config.outputs == ("square_out",)
    assert set(build.config.keep) >= KEPT
    assert {"square_out", "gamma_out"} == set(
        ready.run.measure.run(build.engine, ready.case.calibration[0])
    )


def test_what_must_be_fp32_is_constrained_even_where_nothing_is_kept(stage):
    s = Sketch()
    window = s.op("HannWindow", np.asarray(16), name="pinned")
    proto = s.proto(s.op("Mul", s.input("x", [1, 16]), window, name="times"))
    ill = Ill(proto, {"x": models.signals(1, 16, seed=1)})
    ready = stage(ill)
    assert ready.attempts.attempt(NOTHING, "plain").build.config.keep == ("pinned",)


def test_tf32_where_it_is_asked_for(stage):
    ready = stage(models.layer_norm(), engine={"tf32": True})
    assert ready.attempts.attempt(KEPT, "mixed").build.config.tf32


@pytest.mark.parametrize(
    ("ill", "type_", "version"),
    [
        (models.busy_product(), "tf32", "8.6.1"),
        (models.busy_product(), "tf32", "10.0.1"),
        (models.huge_weights(), "bf16", "10.0.1"),
    ],
    ids=["tf32-weak", "tf32-strong", "bf16"],
)
def test_engines_are_asked_for_the_types_of_the_plan(stage, ill, type_, version):
    ready = stage(ill, version=version, options={f"allow_{type_}": True})
    fixed, attempts = ready.fixed, ready.attempts
    kept = {k.node: k.precision for k in fixed.plan.keep}
    assert type_ in kept.values()
    found = attempts.attempt(fixed.found.kept, "mixed")
    assert found.build.config.tf32 == (type_ == "tf32")
    (offer,) = Table(ready.run, fixed.planner, fixed.heldout).further((), [found], [found])
    proof = offer.row.proof
    assert proof is not None
    assert kept.items() <= {n.node: n.asked for n in proof.nodes}.items()
    assert proof.findings == ()


@pytest.mark.parametrize(
    ("excess", "passed"), [(None, False), (0.0, True), (1.0, True), (1.1, False)]
)
def test_passing(excess, passed):
    assert Candidate(frozenset(), "", build(1, "mixed"), excess).passed is passed
