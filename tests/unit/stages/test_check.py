import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from halfwise.backends.ort import Session
from halfwise.errors import CaseError
from halfwise.graph.model import network_from_proto
from halfwise.stages.check import check
from tests import control, models
from tests.unit.graph.sketch import Sketch


def test_a_good_model_gives_the_session_of_the_reference():
    ill = models.small()
    session = check(network_from_proto(ill.proto))
    assert isinstance(session, Session)
    assert session.run(ill.sample(0))["relu_out"].shape == (1, 8)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_low_tensors_that_widening_left_are_refused(dtype):
    sketch = Sketch()
    x = sketch.input("x", [1, 4])
    low = sketch.op("Cast", x, name="down", to=dtype)
    network = sketch.network(sketch.op("Cast", low, name="up", to=TensorProto.FLOAT))
    with pytest.raises(CaseError, match="down_out") as error:
        check(network)
    assert "custom operators" in error.value.hint


def test_a_body_with_low_tensors_is_refused():
    sketch = Sketch()
    x, flag = sketch.input("x", [2, 4]), sketch.input("flag", [], TensorProto.BOOL)
    nodes = [
        helper.make_node("Cast", [x], ["down"], "down", to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["down"], ["up"], "up", to=TensorProto.FLOAT),
    ]
    body = control.graph("body", nodes, (), [("up", control.MATRIX)])
    branches = {"then_branch": body, "else_branch": body}
    sketch.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    with pytest.raises(CaseError, match="'down'"):
        check(sketch.network(sketch.op("Neg", "chosen", name="neg")))


@pytest.mark.parametrize("dtype", [TensorProto.INT64, TensorProto.DOUBLE])
def test_a_model_without_fp32_is_refused(dtype):
    sketch = Sketch()
    x = sketch.input("x", [1, 4], dtype)
    network = sketch.network(sketch.op("Abs", x, name="abs"))
    with pytest.raises(CaseError, match="no FP32 tensor"):
        check(network)


def test_an_output_that_is_no_tensor_is_refused():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("SequenceConstruct", ["x", "x"], ["y"], name="pack")
    graph = helper.make_graph([node], "g", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    with pytest.raises(CaseError, match="'y' is a SequenceType"):
        check(network_from_proto(proto))


def test_types_that_onnx_does_not_know_come_from_onnx_runtime():
    """`FusedMatMul` of Microsoft's domain has no ONNX schema."""
    sketch = Sketch()
    x = sketch.input("x", [2, 4])
    weight = sketch.constant(np.eye(4, dtype=np.float32), "weight")
    sketch.nodes.append(
        helper.make_node("FusedMatMul", [x, weight], ["h"], name="fused", domain="com.microsoft")
    )
    end = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])
    sketch.nodes.append(helper.make_node("Relu", ["h"], ["y"], name="relu"))
    graph = helper.make_graph(sketch.nodes, "g", sketch.inputs, [end], sketch.constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    network = network_from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    (hidden,) = next(n for n in network.nodes() if n.name == "fused").outputs
    assert hidden.type is None
    session = check(network)
    assert hidden.dtype == ir.DataType.FLOAT
    x_value = np.array([[-1, 2, 0, 4], [1, 1, -1, 1]], np.float32)
    np.testing.assert_array_equal(session.run({"x": x_value})["y"], np.maximum(x_value, 0))


def test_a_custom_operator_is_named():
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", "y")]
    node = helper.make_node("Swirl", ["x"], ["y"], domain="com.example")
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    network = network_from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    with pytest.raises(CaseError, match=r"com\.example::Swirl") as error:
        check(network)
    assert "--ort-library" in error.value.hint
