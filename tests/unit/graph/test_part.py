from halfwise.graph.part import Part
from halfwise.records import NodeName
from tests.unit.graph.sketch import Sketch


def test_some_nodes_of_the_same_graph() -> None:
    s = Sketch()
    network = s.network(s.op("Abs", s.op("Neg", s.input("x", [2]), name="neg"), name="abs"))
    part = Part.of(network.model, [NodeName("abs"), NodeName("other")])
    assert [n.name for n in part.nodes()] == ["abs"]
    assert part.graph is network.graph
