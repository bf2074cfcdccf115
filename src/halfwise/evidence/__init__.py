"""Illustrations of a run beyond its numbers, collected while model and data are available.

They become `evidence.json`.
"""

from collections.abc import Iterator

import onnx_ir as ir

from halfwise.case import Case
from halfwise.evidence.previews import previews
from halfwise.evidence.structure import Sources, graph_of
from halfwise.graph.model import node_name
from halfwise.records import NodeName, Run, RunEvidence

MOST_NODES = 50_000
"""Ten times a large model; no browser would open a drawing of more."""
MOST_BYTES = 32 * 2**20
"""Largest evidence.json: two and a half times what `MOST_NODES` usual nodes take."""


def evidence_of(case: Case, run: Run, mixed: ir.Model | None = None) -> RunEvidence:
    """Return what illustrates a run beyond its numbers, at most `MOST_BYTES` of JSON.

    If it is more, for example because names have thousands of characters, the calls behind nodes
    are left out first, then the graph, then the previews.

    Args:
        case: The case; its network is the user's model.
        run: The run.
        mixed: The model that the run delivers, whose graph is stored; None for the case's model.
    """
    sources, shown = Sources(), mixed or case.network.model
    own = {node_name(node): node for node in case.network.model.graph.all_nodes()}
    names = {NodeName(node.name or "") for node in shown.graph.all_nodes()}
    graph = graph_of(shown, own, sources) if len(names) <= MOST_NODES else None
    gone = {name: sources.of(node) for name, node in own.items() if name not in names}
    whole = RunEvidence(
        graph=graph,
        replaced={name: index for name, index in gone.items() if index is not None},
        frames=sources.frames,
        sources=sources.found,
        previews=previews(case, run.verdict) if case.previews else (),
    )
    return next((one for one in _ever_less(whole) if _size(one) <= MOST_BYTES), _NOTHING)


_NOTHING = RunEvidence(graph=None)


def _ever_less(whole: RunEvidence) -> Iterator[RunEvidence]:
    yield whole
    sources = (one.model_copy(update={"frames": (), "own": None}) for one in whole.sources)
    yield whole.model_copy(update={"frames": (), "sources": tuple(sources)})
    yield RunEvidence(graph=None, previews=whole.previews)


def _size(evidence: RunEvidence) -> int:
    return len(evidence.model_dump_json().encode())
