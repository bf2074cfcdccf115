"""What counts as a difference, and evidence that does not fit together."""

from halfwise.records import Comparison, NodeName, RunEvidence, Source, TensorName, replace


def test_what_counts_as_a_difference():
    bare = Comparison(
        a="A", b="B", samples=(), tolerance=1e-3, nodes=(), first=(), path=(), outputs={}
    )
    assert not bare.different
    off = replace(bare, outputs={TensorName("y"): 2e-3})
    assert off.differs
    assert off.different
    born = replace(bare, first=(NodeName("n"),))
    assert born.different
    assert not born.differs


def test_a_node_that_is_gone_has_a_source() -> None:
    evidence = RunEvidence(graph=None, sources=(Source(module="a"),), replaced={NodeName("n"): 0})
    assert RunEvidence.from_json(evidence.to_json()) == evidence
