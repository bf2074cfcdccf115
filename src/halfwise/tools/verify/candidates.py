"""Which outputs a candidate and the model share, where one of them gives out inner tensors too."""

from collections.abc import Collection
from dataclasses import replace

import onnx_ir as ir

from halfwise.case import Case
from halfwise.errors import CaseError
from halfwise.graph.model import Network
from halfwise.progress import Watcher
from halfwise.wording import listed


def shared_outputs(case: Case, given: Collection[str], watcher: Watcher) -> Case:
    """Return the case on the outputs that a candidate has too; what is left out is warned of.

    A candidate may have more, such as all its inner tensors. It may lack those of the model's
    outputs that other nodes read: these are inner tensors that somebody marked.

    Args:
        case: Model and samples.
        given: Names of the candidate's outputs.
        watcher: Is told what is left out; so are the notes of the case.

    Raises:
        CaseError: the candidate lacks another output of the model, or all of them.
    """
    outputs = case.network.graph.outputs
    own = [str(v.name) for v in outputs]
    inner = {str(v.name) for v in outputs if v.uses()}
    lacking = [name for name in dict.fromkeys(own) if name not in given]
    if any(name not in inner for name in lacking) or len(lacking) == len(set(own)):
        raise CaseError(
            f"The candidate's outputs are {sorted(given)}, the model's {sorted(set(own))}.",
            "Give a candidate made from this model, with the same names of outputs; it may have "
            "more.",
        )
    left_out = {
        "only the candidate gives out": sorted(set(given) - set(own)),
        "only the model gives out, though its nodes read them": lacking,
    }
    for whose, names in left_out.items():
        if names:
            note = f"warning: not judged, since {whose}: {listed(names)}"
            watcher.note(note)
            case = replace(case, notes=(*case.notes, note))
    if not lacking:
        return case
    network = replace(case.network, model=case.network.copy())
    keep_outputs(network.graph, given)
    return replace(case, network=network)


def keep_outputs(graph: ir.Graph, names: Collection[str]) -> None:
    """Make only the outputs of these names outputs of a graph, in place."""
    kept = [value for value in graph.outputs if value.name in names]
    graph.outputs.clear()
    graph.outputs.extend(kept)


def demand_same_inputs(network: Network, candidate: ir.Model) -> None:
    """Check that a candidate takes what the model takes.

    Raises:
        CaseError: it has other inputs.
    """
    expected = {v.name for v in network.graph.inputs}
    found = {v.name for v in candidate.graph.inputs}
    if expected != found:
        raise CaseError(
            f"The candidate's inputs are {sorted(map(str, found))}, the model's "
            f"{sorted(map(str, expected))}.",
            "Give a candidate made from this model, with the same names of inputs.",
        )
