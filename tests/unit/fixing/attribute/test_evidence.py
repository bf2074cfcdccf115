import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.attribute.evidence import Band, Evidence, graded
from halfwise.formats import FP16
from halfwise.graph.roles import roles_of
from halfwise.records import Observations
from tests.unit.graph.sketch import Sketch

RATIOS = st.floats(min_value=0.0, allow_nan=False)


@given(st.sampled_from(Band), RATIOS, RATIOS)
def test_bands_never_overlap_and_grow_inside(band, one, other) -> None:
    assert band <= graded(band, one) < band + 1
    assert (one <= other) <= (graded(band, one) <= graded(band, other))


def test_infinity_is_the_gravest() -> None:
    assert graded(Band.OVERFLOW, math.inf) == graded(Band.OVERFLOW, 1e9)


def evidence(sketch: Sketch, output: str) -> Evidence:
    network = sketch.network(output)
    nothing = Observations(tensors=(), inner=(), samples=())
    return Evidence(network, roles_of(network), nothing, FP16, 2.0, "fp32")


def test_relative_error_of_storing_a_value() -> None:
    s = Sketch()
    facts = evidence(s, s.op("Relu", s.input("x", [1])))
    assert facts.relative_error(1.0) == 2.0**-11
    assert facts.relative_error(2.0**-24) == 0.5
    assert facts.relative_error(2.0**-25) == 1.0


def test_a_guard_names_free_compute_nodes_in_graph_order_or_is_none() -> None:
    s = Sketch()
    first = s.op("Relu", s.input("x", [4]), name="first")
    moved = s.op("Reshape", first, [2, 2], name="moved")
    facts = evidence(s, s.op("Exp", moved, name="last"))
    nodes = list(facts.nodes.values())
    words: dict[str, Any] = {"facts": {"value": 3.0, "sample": ""}, "fix": "", "severity": 1.0}
    (guard,) = facts.guard("overflow", nodes[1], None, nodes=reversed(nodes), **words)
    assert (guard.node, guard.nodes) == ("moved", ("first", "last"))
    assert facts.guard("overflow", nodes[1], None, nodes=nodes[1:2], **words) == []


def test_the_repair_of_the_norm_a_node_belongs_to() -> None:
    s = Sketch()
    x = s.input("x", [2, 4])
    root = s.op("Sqrt", s.op("ReduceMean", s.op("Mul", x, x), axes=[-1]), name="root")
    facts = evidence(s, s.op("Tanh", s.op("Div", x, root), name="outside"))
    assert "RMSNormalization" in facts.norm_fix(facts.nodes["root"], "otherwise")  # type: ignore[index]
    assert facts.norm_fix(facts.nodes["outside"], "otherwise") == "otherwise"  # type: ignore[index]
