import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.fixing.attribute import Attribution
from halfwise.fixing.repair.making import Split
from halfwise.formats import FP16
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.observing.reference import observe_network
from halfwise.records import NodeName, Repair, replace
from tests.unit.fixing.repair.functions import repaired
from tests.unit.graph.sketch import Sketch, f32


def evidence(sketch: Sketch, y: str, x: np.ndarray) -> Attribution:
    network = sketch.network(y)
    roles = roles_of(network)
    few = Samples(("0",), lambda _: {"x": x})
    seen, _ = observe_network(network, few, FP16, roles=roles)
    return Attribution(network, roles, seen, FP16, 2.0, "fp16", keeps=False)


def product(s: Sketch, x: str) -> str:
    return s.op("MatMul", x, f32(np.linspace(0.5, 1.5, 1024 * 3).reshape(1024, 3)), name="node")


MAKES = {
    "product": ([2, 5, 1024], product),
    "sum": ([2, 5, 1024], lambda s, x: s.op("ReduceSum", x, [-1], name="node", keepdims=0)),
    "sum in between": ([2, 1024, 3], lambda s, x: s.op("ReduceSum", x, [1], name="node")),
    "mean": ([5, 1024], lambda s, x: s.op("ReduceMean", x, name="node", axes=[1])),
    "softmax": ([2, 1024, 3], lambda s, x: s.op("Softmax", x, name="node", axis=1)),
}


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("opset", [13, 17])
def test_a_sum_in_parts_is_the_same_function(name: str, opset: int) -> None:
    shape, make = MAKES[name]
    s = Sketch(opset)
    y = make(s, s.input("x", ["batch", *shape[1:]]))
    x = np.random.default_rng(3).normal(40, 20, shape).astype(np.float32)
    seen = evidence(s, y, x)
    (repair,) = Split().propose(seen)
    assert repair.nodes == ("node",)
    assert not [*Split().propose(replace(seen, keeps=True))]
    after = repaired(seen.network, Split(), repair)
    before, now = (run(network, x) for network in (seen.network, after))
    assert before.shape == now.shape
    assert np.abs(now - before).max() <= 2e-6 * np.abs(before).max()
    assert 32 in sizes(after)


def run(network: Network, x: np.ndarray) -> np.ndarray:
    (y,) = Session(network.model).run({"x": x}).values()
    return y


def sizes(network: Network) -> set[int]:
    """Return the sizes in the shapes that Reshapes make."""
    shapes = (v.const_value for v in network.graph.initializers.values())
    return {int(i) for a in shapes if a is not None and a.dtype.name == "INT64" for i in a.numpy()}


@pytest.mark.parametrize("length", [1021, "length"])
def test_what_does_not_divide_or_is_not_known_stays(length: int | str) -> None:
    s = Sketch()
    y = s.op("ReduceSum", s.input("x", [1, length]), [-1], name="node")
    seen = evidence(s, y, np.full((1, 1021), 100, np.float32))
    assert not [*Split().propose(seen)]


def test_a_node_without_such_a_sum_is_refused() -> None:
    s = Sketch()
    network = s.network(s.op("ReduceSum", s.input("x", [1, 8]), [0, 1], name="node"))
    with pytest.raises(CaseError, match="does not fit"):
        repaired(network, Split(), Repair(rule="split", nodes=(NodeName("node"),)))
