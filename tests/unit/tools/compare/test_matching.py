import numpy as np

from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network
from halfwise.records import NodeName, TensorName
from halfwise.tools.compare.command import matching, renamed
from tests.unit.graph.qdq import LAYERS, SIZE, chain, foreign, last
from tests.unit.graph.sketch import Sketch, f32


def test_nodes_of_other_names_match_by_their_order_and_so_do_what_they_give():
    s = chain([])
    original = s.network(last(s))
    t = chain(["second"])
    quantised = network_from_proto(foreign(t.proto(last(t))))
    found = matching(original, quantised)
    places = {n.name: n.op_type for n in quantised.nodes()}
    assert [places[found.nodes[NodeName(n)]] for n in LAYERS] == ["MatMul"] * 3
    assert len(found.nodes) == 6
    assert found.tensors[TensorName("second_out")] == "value_second_out"
    model = renamed(quantised, found.tensors)
    names = [v.name for n in model.graph for v in n.outputs]
    assert {*found.tensors} <= {*names}
    assert len({*names}) == len(names)
    assert last(s) == last(t) == model.graph.outputs[0].name


def folded(*, quantised: bool) -> Network:
    s = Sketch()
    x = s.input("x", [1, 2, 4, 4])
    w, c = f32(np.ones((2, 2, 1, 1))), f32([1, 2])
    y = s.op("Conv", x, w, name="conv")
    if not quantised:
        y = s.op("BatchNormalization", y, c, c, c, c, name="norm")
    y = s.op("GlobalAveragePool", s.op("Relu", y, name="relu"), name="pool")
    y = s.op("Flatten", y, name="flat")
    product = f32(np.ones((2, 2)))
    if quantised:
        y = s.op("Gemm", y, product, c, name="product/fused")
    else:
        y = s.op("Add", s.op("MatMul", y, product, name="product"), c, name="bias")
    return s.network(s.op("Relu", y, name="end"))


def test_behind_what_was_folded_a_product_gives_what_the_last_of_it_gave():
    found = matching(folded(quantised=False), folded(quantised=True))
    assert found.nodes[NodeName("product")] == "product/fused"
    assert found.nodes.keys() == {"conv", "relu", "pool", "flat", "product", "end"}
    assert found.tensors[TensorName("norm_out")] == "conv_out"
    assert found.tensors[TensorName("bias_out")] == "product/fused_out"
    assert not {"conv_out", "product_out"} & found.tensors.keys()


def test_integer_operators_stand_for_what_they_compute():
    zero = np.array(0, np.uint8)
    s = Sketch()
    x = s.input("x", [2, SIZE])
    original = s.network(s.op("Relu", s.op("MatMul", x, f32(np.eye(SIZE)), name="product")))
    s = Sketch()
    codes = s.op("QuantizeLinear", s.input("x", [2, SIZE]), 0.1, zero)
    stored = np.eye(SIZE).astype(np.uint8)
    y = s.op("QLinearMatMul", codes, 0.1, zero, stored, 1.0, zero, 0.1, zero, name="product_quant")
    quantised = s.network(s.op("Relu", s.op("DequantizeLinear", y, 0.1, zero)))
    found = matching(original, quantised)
    assert found.nodes[NodeName("product")] == "product_quant"
    assert "product_out" not in found.tensors


def test_a_name_alone_does_not_match_other_weights():
    def two(*names: str) -> Network:
        s = Sketch()
        y = s.input("x", [2, SIZE])
        for name, size in zip(names, (SIZE, 2), strict=True):
            y = s.op("MatMul", y, f32(np.ones((SIZE, size))), name=name)
        return s.network(s.op("Relu", y))

    assert matching(two("MatMul_0", "MatMul_1"), two("MatMul_1", "MatMul_2")).nodes == {
        "MatMul_0": "MatMul_1",
        "MatMul_1": "MatMul_2",
        "Relu_2": "Relu_2",
    }
