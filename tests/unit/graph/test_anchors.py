"""Which products a builder folds, and what the anchor changes: nothing but that."""

import numpy as np
import pytest
from onnx import TensorProto

from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.formats import FP16
from halfwise.graph.anchors import anchor, folded, is_anchor
from halfwise.graph.casts import rewrite
from halfwise.graph.conversion import upcast
from halfwise.graph.model import Names, Network
from halfwise.graph.roles import roles_of
from halfwise.records import NodeName
from tests.unit.graph.sketch import Sketch, f32

EXTREME = f32([[1e5, 1e-9], [1.0001, -1e5]])


def product(
    *, before="", after="", weights=EXTREME, low=TensorProto.FLOAT16, op="MatMul"
) -> Network:
    s = Sketch()
    x = s.op("Cast", s.op("Cast", s.input("x", [2, 2]), to=low), to=TensorProto.FLOAT)
    y = s.op(op, s.op(before, x) if before else x, weights, name="product")
    y = s.op(after, y) if after else y
    return s.network(s.op("Cast", s.op("Cast", y, to=low), to=TensorProto.FLOAT))


def names(network: Network) -> list[str | None]:
    return [found.node.name for found in folded(network.graph)]


@pytest.mark.parametrize("after", ["", "Transpose", "Identity", "Sum"])
@pytest.mark.parametrize("before", ["", "Transpose", "Identity"])
def test_nothing_but_movement_stands_beside_a_folded_product(before, after):
    assert names(product(before=before, after=after)) == ["product"]


def test_what_reads_only_the_shape_keeps_nothing_in_fp32():
    s = Sketch()
    x = s.op("Cast", s.op("Cast", s.input("x", [2, 2]), to=TensorProto.FLOAT16), to=1)
    y = s.op("MatMul", x, EXTREME, name="product")
    size = s.op("Shape", y)
    network = s.network(s.op("Cast", s.op("Cast", y, to=TensorProto.FLOAT16), to=1), size)
    assert names(network) == ["product"]


@pytest.mark.parametrize("beside", ["Relu", "Sigmoid", "Softmax", "Neg"])
def test_a_node_that_computes_in_fp32_prevents_it(beside):
    assert names(product(before=beside)) == names(product(after=beside)) == []


def test_an_anchor_prevents_it_and_changes_no_value():
    network = product()
    plain = Session(network.model)
    x = {"x": f32([[1.5, -2], [np.inf, np.nan]])}
    anchor([network.graph], Names([network.graph]))
    assert names(network) == []
    before, after = plain.run(x), Session(network.model).run(x)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_an_anchor_disappears_with_the_low_types():
    network = product()
    anchor([network.graph], Names([network.graph]))
    assert any(map(is_anchor, network.graph))
    assert [n.op_type for n in upcast(network)[0].graph] == ["MatMul"]


def test_a_product_that_is_kept_among_low_nodes_gets_one():
    s = Sketch()
    y = s.op("MatMul", s.op("Relu", s.input("x", [2, 2]), name="before"), EXTREME, name="product")
    network = s.network(s.op("Relu", y, name="after"))
    made = rewrite(network, roles_of(network), frozenset({NodeName("product")}), FP16).model
    assert [*folded(made.graph)] == []
    (inserted,) = filter(is_anchor, made.graph)
    assert inserted.predecessors()[0].name == "product"


@pytest.mark.parametrize("before", ["Relu", "Transpose"])
def test_a_recurrence_that_is_kept_behind_low_nodes_reads_one(before):
    s = Sketch()
    x = s.op("Relu", s.input("x", [3, 3, 2]), name="low")
    weights = f32(np.ones((1, 4, 2))), f32(np.ones((1, 4, 4)))
    y = s.op("RNN", s.op(before, x, name="before"), *weights, hidden_size=4, name="kept")
    network = s.network(s.op("Relu", y, name="after"))
    made = rewrite(network, roles_of(network), frozenset({NodeName("kept")}), FP16).model
    (inserted,) = filter(is_anchor, made.graph)
    assert [n.name for n in inserted.successors()] == ["kept"]


@pytest.mark.parametrize(
    ("low", "expected"),
    [
        (TensorProto.FLOAT16, [2.0**-10, np.inf]),
        (TensorProto.BFLOAT16, [0, 99840]),
    ],
)
def test_the_emulation_rounds_the_constants_of_folded_products(low, expected):
    """1.001 is 1 + 2⁻¹⁰ in FP16 and 1 in BF16; 10⁵ is beyond the range of FP16."""
    network = product(low=low, weights=f32([[1.001, 1e5], [-1, 1]]))
    (result,) = Session(emulate_typed(network.model)).run({"x": f32(np.ones((2, 2)))}).values()
    np.testing.assert_array_equal(result, f32([expected, expected]))


def test_the_emulation_leaves_the_constants_of_other_products():
    network = product(after="Relu", weights=f32([[1.001, 1e5], [-1, 1]]))
    (result,) = Session(emulate_typed(network.model)).run({"x": f32([[1, 1], [1e-3, 0]])}).values()
    assert result[0, 0] == pytest.approx(1e-3, rel=1e-3)
    assert result[1, 1] == pytest.approx(100, rel=1e-3)
