"""The record of what a page shows."""

from halfwise.records import NodeName, RunEvidence, Source


def test_sources_are_found_of_nodes_that_are_gone_too() -> None:
    evidence = RunEvidence(graph=None, sources=(Source(module="a"),), replaced={NodeName("n"): 0})
    assert evidence.source_of(NodeName("n")) == Source(module="a")
    assert evidence.source_of(NodeName("other")) is None
    assert RunEvidence.model_validate_json(evidence.model_dump_json()) == evidence
