"""What shows a run beyond its numbers."""

from halfwise.case import Case, Samples
from halfwise.page.finish import evidence_of
from halfwise.records import Criterion, NodeName, RunEvidence
from tests.unit.graph.sketch import Sketch


def case_of(network):
    nothing = Samples((), lambda _: {})
    return Case(network, nothing, nothing, Criterion(), None, (), "")


def network():
    s = Sketch(17)
    found = s.network(s.op("Neg", s.op("Abs", s.input("x", [4]), name="abs"), name="neg"))
    for i, node in enumerate(found.nodes(), 1):
        stack = f'File "net.py", line {i}, in forward\n    y = x'
        node.metadata_props["pkg.torch.onnx.stack_trace"] = stack
    return found


def test_what_the_mixed_model_has_no_longer_keeps_its_source() -> None:
    given = network()
    mixed = given.copy()
    mixed.graph.node("neg").name = "new"
    found = evidence_of(case_of(given), mixed)
    assert found.graph is not None
    assert found.graph.nodes == ("abs", "new")
    assert found.graph.added == (1,)
    assert found.sources[found.replaced[NodeName("neg")]].line == 2
    assert RunEvidence.from_json(found.to_json()) == found


def test_more_nodes_than_a_browser_draws_are_left_out(monkeypatch) -> None:
    monkeypatch.setattr("halfwise.page.finish.MOST_NODES", 1)
    found = evidence_of(case_of(network()))
    assert found.graph is None
