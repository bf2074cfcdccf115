import numpy as np
import onnx

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.graph.model import load_network
from halfwise.metrics.relative import relative_rms
from halfwise.tools.diagnose.kernels import fp32_engine
from tests.fake_tensorrt.regions import Wrong
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.compare.copies import DATA

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
