import numpy as np
import onnx
import pytest
from onnx.helper import make_tensor_value_info

from halfwise.emulation.ort import Session
from halfwise.graph.model import load_network, network_from_proto
from halfwise.tensorrt.worker.failures import EngineFailed
from halfwise.tools.diagnose.kernels import fp32_engine, low_engine
from tests.fake_tensorrt.faults import Fault
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
    assert "not precision: a kernel or compiler fault, at b" in rung.cause
    texts = " ".join(sign.text for sign in rung.evidence)
    assert "With optimization level 0: the engine is still wrong." in texts
    assert "marked, which breaks fusions there: the engine is still wrong" in texts
    assert "off by 0.3 (relative RMS) too" in texts
    assert rung.advice[0].startswith("Try another version")


def test_the_reproducer_is_a_model_with_its_inputs(subject):
    made = subject(fake={"broken": {"b": 1.3}})
    fp32_engine(made)
    folder = made.folder / "reproducer"
    assert sorted(p.name for p in folder.iterdir()) == [
        *("README.md", "expected.npz", "inputs.npz", "model.onnx")
    ]
    onnx.checker.check_model(onnx.load(folder / "model.onnx"), full_check=True)
    with np.load(folder / "inputs.npz") as inputs, np.load(folder / "expected.npz") as expected:
        feed = {name: inputs[name][0] for name in inputs}
        found = Session(load_network(folder / "model.onnx").model).run(feed)
        given = np.asarray(found["b_out"], np.float32)
        np.testing.assert_allclose(given, expected["b_out"][0], rtol=1e-5, atol=1e-6)
    assert "engine:fp32" in (folder / "README.md").read_text()


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_a_low_kernel_that_is_wrong_although_its_emulation_is_right(subject, version):
    made = subject(fake={"version": version, "lossy": {"b": 1.5}})
    assert fp32_engine(made).passed
    rung = low_engine(made)
    assert rung.passed is False
    assert rung.rung == 7
    assert rung.nodes == ("b",)
    assert "the emulation of the same plan is right" in rung.cause


def test_an_engine_that_cannot_be_built(subject):
    rung = fp32_engine(subject(fake={"faults": [Fault("build", "memory")]}))
    assert rung.passed is False
    assert "builds no engine" in rung.cause


@pytest.mark.parametrize("on", [(1,), (4,)])
def test_an_engine_that_cannot_be_run(subject, on):
    rung = fp32_engine(subject(fake={"faults": [Fault("run", "segv", on=on)]}))
    assert rung.passed is False
    assert rung.evidence[0].severity == "error"


def test_a_lost_worker_is_no_answer(subject):
    with pytest.raises(EngineFailed):
        fp32_engine(subject(fake={"faults": [Fault("build", "disconnect")]}))


def test_what_cannot_be_tried_is_told(subject):
    # TensorRT 11 of the fake has these tactic sources; a build that dies is told too.
    made = subject(fake={"broken": {"b": 1.3}, "faults": [Fault("build", "segv", (5,))]})
    rung = fp32_engine(made)
    assert any("is not built" in sign.text for sign in rung.evidence)
