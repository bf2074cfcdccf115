import errno
import os

import numpy as np
import onnx
import pytest

from halfwise.errors import CaseError, UsageError
from halfwise.fixing.engines import device
from halfwise.fixing.engines.device import Fetched
from halfwise.fixing.engines.measure import ROUNDS
from halfwise.records import Profile, ShapeRange, TensorName, replace
from halfwise.reporting.remarks import reasons
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.models import Ill
from tests.unit.graph.sketch import Sketch, f32


def test_a_run_in_order(stage):
    ready = stage(models.layer_norm(), engine={"builds": 2, "max_builds": 1})
    proof = ready.proven()
    assert proof.verdict.passed
    assert proof.plan is not None
    assert proof.plan.keep == models.layer_norm().kept
    engines = proof.engines[""]
    assert [row.name for row in engines.results] == [
        *("FP32, TF32 off", "FP32, TF32 on", "FP16", "mixed")
    ]
    assert engines.delivered == engines.results[-1].build.engine
    assert (engines.confirmed, len(engines.spread)) == (2, 2)
    assert [r.build for r in engines.rounds] == [3, 4, 5]
    assert all(r.measured == pytest.approx(r.predicted, rel=1e-3) for r in engines.rounds)
    assert ready.run.stages.seconds.keys() == {"FP32 engines", "engines", "verdict"}


def test_the_fp32_engine_is_wrong(stage):
    ready = stage(models.layer_norm(), broken={"square": 1.5})
    wrong = ready.run.reference()
    assert wrong is not None
    assert "precision is not the problem" in reasons(wrong.verdict.failures)[0]
    assert wrong.engines[""].delivered is wrong.plan is None
    assert any("SNR ≥ 60 dB" in note for note in wrong.engines[""].notes)


@pytest.mark.parametrize("place", ["deserialise", "run"])
def test_a_connection_lost_once_does_not_end_the_command(stage, place):
    ready = stage(models.layer_norm(), faults=[Fault(place, "disconnect", on=(1,))])
    assert ready.run.reference() is None


def test_calibration_samples_that_no_engine_takes_end_the_command_at_once(stage):
    s = Sketch()
    ids = s.input("ids", [1, 4], onnx.TensorProto.INT64)
    out = s.op("Mul", s.op("Cast", ids, name="cast", to=onnx.TensorProto.FLOAT), 1e-3, name="mul")
    inputs = np.arange(32, dtype=np.int64).reshape(8, 1, 4)
    inputs[0] += 1 << 40
    ready = stage(Ill(s.proto(out), {"ids": inputs}), heldout={"ids": inputs[4:]})
    with pytest.raises(CaseError, match="which int32 cannot hold"):
        ready.run.reference()


def test_engines_that_only_the_fp32_one_is_not(stage):
    fault = Fault("deserialise", "device", when={"low": "fp16"})
    ready = stage(models.layer_norm(), faults=[fault])
    proof = ready.proven()
    assert proof.verdict.passed
    assert (proof.engines[""].rung, proof.engines[""].rungs[-1].end) == ("fp32", "not-run")
    assert proof.engines[""].causes == ()
    assert all(r.measured is None for r in proof.engines[""].rounds)
    failures = {row.name: row.failure for row in proof.engines[""].results}
    assert failures["FP32, TF32 off"] == failures["FP32, TF32 on"] == ""
    assert "cannot read the engine" in failures["FP16"]


def test_what_passed_and_cannot_be_fetched_is_told(stage, tmp_path):
    ready = stage(models.layer_norm())
    proof = ready.proven()
    engine = proof.engines[""].delivered
    brought = ready.run.brought(proof, {"": tmp_path / "e"})
    assert brought.engines[""].delivered.side == "here"
    assert brought.verdict == proof.verdict
    ready.worker.forget(engine)
    ready.device.fetched = Fetched(ready.worker, ready.device.fetched.folder)
    gone = ready.run.brought(proof, {"": tmp_path / "e"})
    assert gone.engines[""].delivered is None
    assert (gone.engines[""].rung, gone.engines[""].rungs[-1].end) == (None, "unfetched")
    assert not gone.verdict.passed
    assert f"cannot be fetched from {engine.path} on" in reasons(gone.verdict.failures)[-1]
    assert ready.run.brought(gone, {"": tmp_path / "e"}) == gone


def test_no_low_engine_is_right(stage):
    # A fault that only a constraint on every node would avoid, and builds for one try.
    ready = stage(models.layer_norm(), lossy={"gamma": 1.5}, engine={"max_builds": 1})
    proof = ready.proven()
    assert proof.verdict.passed
    assert proof.plan is not None
    assert proof.plan.is_full
    engines = proof.engines[""]
    assert (engines.rung, engines.keep) == ("fp32", ())
    assert engines.delivered == engines.results[0].build.engine
    low = engines.rungs[-1]
    assert (low.rung, low.end) == ("fp16", "tolerance")
    assert [c.kind for c in engines.causes] == ["unknown"]
    assert [row.name for row in engines.results][-1] == "mixed"


def test_where_fp32_is_out_of_tolerance_too_nothing_is_delivered(stage):
    # TF32 and FP32 differ from the reference by more than nothing.
    ready = stage(
        models.layer_norm(), broken={"gamma": 1.00002}, options={"rel_max": 1e-5, "margin": 1.0}
    )
    proof = ready.proven()
    assert not proof.verdict.passed
    assert proof.engines[""].rung is proof.engines[""].delivered is None
    assert {tried.end for tried in proof.engines[""].rungs} == {"tolerance"}
    assert "no engine of" in reasons(proof.verdict.failures)[0]


def test_a_faster_tf32_engine_is_delivered_although_a_mixed_one_passes(stage):
    pace = {"fp32": 3.0, "tf32": 0.5, "low": 2.0, "border": 0.0}
    ready = stage(models.conv_chain(), pace=pace, options={"snr_db": 30.0, "rel_max": 0.1})
    proof = ready.proven()
    assert proof.verdict.passed
    assert proof.engines[""].rung == "tf32"
    assert [tried.end for tried in proof.engines[""].rungs] == ["slower", "delivered", "slower"]
    medians = {r.rung: r.latency.medians for r in proof.engines[""].results if r.verdict.passed}
    assert {len(m) for m in medians.values()} == {ROUNDS}
    assert max(medians["tf32"]) < min(medians["fp32"])


def test_on_small_models_an_engine_is_proven_within_three_builds(stage):
    ready = stage(models.residual(), version="10.0.1", engine={"builds": 1, "max_builds": 1})
    proof = ready.proven()
    assert any("build 1 is proven" in note for note in ready.listener.notes)
    assert proof.engines[""].delivered is not None


def test_without_tf32_on_the_gpu_no_engine_with_it_is_built(stage, monkeypatch):
    ready = stage(models.layer_norm())
    turing = replace(ready.worker.info, compute_capability="7.5")
    monkeypatch.setattr(ready.worker, "info", turing)
    proof = ready.proven()
    assert proof.verdict.passed
    assert not any(b.config.tf32 for b in proof.engines[""].builds)
    assert "no-tf32" in proof.engines[""].spared
    assert [tried.rung for tried in proof.engines[""].rungs] == ["fp32", "fp16"]


def test_within_the_noise_of_times_one_is_delivered(stage):
    pace = {"fp32": 1.0, "low": 0.999, "border": 0.0, "jitter": 0.2}
    ready = stage(models.layer_norm(), pace=pace)
    proof = ready.proven()
    assert proof.verdict.passed
    # Without a product TF32 computes what FP32 does.
    assert proof.engines[""].rung in ("fp32", "tf32")
    ends = {tried.end for tried in proof.engines[""].rungs}
    assert ends == {"delivered", "slower"}


@pytest.mark.parametrize("crashes", [False, True])
def test_without_held_out_samples_an_engine_is_left_and_none_is_called_off(stage, crashes):
    ill = models.layer_norm()
    faults = [Fault("build", "segv", when={"low": "fp16"})] if crashes else []
    ready = stage(Ill(ill.proto, {"x": ill.inputs["x"][:1]}), faults=faults)
    proof = ready.proven()
    assert not proof.verdict.passed
    assert proof.verdict.within
    engines = proof.engines[""]
    assert engines.delivered is not None
    assert engines.rung == ("fp32" if crashes else "fp16")
    assert engines.causes == ()


def wide() -> Ill:
    """Sample 3, which is held out, is ten times as large as all others."""
    s = Sketch()
    scaled = s.op("Mul", s.input("x", [1, 16]), 1.5, name="scale")
    inputs = {"x": models.signals(1, 16, seed=3, peak=1, count=16)}
    inputs["x"][3] *= 10
    return Ill(s.proto(s.op("Add", scaled, 0.1, name="shift")), inputs)


def test_heldout_samples_that_fail_without_builds_left_leave_fp32(stage):
    ready = stage(
        wide(),
        options={"max_abs": 0.06},
        lossy={"scale": 1.01, "shift": 1.01},
        engine={"max_builds": 1},
    )
    proof = ready.proven()
    assert proof.verdict.passed
    assert proof.engines[""].rung == "fp32"
    assert ready.fixed.heldout.joined == ("inputs[3]",)


def test_constraints_that_reach_no_layer_are_told(stage):
    s = Sketch()
    constant = s.op("Mul", f32([3.0]), f32([2.0]), name="folded")
    x = s.op("Mul", s.input("x", [1, 4]), constant, name="times")
    ill = Ill(s.proto(x), {"x": models.signals(1, 4, seed=1)})
    ready = stage(ill, options={"keep": ["folded", "times"]})
    proof = ready.proven()
    unconstrained = proof.engines[""].results[-1].build.unconstrained
    assert any("No constraint reached folded" in n for n in proof.engines[""].notes) == bool(
        unconstrained
    )


def test_what_the_worker_cannot_do_is_told_before_anything_is_built(stage):
    with pytest.raises(UsageError, match="has no strong typing"):
        stage(models.layer_norm(), engine={"typing": "strong"})


def test_samples_outside_every_profile(stage):
    s = Sketch()
    relu = s.op("Relu", s.input("x", ["n", 4]), name="relu")
    shape = ShapeRange(min=(5, 4), opt=(5, 4), max=(6, 4))
    profile = Profile(shapes={TensorName("x"): shape})
    with pytest.raises(CaseError):
        stage(
            Ill(s.proto(relu), {"x": models.signals(2, 4, seed=1)}),
            engine={"profiles": (profile,)},
        )


def test_what_the_user_keeps_stays_although_the_engine_does_not_need_it(stage):
    block = ("square", "variance", "eps", "root", "divide")
    ready = stage(
        models.layer_norm(), options={"keep": ["gamma"]}, fused=[block], engine={"max_builds": 4}
    )
    proof = ready.proven()
    assert proof.verdict.passed
    assert proof.plan is not None
    assert "gamma" in proof.plan.keep
    low = [row.name for row in proof.engines[""].results if row.rung == "fp16"]
    assert low[0] == "FP16"
    assert all(name.startswith("mixed") for name in low[1:])


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_fills_keeps_the_engine_that_passed(stage, monkeypatch):
    ready = stage(models.layer_norm(), version="10.0.1")
    once = ready.device.builds._once

    def then_full(*args, **named):
        outcome = once(*args, **named)
        if ready.fixed.result.kept and len(ready.device.builds.outcomes) == 2:  # FP32, and the plan
            monkeypatch.setattr(device, "save", full_disk)
        return outcome

    monkeypatch.setattr(ready.device.builds, "_once", then_full)
    proof = ready.proven()
    assert proof.verdict.passed
    assert proof.engines[""].delivered is not None
    assert any("No space left on device" in note for note in proof.engines[""].notes)


def test_a_disk_that_is_full_before_any_engine_ends_the_run(stage, monkeypatch):
    ready = stage(models.layer_norm(), version="10.0.1")
    monkeypatch.setattr(ready.device.builds.worker, "build", full_disk)
    with pytest.raises(OSError, match="No space left"):
        ready.run.reference()
