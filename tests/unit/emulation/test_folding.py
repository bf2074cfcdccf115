"""Models for one set of input shapes."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import settled, static
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import node_name
from tests.unit.graph.sketch import Sketch, f32


def exported() -> onnx.ModelProto:
    """x of any batch, flattened by a shape that is computed from its own, and shifted."""
    sketch = Sketch()
    x = sketch.input("x", ["batch", 3, 4])
    shape = sketch.op("Shape", x, name="shape")
    batch = sketch.op("Gather", shape, np.array([0]), name="batch")
    wanted = sketch.op("Concat", batch, np.array([12]), axis=0, name="wanted")
    flat = sketch.op("Reshape", x, wanted, name="flat")
    grid = sketch.op("Cast", sketch.op("Shape", flat, name="again"), to=1, name="grid")
    size = sketch.op("ReduceSum", grid, name="size")
    return sketch.proto(sketch.op("Add", flat, size, name="y"))


def samples(*shapes):
    made = [{"x": f32(np.random.default_rng(i).normal(size=s))} for i, s in enumerate(shapes)]
    return Samples(tuple(map(str, range(len(made)))), lambda i: made[i])


def same(network, found, data):
    for sample in data:
        before, after = (Session(n.model).run(sample) for n in (network, found))
        for name, array in before.items():
            np.testing.assert_allclose(f32(array), f32(after[name]), rtol=1e-5, atol=1e-5)


def test_shapes_are_fixed_and_what_they_decide_is_folded():
    network, data = network_from_proto(exported()), samples((2, 3, 4), (2, 3, 4))
    found = settled(network, data)
    assert found is not None
    assert [node_name(n) for n in found.nodes()] == ["flat", "y"]
    assert tuple(found.graph.inputs[0].shape or ()) == (2, 3, 4)
    assert network.graph.inputs[0].shape is not None
    assert not network.graph.inputs[0].shape.is_static()
    assert set(found.model.opset_imports) == set(network.model.opset_imports)
    same(network, found, data)


def test_a_product_with_a_bias_becomes_one_node():
    sketch = Sketch()
    weights = f32(np.random.default_rng(0).normal(size=(4, 5)))
    product = sketch.op("MatMul", sketch.input("x", ["batch", 4]), weights, name="product")
    y = sketch.op("Add", product, f32(np.arange(5)), name="y")
    network, data = sketch.network(y), samples((3, 4))
    found = settled(network, data)
    assert found is not None
    assert [node.op_type for node in found.nodes()] == ["Gemm"]
    same(network, found, data)


def test_transposes_move_behind_the_split_of_an_attention():
    """With them before it, TensorRT 8.6.0 exchanges two of the three."""
    sketch = Sketch()
    parts = sketch.op("Reshape", sketch.input("x", ["batch", 5, 24]), [0, 0, 3, 2, 4])
    turned = sketch.op("Transpose", parts, perm=[2, 0, 3, 1, 4])
    names = ["q", "k", "v"]
    sketch.nodes.append(helper.make_node("Split", [turned], names, name="split", axis=0))
    q, k, v = (sketch.op("Squeeze", name, [0]) for name in names)
    scores = sketch.op("MatMul", q, sketch.op("Transpose", k, perm=[0, 1, 3, 2]))
    y = sketch.op("MatMul", sketch.op("Softmax", scores, axis=-1), v, name="y")
    network, data = sketch.network(y), samples((1, 5, 24))
    found = settled(network, data)
    assert found is not None
    split = next(node for node in found.nodes() if node.op_type == "Split")
    source = split.inputs[0]
    assert source is not None
    before = source.producer()
    assert before is not None
    assert before.op_type == "Reshape"
    same(network, found, data)


@pytest.mark.parametrize("shapes", [((1, 3, 4), (2, 3, 4)), ()])
def test_samples_of_several_shapes_or_none_settle_nothing(shapes):
    assert settled(network_from_proto(exported()), samples(*shapes)) is None


def test_a_model_that_is_settled_is_no_other():
    found = settled(network_from_proto(exported()), samples((2, 3, 4)))
    assert found is not None
    assert settled(found, samples((2, 3, 4))) is None


def test_a_model_without_shapes_to_fix_is_no_other():
    sketch = Sketch()
    network = sketch.network(sketch.op("Relu", sketch.input("x", [2, 3, 4]), name="y"))
    assert settled(network, samples((2, 3, 4))) is None


def test_outputs_keep_their_names():
    sketch = Sketch()
    x = sketch.input("x", ["batch", 2])
    shape = sketch.op("Shape", x, name="shape")
    network = sketch.network(shape, sketch.op("Relu", x, name="y"))
    found = settled(network, samples((3, 2)))
    assert found is not None
    assert [v.name for v in found.graph.outputs] == [v.name for v in network.graph.outputs]
    onnx.checker.check_model(ir.to_proto(found.model))


def test_what_shapes_decide_is_constant_and_all_else_stays():
    network = network_from_proto(exported())
    data = samples((2, 3, 4))
    found = static(network, data)
    assert found is not None
    assert [node.op_type for node in found.nodes()] == ["Reshape", "Add"]
    shape = found.graph.inputs[0].shape
    assert shape is not None
    assert shape == (2, 3, 4)
    same(network, found, data)


def test_low_types_stay():
    sketch = Sketch()
    x = sketch.op("Cast", sketch.input("x", ["n", 2]), to=onnx.TensorProto.FLOAT16)
    sizes = sketch.op("Cast", sketch.op("Shape", x), to=onnx.TensorProto.FLOAT16)
    y = sketch.op("Cast", sketch.op("Mul", x, sizes), to=onnx.TensorProto.FLOAT)
    network = network_from_proto(sketch.proto(y))
    found = static(network, samples((3, 2)))
    assert found is not None
    assert [node.op_type for node in found.nodes()] == ["Cast", "Mul", "Cast"]
    assert {v.dtype for v in found.graph.initializers.values()} == {ir.DataType.FLOAT16}
    same(network, found, samples((3, 2)))


def test_stored_weights_stay_as_they_are():
    """Sizes beside computed constants are folded; weights in few bits are not widened."""
    sketch = Sketch(21)
    twelve = sketch.op("Mul", np.array([3]), np.array([4]))
    batch = sketch.op("Shape", sketch.input("x", ["n", 3, 4]), start=0, end=1)
    flat = sketch.op("Reshape", "x", sketch.op("Concat", batch, twelve, axis=0))
    eight = sketch.op("DequantizeLinear", np.ones((12, 12), np.int8), 0.1, np.zeros((), np.int8))
    half = sketch.op("Cast", np.ones((12, 5), np.float16), to=onnx.TensorProto.FLOAT)
    y = sketch.op("MatMul", sketch.op("MatMul", flat, eight), half)
    network = network_from_proto(sketch.proto(y))
    found = static(network, samples((2, 3, 4)))
    assert found is not None
    ops = [node.op_type for node in found.nodes()]
    assert sorted(ops) == ["Cast", "DequantizeLinear", "MatMul", "MatMul", "Reshape"]
    same(network, found, samples((2, 3, 4)))


def test_an_if_by_shape_is_its_branch():
    def branch(op):
        node = helper.make_node(op, ["x"], [f"{op}_out"], name=op)
        end = helper.make_tensor_value_info(f"{op}_out", onnx.TensorProto.FLOAT, None)
        return helper.make_graph([node], op, [], [end])

    sketch = Sketch()
    x = sketch.input("x", ["n", 4])
    rows = sketch.op("Gather", sketch.op("Shape", x), np.array(0))
    condition = sketch.op("Greater", rows, np.array(1))
    y = sketch.op("If", condition, then_branch=branch("Neg"), else_branch=branch("Abs"))
    network = network_from_proto(sketch.proto(sketch.op("Relu", y)))
    for length, op in ((1, "Abs"), (2, "Neg")):
        found = static(network, samples((length, 4)))
        assert found is not None
        assert next(node.op_type for node in found.nodes()) == op
        same(network, found, samples((length, 4)))


def test_what_is_fixed_already_has_no_other_form():
    sketch = Sketch()
    network = network_from_proto(sketch.proto(sketch.op("Relu", sketch.input("x", [2, 3, 4]))))
    assert static(network, samples((2, 3, 4))) is None


def test_several_shapes_and_draws_have_no_static_form():
    network = network_from_proto(exported())
    assert static(network, samples((2, 3, 4), (1, 3, 4))) is None
    sketch = Sketch()
    x = sketch.input("x", ["n"])
    noise = sketch.op("RandomUniformLike", x)
    drawing = network_from_proto(sketch.proto(sketch.op("Add", x, noise)))
    assert static(drawing, samples((3,))) is None
