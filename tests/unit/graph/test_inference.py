import onnx
import onnx_ir as ir
import pytest

from halfwise.graph.inference import checked
from halfwise.graph.model import network_from_proto
from tests.unit.graph.test_model import info, model, node


def test_a_declared_rank_that_is_wrong_is_passed_over():
    proto = model(
        [node("Relu", "x", "h"), node("MatMul", "h h", "y")],
        inputs=[info("x", (4, 4))],
        outputs=[info("y", (4,))],
    )
    proto.graph.value_info.append(info("h", (2, 2, 2)))
    found = {v.name: v.type.tensor_type.shape for v in checked(proto).graph.value_info}
    assert [d.dim_value for d in found["h"].dim] == [4, 4]


def test_shapes_that_cannot_be_multiplied_are_left_to_the_runtime_and_types_are_not():
    inputs = [info("x", (4, 4)), info("b", (3, 3))]
    network = network_from_proto(model([node("MatMul", "x b", "y")], inputs=inputs))
    assert network.graph.outputs[0].type == ir.TensorType(ir.DataType.FLOAT)
    cast = node("Cast", "x", "i", to=onnx.TensorProto.INT64)
    with pytest.raises(onnx.shape_inference.InferenceError):
        checked(model([cast, node("Add", "x i", "y")]))


def test_functions_that_onnx_cannot_infer_through_are_taken():
    # Its expansion of this one leaves a Constant without a value (onnx 1.19 to 1.23).
    network = network_from_proto(
        model(
            [node("MeanVarianceNormalization", "x", "y")],
            inputs=[info("x", (1, 2, 3, 3))],
            outputs=[info("y", (1, 2, 3, 3))],
            opset=13,
        )
    )
    assert network.graph.outputs[0].type == ir.TensorType(ir.DataType.FLOAT)
