from math import inf, log10

import numpy as np
import onnx
import pytest
from onnx.helper import make_tensor_value_info

from halfwise.case import Samples
from halfwise.graph.model import load_network, network_from_proto
from halfwise.tensorrt.worker.failures import EngineFailed
from halfwise.tools.diagnose.kernels import fp32_engine, low_engine
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.regions import Region, Wrong
from tests.unit.graph.sketch import Sketch, f32


def test_without_a_target(subject):
    rung = fp32_engine(subject())
    assert rung.passed
    assert rung.how == "emulated"
    assert low_engine(subject()).how == "skipped"


def test_a_model_that_depends_on_the_order_of_sums(subject):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    one = sketch.op("ReduceMean", x, name="mean", axes=[1])
    centred = sketch.op("Sub", x, one, name="centre")
    still = sketch.op("ReduceMean", centred, name="still", axes=[1])
    y = sketch.op("Mul", still, f32(1e8), name="y")
    network = sketch.network(y)
    rung = fp32_engine(subject(model=network))
    # Whether kernels differ on this machine or not, no node is blamed for rounding.
    assert rung.nodes == ()


def test_outputs_that_no_node_computes(subject):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    constant = sketch.constant(f32(3))
    y = sketch.op("Mul", x, constant, name="y")
    proto = sketch.proto(y)
    proto.graph.output.append(proto.graph.input[0])
    proto.graph.output.append(make_tensor_value_info(constant, onnx.TensorProto.FLOAT, []))
    assert fp32_engine(subject(model=network_from_proto(proto))).passed


def test_engines_that_are_right(subject):
    made = subject(fake={})
    assert fp32_engine(made).cause == "The engine (FP32, TF32 off) is right."
    assert low_engine(made).cause == "The engine (all FP16) is right."


def test_a_kernel_that_is_wrong_in_fp32(subject):
    made = subject(fake={"broken": {"b": 1.3}})
    rung = fp32_engine(made)
    assert rung.passed is False
    assert rung.how == "measured"
    assert rung.nodes == ("b",)
    assert "not precision: a kernel or compiler fault at b." in rung.cause
    found = rung.engine
    assert found.verdict == "kernel"
    assert found.explained
    (fault,) = found.faults
    assert (fault.operators, fault.places, fault.alone) == (("MatMul",), (("b",),), True)
    assert fault.snr_db == pytest.approx(20 * log10(1 / 0.3), abs=0.1)
    assert found.fed_db > found.limit_db
    assert [cure.kind for cure in found.cures] == ["level", "tactics", "marks", "anew"]
    assert not any(cure.right for cure in found.cures)
    assert all(cure.snr_db < 60 for cure in found.cures)
    texts = " ".join(sign.text for sign in rung.evidence)
    assert "With optimization level 0: the engine is still wrong, " in texts
    assert "b_out marked as outputs, which ends fusions there: the engine is still wrong" in texts
    assert rung.advice[0].startswith("Try another version")


def test_a_fusion_that_is_wrong_is_cured_by_a_mark_and_its_engine_is_delivered(subject):
    fault = Wrong(nodes=("b", "centre"), unless="between", size=0.5)
    made = subject(fake={"wrong": [fault]})
    rung = fp32_engine(made)
    assert rung.nodes == ("b", "centre")
    found = rung.engine
    assert found.explained
    assert found.best.kind == "marks"
    assert found.best.config.outputs == ("b_out",)
    assert found.best.snr_db > 60
    assert found.best.median_ms > 0
    assert (made.folder / found.delivered).stat().st_size > 0
    assert found.delivered_model is None
    assert rung.advice[0].startswith("Use the engine cured.engine, built with b_out marked")


def recurrent():
    sketch = Sketch()
    rng = np.random.default_rng(1)
    x = sketch.input("x", [3, 2, 4])
    for name in ("one", "two"):
        w, r = (sketch.constant(f32(rng.normal(size=(1, 12, 4))), f"{name}_{p}") for p in "wr")
        x = sketch.op("Tanh", x, name=f"{name}_in")
        outputs = ["", f"{name}_h"]
        sketch.nodes.append(onnx.helper.make_node("GRU", [x, w, r], outputs, name, hidden_size=4))
        if name == "one":
            x = sketch.op("Concat", *[f"{name}_h"] * 3, axis=0)
    sample = {"x": f32(rng.normal(size=(3, 2, 4)))}
    samples = Samples(("s",), lambda _: sample)
    return sketch.network("two_h"), samples


def test_every_gru_is_one_finding_and_is_cured_by_writing_it_out(subject):
    network, samples = recurrent()
    made = subject(model=network, samples=samples, fake={"wrong": [Wrong(ops=("GRU",))]})
    rung = fp32_engine(made)
    (fault,) = rung.engine.faults
    assert fault.operators == ("GRU",)
    assert rung.nodes == ("one", "two")
    assert rung.engine.builds <= 8
    assert rung.engine.best.kind == "written-out"
    assert rung.engine.best.nodes == ("one", "two")
    written = load_network(made.folder / rung.engine.delivered_model)
    assert "GRU" not in {node.op_type for node in written.nodes()}


def test_a_fault_that_only_shows_where_nothing_is_marked(subject):
    made = subject(fake={"wrong": [Wrong(nodes=("join",), unless="touched", do="nan")]})
    rung = fp32_engine(made)
    assert "join" in rung.nodes
    assert len(rung.nodes) <= 4
    assert rung.engine.verdict == "kernel"
    assert rung.engine.faults[0].snr_db == -inf


def test_builds_are_limited_and_what_is_known_by_then_is_told(subject):
    """The fault needs nearly the whole model."""
    fault = Wrong(nodes=("a", "b", "c", "centre", "join", "d", "e", "y"))
    found = fp32_engine(subject(fake={"wrong": [fault]})).engine
    assert found.builds <= found.most_builds == 10
    assert found.verdict in ("kernel", "unknown")
    assert not found.faults or set(fault.nodes) <= set(found.faults[0].places[0])


def test_a_builder_that_dies_at_a_pattern(subject):
    fault = Fault("build", "segv", region=Region(nodes=("join", "d")))
    made = subject(fake={"faults": [fault]})
    rung = fp32_engine(made)
    assert set(rung.nodes) == {"join", "d"}
    assert rung.engine.symptom == "build"
    assert rung.engine.explained
    assert "cannot be built: The build ended with SIGSEGV." in rung.cause
    assert all(cure.right is None and cure.status == "crashed" for cure in rung.engine.cures)


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_a_low_kernel_that_is_wrong_although_its_emulation_is_right(subject, version):
    made = subject(fake={"version": version, "lossy": {"b": 1.5}})
    assert fp32_engine(made).passed
    rung = low_engine(made)
    assert rung.passed is False
    assert rung.rung == 7
    assert rung.nodes == ("b",)
    assert "although the emulation of the same plan is right." in rung.cause


def test_a_builder_that_never_builds_is_told_as_what_it_is(subject):
    rung = fp32_engine(subject(fake={"faults": [Fault("build", "memory")]}))
    assert rung.passed is False
    assert "cannot be built" in rung.cause
    assert rung.engine.symptom == "build"


def test_an_engine_that_never_runs_is_told_as_what_it_is(subject):
    rung = fp32_engine(subject(fake={"faults": [Fault("run", "segv")]}))
    assert rung.passed is False
    assert "cannot be run" in rung.cause
    assert rung.engine.symptom == "run"


def test_a_lost_worker_is_no_answer(subject):
    with pytest.raises(EngineFailed):
        fp32_engine(subject(fake={"faults": [Fault("build", "disconnect")]}))


def test_what_cannot_be_tried_is_told(subject):
    made = subject(fake={"broken": {"b": 1.3}, "faults": [Fault("build", "segv", (5,))]})
    rung = fp32_engine(made)
    assert any("there is no engine: " in sign.text for sign in rung.evidence)
