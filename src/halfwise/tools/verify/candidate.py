"""What `verify` demands of a model that is to be judged, and what it tells of one."""

from collections.abc import Collection
from dataclasses import asdict, replace

import onnx_ir as ir

from halfwise.case import CPU, Case, Runtime
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, GraphRefused, RunFailed
from halfwise.graph.casts import is_low_custom
from halfwise.graph.model import Network, graphs_of
from halfwise.graph.normal_form import values_of
from halfwise.graph.quantisation.pairs import census
from halfwise.graph.weights import LOW_TYPES
from halfwise.options.loading import tell
from halfwise.options.metric import without_outputs
from halfwise.progress import Watcher
from halfwise.records import Fact, Note


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
            "Give a candidate made from this model, with the same output names; it may have more.",
        )
    left_out = {
        "candidate": sorted(set(given) - set(own)),
        "model": lacking,
    }
    for whose, names in left_out.items():
        if names:
            facts: dict[str, Fact] = {"whose": whose, "names": tuple(names)}
            note = Note(kind="left-out", severity="warning", facts=facts)
            tell(watcher, [note])
            case = replace(case, notes=(*case.notes, note))
    if not lacking:
        return case
    network = replace(case.network, model=case.network.copy())
    keep_outputs(network.graph, given)
    return without_outputs(replace(case, network=network), lacking)


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
            "Give a candidate made from this model, with the same input names.",
        )


def demand_valid(candidate: Network, *, runtime: Runtime = CPU) -> None:
    """Check that ONNX Runtime takes a candidate's graph and its types, as they are in the file.

    The emulation has types of its own, so it may run what no runtime takes. A kernel that is
    missing is another matter, and what custom operators take in a low type is not known here.

    Raises:
        CaseError: it does not.
    """
    try:
        Session(candidate.model, runtime=runtime)
    except GraphRefused as refusal:
        if not any(map(is_low_custom, candidate.model.graph.all_nodes())):
            raise CaseError(
                f"{candidate.path or 'The candidate'} is not a valid model: {refusal.message}",
                "Run `python -m onnx.checker` on it, and convert the model again.",
            ) from refusal
    except (CaseError, RunFailed):
        return


def told_types(case: Case, candidate: Network, watcher: Watcher) -> Case:
    """Return the case with what is quantised in the candidate, or that nothing in it is low."""
    values = (v for graph in graphs_of(candidate.model) for v in values_of(graph))
    found = census(candidate)
    if found.quantised:
        note = Note(kind="quantised", facts={"whose": "candidate", **asdict(found)})
    elif any(v.dtype in LOW_TYPES for v in values):
        return case
    else:
        note = Note(kind="none-low", severity="warning")
    tell(watcher, [note])
    return replace(case, notes=(*case.notes, note))
