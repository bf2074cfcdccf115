"""Nodes that are made have names of their own, and say what they reduce in the opset's way."""

import numpy as np
import onnx_ir as ir
import pytest

from halfwise.emulation.ort import Session
from halfwise.graph.loading import infer_again
from halfwise.graph.model import Names, Writer, tensor_name
from tests.unit.graph.sketch import Sketch, f32


@pytest.mark.parametrize("opset", [17, 18])
def test_a_reduction_says_its_axes_in_the_way_of_the_opset(opset: int) -> None:
    s = Sketch(opset)
    network = s.network(s.op("Neg", s.input("x", [2, 3]), name="end"))
    (end,) = network.nodes()
    w = Writer(network.model, "end", Names(network.graphs()))
    x = network.graph.inputs[0]
    least = w.op("Add", w.reduced("ReduceMin", x, -1), w.constant("one", f32(1)))
    assert tensor_name(w.op("Add", least, least)) == "end/Add_1_output"
    network.graph.insert_before(end, w.made)
    end.replace_input_with(0, least)
    infer_again(network)
    assert least.dtype == ir.DataType.FLOAT
    given = Session(network.model).run({"x": f32([[1, 2, 3], [6, 5, 4]])})
    np.testing.assert_array_equal(given["end_out"], [[-2], [-5]])
