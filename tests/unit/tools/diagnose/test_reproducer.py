import numpy as np
import onnx
import pytest

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.graph.dataflow import giving_out
from halfwise.graph.model import load_network
from halfwise.metrics.relative import relative_rms
from halfwise.records import TensorName
from halfwise.tools.diagnose.kernels import fp32_engine
from halfwise.tools.diagnose.reproducer import part
from tests.fake_tensorrt.regions import Wrong
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.compare.copies import DATA, network

BROKEN = Wrong(nodes=("b", "centre"), unless="between", size=0.5)


def test_a_part_is_sorted_checked_and_gives_what_is_expected_where_nothing_is_wrong(subject):
    made = subject(fake={"wrong": [BROKEN]})
    rung = fp32_engine(made)
    folder = made.folder / "reproducer"
    assert sorted(p.name for p in folder.iterdir()) == [
        *("expected.npz", "inputs.npz", "model.onnx", "reproduce.py")
    ]
    onnx.checker.check_model(onnx.load(folder / "model.onnx"), full_check=True)
    cut = load_network(folder / "model.onnx")
    assert tuple(node.name for node in cut.nodes()) == rung.nodes
    assert {"b", "centre"} <= set(rung.nodes)
    assert len(rung.nodes) <= 3
    with np.load(folder / "inputs.npz") as inputs, np.load(folder / "expected.npz") as expected:
        found = Session(cut.model).run({name: inputs[name][0] for name in inputs})
        assert found.keys() == set(expected)
        for name, array in found.items():
            assert relative_rms(expected[name][0], array) < 1e-5


def test_arrays_keep_any_name(subject):
    sketch = Sketch()
    file = sketch.input("file", [4, 16])
    whole = sketch.network(sketch.op("Mul", file, f32(2), name="y"))
    samples = Samples(("s",), lambda _: {"file": DATA[0]})
    made = subject(model=whole, samples=samples, fake={"broken": {"y": 1.3}})
    fp32_engine(made)
    with np.load(made.folder / "reproducer" / "inputs.npz") as inputs:
        np.testing.assert_array_equal(inputs["file"], DATA[:1])


WHOLE = network()
A, B, D, JOIN, STILL = (TensorName(f"{node}_out") for node in ("a", "b", "d", "join", "still"))


@pytest.fixture(scope="module")
def values():
    names = (A, B, D, JOIN, STILL)
    return Session(giving_out(WHOLE.model, names)).run({"x": DATA[0]}, names)


def test_a_part_stands_alone(values):
    model, feed = part(WHOLE, [D], [JOIN, STILL], values, {})
    assert feed.keys() == {JOIN, STILL}
    assert [list(v.shape or ()) for v in model.graph.inputs] == [[4, 16], [4, 1]]
    np.testing.assert_array_equal(Session(model).run(feed)[D], values[D])


def test_what_it_computes_too_keeps_a_name_of_its_own(values):
    model, feed = part(WHOLE, [A, B], [A], values, {"x": DATA[0]})
    assert feed.keys() == {"x", "a_out::given"}
    found = Session(model).run(feed)
    for name in (A, B):
        np.testing.assert_array_equal(found[name], values[name])
