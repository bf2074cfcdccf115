from halfwise.fixing.repair.unscaled import unscaled
from halfwise.graph.model import node_name
from halfwise.records import Guard, NodeName, TensorName
from halfwise.reporting.remarks import remark
from tests.unit.graph.sketch import Sketch, f32


def guard(tensor: str, *nodes: str) -> Guard:
    names = tuple(map(NodeName, nodes))
    about = {"kind": "overflow", "fix": "", "severity": 3.0}
    return Guard(node=names[0], tensor=TensorName(tensor), nodes=names, **about)  # type: ignore[arg-type]


def test_each_operator_that_needs_or_gives_a_tensor_as_it_is_is_named_once():
    s = Sketch()
    large = s.op("Mul", s.input("x", [1, 4]), f32(1e5), name="large")
    ends = [
        s.op("Mul", s.op("Exp", large, name=f"exp{i}"), f32(1e-5), name=f"m{i}") for i in (0, 1)
    ]
    network = s.network(*ends)
    guards = [guard("large_out", "large"), guard("exp0_out", "exp0"), guard("exp1_out", "exp1")]
    kept = frozenset(map(node_name, network.nodes()))
    words = [remark(found) for found in unscaled(network, guards, kept)]
    assert words == [
        "large_out is not scaled by a power of two: exp0 (Exp) needs it as it is.",
        "exp0_out is not scaled by a power of two: exp0 (Exp) gives it as it is.",
    ]
    assert not list(unscaled(network, guards, frozenset()))


def test_what_could_be_scaled_has_no_remark():
    s = Sketch()
    network = s.network(s.op("Relu", s.op("Mul", s.input("x", [1, 4]), f32(1e5), name="m")))
    assert not list(unscaled(network, [guard("m_out", "m")], frozenset((NodeName("m"),))))
