import numpy as np
import onnx

from halfwise.case import Samples
from halfwise.graph.model import load_network, network_from_proto
from halfwise.reporting.steps import steps_told
from halfwise.tools.diagnose.kernels import fp32_engine
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.regions import Wrong
from tests.unit.emulation.test_settling import exported
from tests.unit.emulation.test_settling import samples as settling_samples
from tests.unit.graph.sketch import Sketch, f32


def told(rung):
    """What a rung tells of engines."""
    assert rung.engine is not None
    return rung.engine


def test_a_fusion_that_is_wrong_is_cured_by_a_mark_and_its_engine_is_delivered(subject):
    fault = Wrong(nodes=("b", "centre"), unless="between", size=0.5)
    made = subject(fake={"wrong": [fault]})
    rung = fp32_engine(made)
    assert {"b", "centre"} <= set(rung.nodes) <= {"b", "mean", "centre"}
    found = told(rung)
    assert found.explained
    assert found.best.kind == "marks"
    assert "b_out" in found.best.marks
    assert found.best.snr_db > 60
    assert found.best.median_ms > 0
    assert (made.folder / found.delivered).stat().st_size > 0
    assert found.delivered_model is None
    assert steps_told(rung.advice)[0].startswith("Use the engine cured.engine, built with b_out")


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
    (fault,) = told(rung).faults
    assert fault.operators == ("GRU",)
    assert rung.nodes == ("one", "two")
    assert told(rung).builds <= 8
    assert told(rung).best.kind == "written-out"
    assert told(rung).best.nodes == ("one", "two")
    written = load_network(made.folder / told(rung).delivered_model)
    assert "GRU" not in {node.op_type for node in written.nodes()}


def test_what_cannot_be_tried_is_told(subject):
    made = subject(fake={"broken": {"b": 1.3}, "faults": [Fault("build", "segv", (5,))]})
    rung = fp32_engine(made)
    assert any(": no engine. " in sign.text for sign in rung.evidence)


def test_fixed_shapes_and_folded_constants_are_a_cure(subject):
    network, data = network_from_proto(exported()), settling_samples((2, 3, 4), (2, 3, 4))
    made = subject(model=network, samples=data, fake={"wrong": [Wrong(nodes=("size",))]})
    found = told(fp32_engine(made))
    assert found.best.kind == "settled"
    assert found.delivered_model is not None
    cured = load_network(made.folder / found.delivered_model)
    assert all(n.name != "size" for n in cured.nodes())
