import numpy as np
import pytest

from halfwise.emulation.folding import fold_constants
from halfwise.emulation.ort import Session
from halfwise.graph.loading import normalise
from tests.unit.graph.sketch import Sketch


def folded(sketch: Sketch, output: str):
    model = sketch.network(output).copy()
    names = fold_constants(model)
    return names, normalise(model, path=None, sha256="")


def test_what_depends_on_constants_alone():
    s = Sketch()
    x = s.input("x", ["n", 4])
    half = s.op("Div", 1.0, s.op("Sqrt", 4.0, name="root"), name="divide")
    names, network = folded(s, s.op("Mul", x, half, name="scale"))
    assert names == ["root", "divide"]
    assert [n.name for n in network.nodes()] == ["scale"]
    assert network.graph.initializers["divide_out"].const_value.numpy() == 0.5
    (y,) = Session(network.model).run({"x": np.ones((3, 4), np.float32)}).values()
    assert (y == 0.5).all()


@pytest.mark.parametrize("batch", ["n", 3])
def test_dynamic_sizes_stay(batch):
    s = Sketch()
    x = s.input("x", [batch, 4, 2])
    sizes = s.op("Shape", x, name="shape")
    first = s.op("Gather", sizes, [0], name="first")
    last = s.op("Gather", sizes, [-1], name="last")
    rest = s.op("Mul", last, [2], name="rest")
    target = s.op("Concat", first, [2], rest, axis=0, name="target")
    names, network = folded(s, s.op("Reshape", x, target, name="reshape"))
    everything = {"shape", "first", "last", "rest", "target"}
    assert set(names) == ({"last", "rest"} if batch == "n" else everything)
    for size in (3,) if batch == 3 else (1, 5):
        (y,) = Session(network.model).run({"x": np.ones((size, 4, 2), np.float32)}).values()
        assert y.shape == (size, 2, 4)


def test_a_part_of_a_shape():
    s = Sketch()
    x = s.input("x", ["n", 4, 2])
    part = s.op("Shape", x, start=-2, end=9, name="part")
    names, network = folded(s, s.op("Expand", x, part, name="expand"))
    assert names == ["part"]
    assert list(network.graph.initializers["part_out"].const_value.numpy()) == [4, 2]


def test_what_stays():
    s = Sketch()
    s.input("x", [1])
    s.op("Expand", 1.0, [1 << 19], name="large")
    s.op("Add", "large_out", "x", name="read")
    s.op("RandomNormal", shape=[2], name="random")
    names, _ = folded(s, s.op("Abs", -1.0, name="output"))
    assert names == []
