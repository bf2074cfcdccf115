"""Whole numbers computed as integers are those that FP32 gives, bit for bit below 2²⁴."""

import numpy as np
import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from halfwise.emulation.ort import Session
from halfwise.graph.integral import Integers, is_whole
from halfwise.graph.model import infer_again
from halfwise.graph.normal_form import Names
from halfwise.graph.writing import Writer
from tests.unit.graph.sketch import Sketch, f32

OPS = ("Add", "Sub", "Mul", "Max", "Min", "Neg", "Abs", "Mod", "Floor", "Div", "Unsqueeze")


@given(
    ops=st.lists(st.tuples(st.sampled_from(OPS), st.integers(-9, 9)), min_size=1, max_size=4),
    positions=st.lists(st.integers(-300, 300), min_size=4, max_size=4),
    dtype=st.sampled_from((TensorProto.INT64, TensorProto.INT32)),
)
def test_chains(ops: list[tuple[str, int]], positions: list[int], dtype: int) -> None:
    s = Sketch()
    number = s.op("Cast", s.input("p", [4], dtype), to=TensorProto.FLOAT, name="count")
    x = number
    for op, constant in ops:
        if op == "Div":
            x = s.op("Floor", s.op("Div", x, f32(constant or 7)))
        elif op == "Mod":
            x = s.op("Mod", x, f32(constant or 7), fmod=1)
        elif op in ("Neg", "Abs", "Floor"):
            x = s.op(op, x)
        elif op == "Unsqueeze":
            x = s.op(op, x, [0])
        else:
            x = s.op(op, x, number if constant % 2 else f32(constant))
    network = s.network(x)
    end = network.graph.outputs[0]
    assert is_whole(end)
    w = Writer(network.model, "end", Names(network.graphs()))
    whole = Integers(w).of(end)
    network.graph.extend(w.made)
    network.graph.outputs.append(whole)
    infer_again(network)
    assert whole.dtype == ir.DataType.INT64
    kind = np.int64 if dtype == TensorProto.INT64 else np.int32
    floats, integers = Session(network.model).run({"p": np.array(positions, kind)}).values()
    np.testing.assert_array_equal(integers, floats)


def test_what_is_not_whole() -> None:
    s = Sketch()
    number = s.op("Cast", s.input("p", [4], TensorProto.INT64), to=TensorProto.FLOAT)
    x = s.input("x", [4])
    ends = [
        s.op("Mul", number, f32(0.5)),
        s.op("Div", number, f32(2)),
        s.op("Floor", s.op("Div", number, f32(0))),
        s.op("Mod", number, f32(0), fmod=1),
        s.op("Add", number, x),
        s.op("Add", number, f32(1e12)),
        s.op("Sqrt", number),
    ]
    assert not any(is_whole(v) for v in s.network(*ends).graph.outputs)
