"""What nodes compute, read and write."""

import numpy as np

from halfwise.emulation.runner import seen_shapes
from halfwise.fixing.kernels import described, fused
from halfwise.graph.model import node_name
from halfwise.graph.roles import roles_of
from tests.unit.graph.sketch import Sketch, f32


def named(network):
    return [(node_name(node), node) for node in network.nodes()]


def test_products_count_their_operations():
    s = Sketch()
    image = s.input("image", [1, 3, 8, 8])
    s.input("sequence", [5, 1, 4])
    y = s.op("Conv", image, f32(np.ones((6, 3, 3, 3))), name="conv")
    z = s.op("ConvTranspose", y, f32(np.ones((6, 2, 3, 3))), name="back")
    g = s.op("Gemm", s.op("Flatten", z, name="flat"), f32(np.ones((128, 10))), name="gemm")
    r = s.op(
        "RNN",
        "sequence",
        f32(np.ones((1, 7, 4))),
        f32(np.ones((1, 7, 7))),
        name="rnn",
        hidden_size=7,
    )
    network = s.network(g, r)
    sample = {"image": f32(np.ones((1, 3, 8, 8))), "sequence": f32(np.ones((5, 1, 4)))}
    roles, shapes = roles_of(network), seen_shapes(network, sample)
    kernels = {
        n: described(node, roles[n], shapes, {}, has_bodies=False, times=1)
        for n, node in named(network)
    }
    flops = {name: kernel.flops for name, kernel in kernels.items()}
    assert flops["conv"] == 2 * 6 * 6 * 6 * 3 * 9
    assert flops["back"] == 2 * 6 * 36 * 2 * 9
    assert flops["gemm"] == 2 * 128 * 10
    assert flops["rnn"] == 2 * 5 * 7 * (4 + 7)
    weights = {name: (kernel.stored, kernel.weights) for name, kernel in kernels.items()}
    assert weights["gemm"] == (1280, 1280)
    assert weights["rnn"] == (77, 0)
    assert kernels["flat"].is_free
    assert not kernels["gemm"].is_free


def test_a_product_hands_its_value_on_to_its_one_pointwise_reader():
    s = Sketch()
    y = s.op("MatMul", s.input("x", [2, 4]), f32(np.ones((4, 4))), name="product")
    z = s.op("Relu", y, name="relu")
    network = s.network(s.op("MatMul", z, f32(np.ones((4, 4))), name="last"))
    handed = {name: [reader for _, reader in fused(node)] for name, node in named(network)}
    assert handed == {"product": ["relu"], "relu": [], "last": []}
