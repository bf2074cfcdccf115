"""What counts as a difference, and evidence that does not fit together."""

import json

import pytest

from halfwise.errors import RecordMismatch
from halfwise.records import (
    Comparison,
    NodeName,
    RunEvidence,
    Source,
    TensorName,
)
from halfwise.store import EVIDENCE_FILE, read_evidence
from tests.unit.page.graphs import block, sketched


def test_what_counts_as_a_difference():
    bare = Comparison(
        a="A", b="B", samples=(), tolerance=1e-3, nodes=(), first=(), path=(), outputs={}
    )
    assert not bare.different
    off = bare.model_copy(update={"outputs": {TensorName("y"): 2e-3}})
    assert off.differs
    assert off.different
    born = bare.model_copy(update={"first": (NodeName("n"),)})
    assert born.different
    assert not born.differs


def test_a_node_that_is_gone_has_a_source() -> None:
    evidence = RunEvidence(graph=None, sources=(Source(module="a"),), replaced={NodeName("n"): 0})
    assert RunEvidence.model_validate_json(evidence.model_dump_json()) == evidence


@pytest.mark.parametrize(
    "damage",
    [
        {"reads": [[99], [0], [0], [0]]},
        {"gives": [[-1], [0], [0], [0]]},
        {"scopes": ["a"]},
        {"added": [4]},
        {"outputs": [60]},
        {"sources": [5, None, None, None]},
        {"bodies": {"0": 1, "1": 0}},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_evidence_that_does_not_fit_together_is_refused(damage, tmp_path) -> None:
    """It may come from anybody, and what shows it takes its indices for right."""
    graph = sketched(block("a", "x"))
    sizes = len(graph.nodes), len(graph.tensors)
    whole = RunEvidence(graph=graph, sources=(Source(module="a"),))
    told = json.loads(whole.model_dump_json())
    assert RunEvidence.model_validate(told) == whole
    for name, column in damage.items():
        size = sizes[name == "shapes"]
        told["graph"][name] = column[:size] if isinstance(column, list) else column
        if isinstance(column, list) and name in ("reads", "gives", "sources"):
            told["graph"][name] += graph.model_dump()[name][len(column[:size]) :]
    (tmp_path / EVIDENCE_FILE).write_text(json.dumps(told))
    with pytest.raises(RecordMismatch, match="does not match"):
        read_evidence(tmp_path)
