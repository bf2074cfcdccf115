from dataclasses import replace

import pytest

from halfwise.records import TensorName
from halfwise.tools.diagnose.export import exported, healthy
from halfwise.tools.diagnose.harness import harness
from tests.faults.tensorrt import never_parsed
from tests.unit.graph.sketch import Sketch
from tests.unit.tools.compare.copies import network, side


def framework(*names, **altered):
    wanted = [TensorName(f"{name}_out") for name in names]
    return list(side(network(**altered).model).get(wanted))


def test_nobody_told_what_is_right(subject):
    rung = exported(subject())
    assert rung.passed is None
    assert rung.how == "skipped"
    assert "--expected" in rung.advice[0]


def test_an_export_that_is_right(subject):
    rung = exported(subject(expected=framework("y")))
    assert rung.passed
    assert rung.how == "measured"


@pytest.mark.parametrize("tensors", [("y",), ("a", "b", "centre", "d", "e", "y")])
def test_an_export_that_is_wrong(subject, tensors):
    rung = exported(subject(expected=framework(*tensors, b=1.2)))
    assert rung.passed is False
    assert "does not compute what the framework did" in rung.cause
    assert "b" in rung.nodes
    assert (rung.nodes == ("b",)) == (len(tensors) > 1)
    assert any("dB" in sign.text for sign in rung.evidence)


def test_what_was_tried_on_the_inputs_is_told(subject):
    made = subject(expected=framework("y", b=1.2))
    assert harness(made).passed
    rung = exported(made)
    assert rung.inputs == made.tried
    assert rung.inputs is not None
    assert not rung.inputs.matches
    assert any("changes of the inputs" in sign.text for sign in rung.evidence)


def test_tensors_without_an_output(subject):
    assert exported(subject(expected=framework("a"))).passed is None


def on_file(subject, proto, folder, **how):
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    made = subject(**how)
    return replace(made, case=replace(made.case, network=replace(made.case.network, path=path)))


def test_a_model_that_is_no_file(subject):
    assert healthy(subject()).cause == "The model is not a file."


def test_alike_findings_are_one_sign(subject, tmp_path):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    for name in ("a.0", "a.1", "a.2"):
        x = sketch.op("Add", x, 1e-12, name=f"{name}/add")
        x = sketch.op("Sqrt", x, name=name)
    rung = healthy(on_file(subject, sketch.proto(x), tmp_path))
    assert rung.passed
    assert rung.cause == "No known error; 3 remarks."
    assert len(rung.evidence) == 1
    assert rung.evidence[0].text.startswith("eps-vanishes (3 times): ")
    assert len(rung.evidence[0].nodes) == 3


def test_a_model_that_the_target_does_not_parse(subject, tmp_path):
    ill = never_parsed(True)
    assert healthy(on_file(subject, ill, tmp_path)).passed
    rung = healthy(on_file(subject, ill, tmp_path, fake={"version": "10.0.1"}))
    assert rung.passed is False
    assert rung.cause.startswith("operator-unparsed: no TensorRT up to ")
    assert rung.nodes == ("unique",)
    assert "halfwise lint" in rung.advice[0]
