"""A diagnosis of a quantised model names the pairs that do harm, and goes on where none does."""

import numpy as np

from halfwise.case import Samples, Settings
from halfwise.emulation.ort import Session
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.records import Criterion
from halfwise.reporting.remarks import steps_told
from halfwise.tools.diagnose.export import exported, healthy
from tests.faults.tensorrt import never_parsed
from tests.unit.graph.sketch import Sketch
from tests.unit.tools.quantised_layers import GOOD, SAMPLES, model

SIGNED = Samples(
    ("s0", "s1", "s2"), lambda i: {"x": np.linspace(-i, 2, 8, dtype=np.float32).reshape(2, 4)}
)


def undefined():
    """A logarithm of values of both signs, after an infinite mask that harms nothing."""
    sketch = Sketch()
    x = sketch.input("x", [2, 4])
    sound = sketch.op("Softmax", sketch.op("Add", x, -np.inf, name="mask"), name="soft")
    log = sketch.op("Log", x, name="log")
    low = sketch.op("Mul", sketch.op("Tanh", log, name="tanh"), 2.0, name="low")
    masked = sketch.op("Where", sketch.op("Greater", x, 9.0), sound, x, name="where")
    return sketch.network(low, sketch.op("Relu", masked, name="masked"))


def test_outputs_of_fp32_that_are_not_finite(subject):
    rung = healthy(subject(undefined(), SIGNED))
    assert rung.passed is False
    assert rung.nodes == ("log",)
    assert rung.cause == (
        "FP32 itself gives NaN or infinite values: output low_out, in 7 of 24 elements, on 2 of 3 "
        "samples."
    )
    assert "--allow unjudged" in steps_told(rung.advice)[0]
    assert [sign.severity for sign in rung.evidence] == ["error"]


def test_outputs_that_are_meant_not_to_be_finite(subject):
    rung = healthy(subject(undefined(), SIGNED, settings=Settings(allow_unjudged=True)))
    assert rung.passed
    assert [sign.severity for sign in rung.evidence] == ["warning"]
    assert (rung.nodes, rung.advice) == ((), ())


def on_file(subject, proto, folder, **how):
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    samples = Samples(("a", "b"), lambda i: {"x": np.full(shape, 1 + i, np.float32)})
    return subject(load_network(path), samples, **how)


def test_a_model_that_is_no_file(subject):
    assert healthy(subject()).cause == "No known error."


def test_alike_findings_are_one_sign(subject, tmp_path):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    for name in ("a.0", "a.1", "a.2"):
        x = sketch.op("Mul", x, 1e6, name=f"{name}/mul")
        x = sketch.op("Sqrt", x, name=name)
    rung = healthy(on_file(subject, sketch.proto(x), tmp_path))
    assert rung.passed
    assert rung.cause == "No known error; 3 remarks."
    assert len(rung.evidence) == 1
    assert rung.evidence[0].text.startswith("constant-beyond-fp16 (3 times): ")
    assert len(rung.evidence[0].nodes) == 3


def test_a_model_that_the_target_does_not_parse(subject, tmp_path):
    ill = never_parsed(True)
    assert healthy(on_file(subject, ill, tmp_path)).passed
    rung = healthy(on_file(subject, ill, tmp_path, fake={"version": "10.0.1"}))
    assert rung.passed is False
    assert rung.cause.startswith("operator-unparsed: no TensorRT up to ")
    assert rung.nodes == ("unique",)
    assert "halfwise lint" in steps_told(rung.advice)[0]


INPUTS = Samples(tuple("abcdef"), lambda i: {"x": SAMPLES[i]})
ALLOWED = Criterion(rel_max=0.05)
SATURATED = GOOD | {"second": 0.004}


def diagnosed(subject, scales, criterion=ALLOWED, **how):
    return subject(network_from_proto(model(scales)), INPUTS, criterion=criterion, **how)


def framework():
    session = Session(network_from_proto(model()).model)
    return [session.run(INPUTS[i]) for i in range(len(INPUTS))]


def test_the_framework_is_right_within_what_is_allowed(subject):
    given = framework()
    assert np.isfinite(next(iter(given[0].values()))).all()
    assert exported(diagnosed(subject, GOOD, expected=given)).passed
    rung = exported(diagnosed(subject, SATURATED, expected=given))
    assert rung.passed is False
    assert any("--to int8 --start-from QUANTISED" in step for step in steps_told(rung.advice))
