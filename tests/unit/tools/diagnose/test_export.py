import numpy as np

from halfwise.case import Samples
from halfwise.records import TensorName
from halfwise.reporting.steps import steps_told
from halfwise.tools.diagnose.export import exported
from halfwise.tools.diagnose.harness import harness
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.compare.copies import DATA, SAMPLES, network, side


def framework(*names, **altered):
    wanted = [TensorName(f"{name}_out") for name in names]
    return list(side(network(**altered).model).get(wanted))


def test_nobody_told_what_is_right(subject):
    rung = exported(subject())
    assert rung.passed is None
    assert rung.how == "skipped"
    assert "--expected" in steps_told(rung.advice)[0]


def test_an_export_that_is_right(subject):
    rung = exported(subject(expected=framework("y")))
    assert rung.passed
    assert rung.how == "measured"


def test_an_export_that_is_wrong(subject):
    rung = exported(subject(expected=framework("a", "b", "centre", "d", "e", "y", b=1.2)))
    assert rung.passed is False
    assert "computes something else than the framework gave" in rung.cause
    assert rung.nodes == ("b",)
    assert any("dB" in sign.text for sign in rung.evidence)


def test_outputs_alone_do_not_say_which_node_is_wrong(subject):
    rung = exported(subject(expected=framework("y", b=1.2)))
    assert rung.passed is False
    assert rung.cause.endswith("Where they diverge is unknown.")
    assert rung.nodes == ()
    assert "add tensors from inside the model" in steps_told(rung.advice)[0]


def test_what_was_tried_on_the_inputs_is_told(subject):
    made = subject(expected=framework("y", b=1.2))
    assert harness(made).passed
    rung = exported(made)
    assert rung.inputs == made.tried
    assert rung.inputs is not None
    assert not rung.inputs.matches
    assert any("input changes" in sign.text for sign in rung.evidence)


def test_tensors_without_an_output(subject):
    assert exported(subject(expected=framework("a"))).passed is None


def test_nothing_is_told_where_no_change_of_the_inputs_is_known(subject):
    sketch = Sketch()
    network = sketch.network(sketch.op("Tanh", sketch.input("x", [1, 8]), name="y"))
    few = Samples(("a", "b"), lambda i: {"x": DATA[i, :1, :8]})
    made = subject(network, few, expected=[{"y_out": f32(np.ones((1, 8)))}] * 2)
    assert harness(made).passed
    rung = exported(made)
    assert rung.passed is False
    assert [sign.severity for sign in rung.evidence] == ["error"]


def test_a_single_sample_shows_no_variation(subject):
    rung = exported(subject(samples=SAMPLES.select([0]), expected=framework("y")[:1]))
    assert rung.passed
    assert not any(sign.severity == "warning" for sign in rung.evidence)
