import sys

import numpy as np
import pytest

from halfwise.graph.affine import chains, folded_weights, read_chain
from halfwise.graph.model import node_name
from tests.unit.graph.sketch import Sketch, f32


def test_a_chain_is_one_product_and_one_sum() -> None:
    s = Sketch()
    value = s.op("Sub", s.constant(f32(1)), s.input("x", ["batch", 3]), name="one_minus")
    value = s.op("Div", s.op("Mul", value, f32([1, 2, 3]), name="mul"), f32(4), name="div")
    (chain,) = chains(s.network(value))
    assert [node_name(n) for n in chain.nodes] == ["one_minus", "mul", "div"]
    assert chain.before.factor.tolist() == [[-0.25, -0.5, -0.75]]
    assert chain.before.offset.tolist() == [[0.25, 0.5, 0.75]]


def test_all_goes_into_the_weights() -> None:
    s = Sketch()
    value = s.op("Add", s.input("x", [2, 3]), f32([1, 0, -1]))
    value = s.op("Gemm", value, f32(np.ones((2, 3))), f32([5, 6]), transB=1, alpha=2.0, beta=3.0)
    (chain,) = chains(s.network(s.op("Mul", value, f32([10, 100]))))
    weight, bias = folded_weights(chain)
    assert weight.tolist() == [[20.0] * 3, [200.0] * 3]
    assert bias.tolist() == [150.0, 1800.0]


@pytest.mark.parametrize(("pads", "lengths"), [([0, 0], [2]), ([1, 1], [1, 1])])
def test_an_offset_does_not_pass_into_a_padded_convolution(
    pads: list[int], lengths: list[int]
) -> None:
    s = Sketch()
    shifted = s.op("Add", s.input("x", [1, 2, 8]), f32(1))
    y = s.op("Conv", shifted, f32(np.ones((2, 2, 3))), pads=pads)
    assert [len(c.nodes) for c in chains(s.network(y))] == lengths


def test_what_is_read_twice_or_grows_ends_a_chain() -> None:
    s = Sketch()
    x = s.input("x", [2, 1])
    twice = s.op("Mul", x, f32(2), name="twice")
    grown = s.op("Mul", s.op("Neg", twice, name="neg"), f32([1, 2, 3]), name="grown")
    network = s.network(s.op("Add", grown, twice, name="add"))
    assert [[node_name(n) for n in c.nodes] for c in chains(network)] == [["twice"], ["neg"]]
    assert read_chain(list(network.nodes())) is None


@pytest.mark.slow
def test_long_chains_take_as_many_steps_as_they_have_nodes() -> None:
    calls = {}
    for length in (1000, 2000):
        s = Sketch()
        value = s.input("x", [1, 4])
        for i in range(length):
            value = s.op("Add", value, f32(np.ones(4)), name=f"add{i}")
        network, calls[length] = s.network(value), 0

        def count(*_: object, length: int = length) -> None:
            calls[length] += 1

        sys.setprofile(count)
        found = list(chains(network))
        sys.setprofile(None)
        (chain,) = found
        assert len(chain.nodes) == length
        assert chain.before.offset.tolist() == [[length] * 4]
    assert calls[2000] < 2.2 * calls[1000]
