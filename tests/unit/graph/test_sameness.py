"""A lowered model is found to be the one it was made from; any other change is named."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from halfwise.formats import BF16, FP16, Format
from halfwise.graph.casts import low_type, rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, add_constant
from halfwise.graph.roles import roles_of
from halfwise.graph.sameness import first_difference, shared_tensors
from tests.models import CLASSES, Factory, mask, two_bodies
from tests.unit.graph.sketch import Sketch, f32


def lowered(network: Network, fmt: Format) -> Network:
    """Every third node in FP32, written and read again."""
    roles = roles_of(network, low_type(fmt))
    kept = frozenset(sorted(n for n, r in roles.items() if r.free)[::3])
    rewritten = rewrite(network, roles, kept, fmt)
    return network_from_proto(ir.serde.serialize_model(rewritten.model))


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("factory", [*CLASSES[::8], mask, two_bodies], ids=lambda f: f.__name__)
def test_a_lowered_model_is_the_same(factory: Factory, fmt: Format) -> None:
    network = network_from_proto(factory().proto)
    assert first_difference(network, network) is None
    assert first_difference(network, lowered(network, fmt)) is None


def sketch() -> Network:
    x = (s := Sketch()).input("x", [1, 4])
    h = s.op("MatMul", x, f32(np.arange(16).reshape(4, 4) / 7), name="product")
    h = s.op("LayerNormalization", h, np.ones(4, np.float32), epsilon=1e-3, name="norm")
    return s.network(s.op("Sub", h, s.op("Relu", x, name="relu"), name="last"))


def nudged(model: ir.Model) -> None:
    value = next(v for v in model.graph.initializers.values() if v.shape == ir.Shape((4, 4)))
    assert value.const_value is not None
    array = value.const_value.numpy().copy()
    array[0, 1] = np.nextafter(array[0, 1], np.inf, dtype=array.dtype)
    value.const_value = ir.tensor(array, name=value.name)


def other_eps(model: ir.Model) -> None:
    node = next(n for n in model.graph if n.name == "norm")
    node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-4)


def swapped(model: ir.Model) -> None:
    node = next(n for n in model.graph if n.name == "last")
    one, other = node.inputs
    node.replace_input_with(0, other)
    node.replace_input_with(1, one)


def inserted(model: ir.Model) -> None:
    node = next(n for n in model.graph if n.name == "last")
    two = add_constant(model.graph, "two", f32(2))
    more = ir.node("Mul", [node.inputs[1], two], name="more")
    more.outputs[0].name = "doubled"
    model.graph.insert_before(node, more)
    node.replace_input_with(1, more.outputs[0])


def given_away(model: ir.Model) -> None:
    node = next(n for n in model.graph if n.name == "relu")
    (own,) = model.graph.outputs
    own.name, node.outputs[0].name = "inner", own.name
    model.graph.outputs[0] = node.outputs[0]


def truncated(model: ir.Model) -> None:
    node = next(n for n in model.graph if n.name == "last")
    through = node.inputs[1]
    for to in (ir.DataType.INT32, ir.DataType.FLOAT):
        cast = ir.node("Cast", [through], {"to": int(to)}, name=f"to_{to.name}")
        cast.outputs[0].name = f"as_{to.name}"
        model.graph.insert_before(node, cast)
        through = cast.outputs[0]
    node.replace_input_with(1, through)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (truncated, "to_INT32"),
        (nudged, "product"),
        (other_eps, "norm"),
        (swapped, "last"),
        (inserted, "more"),
        (given_away, "last_out"),
    ],
)
def test_what_differs_is_named(change: Callable[[ir.Model], None], name: str) -> None:
    for network in (sketch(), lowered(sketch(), FP16)):
        model = network.copy()
        change(model)
        changed = network_from_proto(ir.serde.serialize_model(model))
        assert first_difference(sketch(), changed) == name


def test_what_another_node_stands_before_is_not_shared() -> None:
    def model(*, scaled: bool) -> Network:
        s = Sketch()
        x = s.op("Relu", s.input("x", [1, 4]), name="first")
        read = s.op("Mul", x, 0.25, name="extra") if scaled else x
        return s.network(s.op("Tanh", s.op("Neg", read, name="second"), name="third"))

    assert shared_tensors(model(scaled=False), model(scaled=True)) == {"first_out"}


def one_node(op: str, *, opset: int = 17, **attributes: int) -> Network:
    x = (s := Sketch(opset)).input("x", [2, 3, 4])
    return s.network(s.op("Relu", s.op(op, x, name="it", **attributes)))


def test_what_a_cast_of_the_original_casts_to_counts() -> None:
    whole, low = (one_node("Cast", to=int(t)) for t in (ir.DataType.INT32, ir.DataType.FLOAT16))
    assert first_difference(whole, whole) is None
    assert first_difference(whole, low) == first_difference(low, whole) == "it"
    assert first_difference(one_node("Cast", to=int(ir.DataType.FLOAT)), low) is None


def test_an_operator_that_is_another_at_another_opset_differs() -> None:
    flat, single = (one_node("Softmax", opset=o, axis=1) for o in (12, 13))
    assert first_difference(single, flat) == first_difference(flat, single) == "it"
    # Relu is the same from 14 on.
    assert first_difference(one_node("Relu", opset=14), one_node("Relu", opset=17)) is None


def test_attributes_of_two_kinds_differ() -> None:
    def attribute(network: Network, value: ir.Attr) -> Network:
        model = network.copy()
        next(n for n in model.graph if n.name == "it").attributes["value"] = value
        return Network(model, None, "", {})

    shape = (s := Sketch()).constant([2, 3])
    plain = s.network(s.op("Relu", s.op("ConstantOfShape", shape, name="it")))
    for array, name in ((f32([0]), None), (f32([1]), "it"), (np.array([0]), "it")):
        other = attribute(plain, ir.AttrTensor("value", ir.tensor(array)))
        assert first_difference(plain, other) == first_difference(other, plain) == name
    zeros = attribute(plain, ir.AttrTensor("value", ir.tensor(f32([0]))))
    number = attribute(plain, ir.AttrFloat32("value", 0.0))
    for one in (plain, zeros):
        assert first_difference(one, number) == first_difference(number, one) == "it"
