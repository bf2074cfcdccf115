import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from halfwise.errors import CaseError
from halfwise.fixing.repair.fold import Fold, chains, changes, folded_weights, read_chain
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, constant_array, node_name
from halfwise.records import NodeName, Place, Repair
from tests.models import batch_norm, huge_weights
from tests.models.constants import batch_norm_of_still_channels
from tests.models.illness import Ill
from tests.models.overflow import large_bias
from tests.unit.fixing.repair.functions import errors, evidence, repaired
from tests.unit.graph.sketch import Sketch, f32

LINEAR = {
    "": [1, 4, 3, 3],
    "Conv": [1, 4, 3, 3],
    "ConvTranspose": [1, 4, 3, 3],
    "Gemm": [3, 4],
    "MatMul": [2, 3, 4],
}
STEPS = ("Add", "Sub", "Mul", "Div", "Neg", "BatchNormalization", "minus")


class Chains:
    """Draws a chain: element by element, a linear node, element by element."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.linear = draw(st.sampled_from(list(LINEAR)))
        self.rng = np.random.default_rng(draw(st.integers(0, 2**20)))
        self.s = Sketch()

    def network(self) -> Network:
        shape = LINEAR[self.linear]
        value = self.steps(self.s.input("x", shape), 4, len(shape))
        if self.linear:
            value = self.steps(self.product(value), 6, len(shape))
        return self.s.network(value)

    def steps(self, value: str, channels: int, rank: int) -> str:
        for op in self.draw(st.lists(st.sampled_from(STEPS), max_size=4)):
            value = self.step(op, value, channels, rank)
        return value

    def step(self, op: str, value: str, channels: int, rank: int) -> str:
        if op == "Neg":
            return self.s.op(op, value)
        if op == "BatchNormalization":
            if rank != 4:
                return value
            weight, bias, mean = (f32(self.rng.normal(size=channels)) for _ in range(3))
            variance = f32(self.rng.uniform(0.1, 3, channels) ** self.draw(st.integers(-6, 20)))
            return self.s.op(op, value, weight, bias, mean, variance)
        size = self.draw(st.sampled_from([(), (channels,), (1, channels)]))
        sign = self.rng.choice([-1, 1], size)
        array = f32(self.rng.uniform(0.5, 2, size) * sign * 2.0 ** self.draw(st.integers(-8, 8)))
        if size and rank == 4:
            array = array.reshape(*array.shape, 1, 1)
        if op == "minus":
            return self.s.op("Sub", self.s.constant(array), value)
        return self.s.op(op, value, array)

    def product(self, value: str) -> str:
        draw, normal = self.draw, lambda *shape: f32(self.rng.normal(size=shape))
        if self.linear == "MatMul":
            return self.s.op("MatMul", value, normal(4, 6))
        bias = [normal(6)] if draw(st.booleans()) else []
        if self.linear == "Gemm":
            turned = draw(st.booleans())
            weight = normal(6, 4) if turned else normal(4, 6)
            return self.s.op("Gemm", value, weight, *bias, transB=int(turned), alpha=0.5, beta=-2.0)
        groups, pad = draw(st.sampled_from([1, 2])), draw(st.sampled_from([0, 1]))
        shape = (6, 4 // groups, 3, 3) if self.linear == "Conv" else (4, 6 // groups, 3, 3)
        return self.s.op(self.linear, value, normal(*shape), *bias, group=groups, pads=[pad] * 4)


@given(st.composite(Chains)(), st.integers(-4, 10), st.sampled_from([1e-6, 1.0, 3e4]))
def test_it_is_the_same_function(drawn: Chains, shift: int, scale: float) -> None:
    network = drawn.network()
    found = [c for c in chains(network) if changes(c)]
    repairs = [
        Repair(rule="fold", nodes=tuple(map(node_name, c.nodes)), numbers={"shift": shift})
        for c in found
    ]
    after = repaired(network, Fold(), *repairs)
    shape = LINEAR[drawn.linear]
    x = f32(scale * (drawn.rng.normal(size=shape) + drawn.rng.choice([0, 10])))
    before, now = errors(network, after, {"x": x})
    assert now <= max(before, 1e-5)
    # Nothing is left to do, where no factor was split.
    assert shift or not [c for c in chains(after) if changes(c)]


@pytest.mark.parametrize(
    "make", [batch_norm, batch_norm_of_still_channels, huge_weights, large_bias]
)
def test_it_is_proposed_where_a_guard_points_inside(make: Callable[[], Ill]) -> None:
    ill = make()
    seen = evidence(ill)
    (repair,) = Fold().propose(seen)
    assert repair.guards
    after = repaired(seen.network, Fold(), repair)
    before, now = errors(seen.network, after, ill.sample(0))
    assert now <= max(before, 1e-5)
    constants = [constant_array(v) for v in after.graph.initializers.values()]
    assert max(np.abs(c).max() for c in constants) < FP16.max
    assert {o.name for o in after.graph.outputs} == {o.name for o in seen.network.graph.outputs}


def test_subnormal_factors_are_scaled_and_the_result_set_right_again() -> None:
    s = Sketch()
    value = s.op("Conv", s.input("x", [1, 4, 8, 8]), f32(np.full((4, 4, 1, 1), 0.1)), name="conv")
    ones, variance = f32(np.ones(4)), f32(np.full(4, 1e10))
    y = s.op("BatchNormalization", value, ones, 0 * ones, 0 * ones, variance, name="norm")
    rows = np.random.default_rng(0).normal(size=(1, 1, 4, 8, 8)) * 1e4
    (repair,) = Fold().propose(evidence(Ill(s.proto(y), {"x": f32(rows)})))
    # 0.1 / √1e10 = 1e-6 is 61 times below FP16's smallest normal number.
    assert repair.numbers == {"shift": 6}
    after = repaired(s.network(y), Fold(), repair)
    assert [n.op_type for n in after.nodes()] == ["Conv", "Mul"]


def test_nothing_is_proposed_without_need_or_where_something_else_reads_what_is_inside() -> None:
    s = Sketch()
    large = s.op("Mul", s.input("x", [1, 4]), f32(1e4), name="large")
    y = s.op("Mul", large, f32(1e-3), name="small")
    x = {"x": f32(np.full((1, 1, 4), 100.0))}
    assert [r.guards for r in Fold().propose(evidence(Ill(s.proto(y), x)))] == [
        (Place(kind="overflow", node=NodeName("large")),)
    ]
    assert not list(Fold().propose(evidence(Ill(s.proto(y, large), x))))
    assert not list(Fold().propose(evidence(Ill(s.proto(y), {"x": x["x"] / 100}))))


def test_another_model_is_refused() -> None:
    with pytest.raises(CaseError, match="another model"):
        repaired(
            network_from_proto(batch_norm().proto),
            Fold(),
            Repair(rule="fold", nodes=(NodeName("a"),)),
        )


def test_weights_that_others_read_stay() -> None:
    s = Sketch()
    x = s.input("x", [1, 4])
    weight = s.constant(f32(np.full((4, 4), 1e5)), "shared")
    y = s.op("Mul", s.op("MatMul", x, weight), f32(1e-4), name="scaled")
    ill = Ill(s.proto(y, s.op("MatMul", x, weight)), {"x": f32(np.ones((1, 1, 4)))})
    seen = evidence(ill)
    (repair,) = Fold().propose(seen)
    after = repaired(seen.network, Fold(), repair)
    before, now = errors(seen.network, after, ill.sample(0))
    assert now <= max(before, 1e-5)
    assert "shared" in after.graph.initializers


def test_what_a_body_reads_ends_a_chain() -> None:
    end = helper.make_tensor_value_info("n", TensorProto.FLOAT, [1, 4])
    taken = helper.make_graph([helper.make_node("Neg", ["large_out"], ["n"])], "body", [], [end])
    s = Sketch()
    large = s.op("Mul", s.input("x", [1, 4]), f32(1e4), name="large")
    y = s.op("Mul", large, f32(1e-3), name="small")
    z = s.op("If", s.constant(np.array(True)), then_branch=taken, else_branch=taken, name="if")
    ill = Ill(s.proto(y, z), {"x": f32(np.full((1, 1, 4), 100.0))})
    assert not list(Fold().propose(evidence(ill)))


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
