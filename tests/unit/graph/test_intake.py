"""Declared shapes: kept, forgotten, and compared with inferred ones."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.graph.intake import (
    DROPPED,
    OF_ONNX_RUNTIME,
    checkable,
    checked,
    contradicted,
    declared_shapes,
    forget_shapes,
)
from halfwise.graph.loading import infer_again, network_from_proto
from halfwise.graph.model import opset_of
from halfwise.graph.roles import roles_of
from halfwise.graph.sizes import declared_axes
from tests.unit.graph.test_loading import info, model, node
from tests.unit.graph.test_sizes import relus


def test_sparse_constants_are_refused():
    proto = model([node("Add", "x k", "y")])
    values = numpy_helper.from_array(np.ones(1, np.float32), "k")
    indices = numpy_helper.from_array(np.array([3], np.int64), "at")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    with pytest.raises(CaseError, match="'k' is stored sparse"):
        network_from_proto(proto)


def bare():
    """Return a model as editors leave it: no names, no shapes, a value described twice."""
    proto = model([node("Relu", "x", "t"), node("Neg", "t", "y")])
    proto.graph.name = ""
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    proto.graph.value_info.extend([info("t"), info("t")])
    return proto


def test_what_runs_all_the_same_is_repaired():
    network = network_from_proto(bare())
    assert network.graph.outputs[0].shape == ir.Shape([4])
    onnx.checker.check_model(ir.serde.serialize_model(network.model), full_check=True)


def test_an_output_whose_rank_nothing_tells_stays_without_a_shape():
    proto = model(
        [node("Reshape", "x to", "y")],
        inputs=[info("x"), info("to", ("n",), TensorProto.INT64)],
        outputs=[helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    network = network_from_proto(proto)
    assert network.graph.outputs[0].shape is None
    sample = {"x": np.ones(4, np.float32), "to": np.array([2, 2])}
    assert Session(network.model).run(sample)["y"].shape == (2, 2)


def test_nodes_in_any_order_are_sorted():
    proto = model([node("Neg", "t", "y"), node("Relu", "x", "t")])
    assert [n.op_type for n in network_from_proto(proto).nodes()] == ["Relu", "Neg"]


def test_declared_shapes_that_are_not_computed_are_replaced():
    proto = model([node("Relu", "x", "h"), node("Neg", "h", "y")], inputs=[info("x", (8, 4))])
    proto.graph.value_info.append(info("h", (1, 4)))
    proto.graph.output[0].CopyFrom(info("y", (4,)))
    assert network_from_proto(proto).graph.outputs[0].shape == ir.Shape([8, 4])


def reshaped(*, inner=("rows", 4), output=("rows", 4), kept=2):
    """y = relu(x reshaped to `to`), whose sizes ONNX cannot infer, and h of `kept` sizes beside."""
    proto = model(
        [node("Reshape", "x to", "r"), node("Relu", "r", "y"), node("Neg", "z", "h")],
        inputs=[info("x"), info("to", (2,), TensorProto.INT64), info("z", (2,))],
        outputs=[info("y", output), info("h", (kept,))],
    )
    proto.graph.value_info.append(info("r", inner))
    return network_from_proto(proto)


def test_inner_sizes_that_onnx_cannot_confirm_are_forgotten_and_names_of_axes_stay():
    inner = next(iter(reshaped().nodes())).outputs[0]
    rows, columns = declared_axes(inner)
    assert rows == "rows"
    assert not isinstance(columns, int)


def test_sizes_of_outputs_stay_where_onnx_infers_none():
    network = reshaped()
    assert [declared_axes(v) for v in network.graph.outputs] == [("rows", 4), (2,)]
    infer_again(network)
    assert [declared_axes(v) for v in network.graph.outputs] == [("rows", 4), (2,)]


def test_sizes_of_outputs_are_forgotten_if_onnx_infers_another_somewhere():
    network = reshaped(kept=3)
    (_, columns), other = (declared_axes(v) for v in network.graph.outputs)
    assert not isinstance(columns, int)
    assert other == (2,)


def test_a_declared_size_that_a_node_may_rely_on_is_no_fact():
    nodes = [
        node("Compress", "x chosen", "y", axis=0),
        node("Shape", "y", "sizes"),
        node("Cast", "sizes", "z", to=TensorProto.FLOAT),
    ]
    chosen = helper.make_tensor_value_info("chosen", TensorProto.BOOL, [2])
    outputs = [info("y", (1, 3)), info("z", (2,))]
    network = network_from_proto(model(nodes, inputs=[info("x", (2, 3)), chosen], outputs=outputs))
    rows, columns = declared_axes(network.graph.outputs[0])
    assert (isinstance(rows, int), columns) == (False, 3)


def test_dropped_operators_pass_the_check_and_unknown_ones_do_not():
    dropped = model([node("ImageScaler", "x", "y", scale=2.0)], opset=7)
    onnx.checker.check_model(checkable(dropped))
    assert opset_of(network_from_proto(dropped).model) == 7
    unknown = model([node("NoSuchOp", "x", "y")])
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(checkable(unknown))
    onnx.checker.check_model(checkable(unknown, any_operator=True))
    assert not any(onnx.defs.has(name) for name in DROPPED)


@pytest.mark.parametrize("op", sorted(OF_ONNX_RUNTIME))
def test_operators_of_onnx_runtimes_optimiser_pass_the_check(op):
    proto = model([node(op, "x w", "y", axis=-1)], inputs=[info("x"), info("w", (4,))], opset=14)
    network = network_from_proto(proto)
    (role,) = roles_of(network).values()
    assert role.role.name == "COMPUTE"
    onnx.checker.check_model(checkable(proto))


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


@pytest.mark.parametrize("wrap", [lambda kind: kind, helper.make_sequence_type_proto])
def test_maps_are_refused_with_what_to_do(wrap):
    proto = model([node("Identity", "x", "y")])
    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    kind = wrap(helper.make_map_type_proto(TensorProto.INT64, inner))
    proto.graph.output.append(helper.make_value_info("z", kind))
    with pytest.raises(CaseError, match="Output 'z' holds maps") as found:
        network_from_proto(proto)
    assert "zipmap" in found.value.hint


def test_sizes_of_computed_values_are_forgotten_and_the_rank_stays():
    graph = relus((2, 3)).graph
    forget_shapes([graph])
    for value in (*graph.value_info, *graph.output):
        assert [d.HasField("dim_value") for d in value.type.tensor_type.shape.dim] == [False] * 2
    assert [d.dim_value for d in graph.input[0].type.tensor_type.shape.dim] == [2, 3]


def test_shapes_of_computed_values_are_forgotten():
    graph = relus((2, "n", None)).graph
    assert declared_shapes([graph]) == dict.fromkeys("ty", (2, "n", None))
    forget_shapes([graph], ranks=True)
    assert declared_shapes([graph]) == {}
    assert graph.input[0].type.tensor_type.HasField("shape")


@pytest.mark.parametrize(
    ("declared", "inferred", "contradicts"),
    [
        ((2,), (2, 1), True),
        ((2, 3), (2, 4), True),
        (("n", 3), (2, 3), False),
        ((None, 3), (2, 3), False),
        ((1,), None, False),
    ],
)
def test_another_rank_or_size_contradicts_and_a_name_does_not(declared, inferred, contradicts):
    shapes = {} if inferred is None else {"v": inferred}
    assert contradicted({"v": declared}, shapes) == contradicts
