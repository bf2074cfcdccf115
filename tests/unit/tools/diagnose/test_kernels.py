from math import log10

import onnx
import pytest
from onnx.helper import make_tensor_value_info

from halfwise.graph.loading import network_from_proto
from halfwise.reporting.steps import steps_told
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tools.diagnose.kernels import fp32_engine, low_engine
from tests.fake_tensorrt.faults import Fault
from tests.unit.graph.sketch import Sketch, f32


def told(rung):
    """What a rung tells of engines."""
    assert rung.engine is not None
    return rung.engine


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
    found = told(rung)
    assert found.explained
    assert found.regions == (("b",),)
    assert found.snr_db[0] == pytest.approx(20 * log10(1 / 0.3), abs=0.1)
    assert found.rest_db > found.limit_db
    assert steps_told(rung.advice)[0].startswith("Try another TensorRT version")


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
    assert told(rung).symptom == "build"


def test_what_the_parser_refuses_is_no_fault_of_a_kernel(subject):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    odd = sketch.op("Hardmax", sketch.op("Tanh", x, name="first"), name="odd", axis=1)
    network = sketch.network(sketch.op("Neg", odd, name="last"))
    rung = fp32_engine(subject(model=network, fake={"version": "8.6.1"}))
    assert rung.passed is False
    assert rung.nodes == ("odd",)
    assert "cannot parse the model at node odd" in rung.cause
    assert rung.engine is None


def test_an_engine_that_never_runs_is_told_as_what_it_is(subject):
    rung = fp32_engine(subject(fake={"faults": [Fault("run", "segv")]}))
    assert rung.passed is False
    assert "cannot be run" in rung.cause
    assert told(rung).symptom == "run"


def test_a_lost_worker_is_no_answer(subject):
    with pytest.raises(EngineFailed):
        fp32_engine(subject(fake={"faults": [Fault("build", "disconnect")]}))
