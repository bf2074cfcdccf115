import numpy as np
import pytest

from halfwise.graph.model import node_name
from halfwise.graph.patterns.attention import attentions
from tests.faults import written_out
from tests.unit.graph.sketch import Sketch, f32


def found(network):
    return [{str(node_name(n)) for n in nodes} for nodes in attentions(network)]


@pytest.mark.parametrize("choose", [True, False])
def test_scale_mask_and_products(choose):
    s = Sketch()
    q, k, v = (s.input(name, [1, 2, 4, 4]) for name in "qkv")
    scores = s.op("Mul", s.op("MatMul", q, k, name="scores"), 0.5, name="scale")
    mask = s.input("mask", [1, 1, 4, 4], 9 if choose else 1)
    masked = s.op("Where", mask, scores, -1e4, name="mask") if choose else scores
    weights = s.op("Softmax", masked, name="softmax")
    network = s.network(s.op("MatMul", weights, v, name="weigh"))
    names = {"scores", "scale", "softmax", "weigh"} | ({"mask"} if choose else set())
    assert found(network) == [names]


def test_rows_that_are_masked_as_a_whole_may_be_set_to_zero_behind():
    s = Sketch()
    q, k, v = (s.input(name, [1, 4, 4]) for name in "qkv")
    weights = s.op("Softmax", s.op("MatMul", q, k, name="scores"), name="softmax")
    chosen = s.op("Where", s.input("rows", [1, 4, 1], 9), 0.0, weights, name="zero")
    network = s.network(s.op("MatMul", chosen, v, name="weigh"))
    assert found(network) == [{"scores", "softmax", "zero", "weigh"}]


def test_layers_with_weights_are_no_attention():
    s = Sketch()
    x = s.input("x", [1, 4, 4])
    weights = s.op("Softmax", s.op("MatMul", x, f32(np.eye(4))))
    assert found(s.network(s.op("MatMul", weights, x))) == []
    # A classifier's end: its product reads nothing that the Softmax gave as weights.
    assert written_out.attention(False).graph.node[0].op_type == "Attention"
