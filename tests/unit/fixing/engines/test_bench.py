"""Plans on the stand-in for TensorRT: built, measured, remembered; held-out samples that join."""

import numpy as np
import pytest

from halfwise.fixing.engines.plan import EnginePlan
from halfwise.records import replace
from halfwise.tensorrt.failures import EngineFailed
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.models import Ill
from tests.unit.casing import names
from tests.unit.fixing.engines.test_run import wide
from tests.unit.graph.sketch import Sketch

KEPT, NOTHING = names(*models.layer_norm().kept), names()


def again(ready, row):
    asked = ready.space.bench.samples, ready.space.bench.references
    return ready.device.judged(row, asked, ready.fixed.heldout)


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_plans_are_built_and_measured(stage, version):
    ready = stage(models.layer_norm(), version=version)
    bench, space, kept, nothing = ready.bench(), ready.space, *map(ready.plan, (KEPT, NOTHING))
    mixed, plain = bench.evaluate(kept, "mixed"), bench.evaluate(nothing, "plain", extra=True)
    assert (mixed.passed, plain.passed, bench.budget) == (True, False, 5)
    assert bench.tried == {kept: [mixed], nothing: [plain]}
    assert mixed.excess == pytest.approx(space.bench.excess(space.plan(KEPT)), rel=1e-3)
    assert plain.excess is not None
    assert plain.excess > 10
    weak, (one, other) = version == "8.6.1", (o.worst.build.config for o in (mixed, plain))
    assert one.low == ("fp16" if weak else None)
    assert (set(one.keep) >= KEPT) == weak
    assert other.keep == ()
    assert (one.model_sha256 == other.model_sha256) == weak
    bench.evaluate(kept, "again")
    assert bench.budget == 5
    assert [o.number for o in bench.tried[kept]] == [1, 3]


def test_what_does_not_run_is_told(stage):
    ready = stage(models.layer_norm(), faults=[Fault("run", "segv")])
    outcome = ready.bench().evaluate(ready.plan(KEPT), "mixed")
    assert (outcome.excess, outcome.passed) == (None, False)
    assert "SIGSEGV" in outcome.worst.failure
    assert any("does not run" in note for note in ready.device.notes)
    assert again(ready, outcome.worst) == outcome.worst


def test_a_worker_that_is_lost_when_a_plan_is_measured_again_tells_nothing_of_it(
    stage, monkeypatch
):
    ready = stage(models.layer_norm())
    built = ready.bench().evaluate(ready.plan(KEPT), "mixed").worst

    def lost(*_):
        raise EngineFailed("The connection is lost.", status="lost")

    with monkeypatch.context() as patched:
        patched.setattr(ready.device.measure, "outputs", lost)
        assert again(ready, built).shows_nothing
    assert again(ready, built).excess == built.excess


@pytest.mark.parametrize("on", [(1,), range(1, 10)])
def test_a_connection_lost_in_a_run_is_not_held_against_a_plan_at_once(stage, on):
    ready = stage(models.layer_norm(), faults=[Fault("run", "disconnect", on=tuple(on))])
    outcome = ready.bench().evaluate(ready.plan(KEPT), "mixed")
    assert (outcome.passed, outcome.worst.lost) == (len(on) == 1, len(on) > 1)
    builds = ["built"] * (1 if len(on) == 1 else 2)
    assert [o.status for o in ready.device.builds.outcomes] == builds
    told = ready.device.notes
    assert ["is lost: " in note for note in told[:1]] == [True] * (len(on) > 1)


def test_what_an_engine_alone_refuses_is_its_own_failure(stage):
    fault = Fault("deserialise", "device", when={"low": "fp16"})
    ready = stage(models.layer_norm(), faults=[fault])
    built = ready.bench().evaluate(ready.plan(KEPT), "mixed").worst
    assert built.build.engine is not None
    assert "cannot read the engine" in built.failure


def here(ready):
    return {path.stem for path in ready.device.fetched.folder.glob("*.engine")}


def test_what_passes_is_brought_here(stage):
    ready = stage(models.layer_norm())
    bench = ready.bench()
    assert not bench.evaluate(ready.plan(names("gamma")), "wrong").passed
    assert here(ready) == set()
    right = bench.evaluate(ready.plan(KEPT), "right")
    assert right.passed
    assert here(ready) == {right.worst.build.engine.sha256}


def test_what_must_be_fp32_is_constrained_even_where_nothing_is_kept(stage):
    s = Sketch()
    window = s.op("HannWindow", np.asarray(16), name="pinned")
    proto = s.proto(s.op("Mul", s.input("x", [1, 16]), window, name="times"))
    ready = stage(Ill(proto, {"x": models.signals(1, 16, seed=1)}))
    assert ready.bench().evaluate(ready.plan(NOTHING), "plain").worst.build.config.keep == (
        "pinned",
    )


@pytest.mark.parametrize("terms", [{}, {"tf32": True, "level": 5}])
@pytest.mark.parametrize("tf32", [True, False])
def test_terms_of_a_plan_are_asked_for(stage, terms, tf32):
    ready = stage(models.layer_norm(), engine={"tf32": tf32})
    plan = ready.plan(KEPT, **terms)
    config = ready.bench().evaluate(plan, "mixed").worst.build.config
    assert (config.tf32, config.optimization_level) == (tf32 or plan.tf32, plan.level)


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
    kept = {k.node: k.precision for k in ready.fixed.plan.keep}
    assert type_ in kept.values()
    plan = EnginePlan(ready.fixed.assigned, "fp16")
    bench = ready.bench()
    # Samples that join change nothing of what a plan is.
    sample = ready.space.bench.samples.select([0])
    ready.space.join(sample, [ready.space.bench.references[0]])
    build = bench.evaluate(plan, "mixed").worst.build
    assert build.config.tf32 == (type_ == "tf32")
    proof = ready.device.proof(plan, build)
    assert kept.items() <= {n.node: n.asked for n in proof.nodes}.items()
    assert proof.findings == ()


def test_a_sample_that_the_first_passing_engine_fails_joins_at_once(stage):
    ready = stage(wide(), options={"max_abs": 0.06}, lossy={"scale": 1.01})
    bench, plain = ready.bench(), ready.plan(NOTHING)
    outcome = bench.evaluate(plain, "plain")
    assert bench.heldout.joined == ("inputs[3]",)
    assert "inputs[3]" in bench.space.bench.samples.ids
    # Known builds are measured on it.
    assert not outcome.passed
    assert outcome == bench.tried[plain][0]
    assert not bench.joins(plain) or len(bench.heldout.joined) > 1


def test_a_build_that_ctrl_c_ended_tells_nothing(stage, monkeypatch):
    ready = stage(models.layer_norm())
    bench = ready.bench()
    build = ready.worker.build

    def interrupted(*arguments, **named):
        return replace(build(*arguments, **named), status="interrupted", engine=None)

    monkeypatch.setattr(ready.worker, "build", interrupted)
    assert bench.evaluate(ready.plan(KEPT), "mixed").excess is None
    assert bench.tried == {}
