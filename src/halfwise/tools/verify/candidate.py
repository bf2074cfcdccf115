"""What `verify` demands of a candidate, and reports about it."""

from collections.abc import Collection
from dataclasses import asdict, replace

import onnx_ir as ir

from halfwise.case import CPU, Case, Runtime, Settings
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, GraphRefused, HalfwiseError, RunFailed
from halfwise.formats import LOW_FORMATS
from halfwise.graph.anchors import folded
from halfwise.graph.casts import is_low_custom, low_type
from halfwise.graph.model import Network, graphs_of, node_name, values_of
from halfwise.graph.quantised import census
from halfwise.graph.roles import roles_of
from halfwise.graph.weights import LOW_TYPES
from halfwise.judging.reference import frozen_named
from halfwise.observing.reference import observe_network
from halfwise.options.loading import tell
from halfwise.options.metric import without_outputs
from halfwise.progress import Watcher
from halfwise.records import Fact, Note, Observations, Run
from halfwise.wording import quoted


def shared_outputs(case: Case, given: Collection[str], watcher: Watcher) -> Case:
    """Return the case on the outputs a candidate shares; warn about the others.

    A candidate may have more, such as all its inner tensors. It may lack outputs of the model that
    other nodes read: these are marked inner tensors.

    Args:
        case: Model and samples.
        given: Names of the candidate's outputs.
        watcher: Receives what is left out, as do the case's notes.

    Raises:
        CaseError: the candidate lacks another output of the model, or all outputs.
    """
    outputs = case.network.graph.outputs
    own = [str(v.name) for v in outputs]
    inner = {str(v.name) for v in outputs if v.uses()}
    lacking = [name for name in dict.fromkeys(own) if name not in given]
    if any(name not in inner for name in lacking) or len(lacking) == len(set(own)):
        raise CaseError(
            f"The candidate's outputs are {quoted(sorted(given))}, the model's "
            f"{quoted(sorted(set(own)))}.",
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
    """Keep only the outputs with these names in a graph, in place."""
    kept = [value for value in graph.outputs if value.name in names]
    graph.outputs.clear()
    graph.outputs.extend(kept)


def demand_same_inputs(network: Network, candidate: ir.Model) -> None:
    """Check that a candidate has the model's inputs.

    Raises:
        CaseError: its inputs differ.
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
    """Check that ONNX Runtime accepts a candidate's graph and types, unchanged.

    The emulation has its own types, so it may run what no runtime accepts. Missing kernels are
    allowed, and custom operators' low types are unknown here.

    Raises:
        CaseError: it does not accept them.
    """
    try:
        Session(candidate.model, runtime=runtime)
    except GraphRefused as refusal:
        if not any(map(is_low_custom, candidate.model.graph.all_nodes())):
            raise CaseError(
                f"{candidate.path or 'The candidate'} is not a valid model: {refusal.message}",
                "Convert the model again.",
            ) from refusal
    except (CaseError, RunFailed):
        return


def told_types(case: Case, candidate: Network, watcher: Watcher) -> Case:
    """Return the case with notes on the candidate's types.

    They tell of its quantised parts, of FP32 products that TensorRT makes low, or that nothing is
    low.
    """
    graphs = graphs_of(candidate.model)
    if names := tuple(node_name(f.node) for graph in graphs for f in folded(graph)):
        note = Note(kind="folded", severity="warning", facts={"nodes": names})
        tell(watcher, [note])
        case = replace(case, notes=(*case.notes, note))
    values = (v for graph in graphs for v in values_of(graph))
    found = census(candidate)
    if found.quantised:
        note = Note(kind="quantised", facts={"whose": "candidate", **asdict(found)})
    elif any(v.dtype in LOW_TYPES for v in values):
        return case
    else:
        note = Note(kind="none-low", severity="warning")
    tell(watcher, [note])
    return replace(case, notes=(*case.notes, note))


_LOOKED_AT = 4
"""Most failing samples on which the reference's values are observed for the page."""


def observed_worst(
    case: Case, run: Run, settings: Settings, watcher: Watcher
) -> Observations | None:
    """Return observations of FP32 on the worst samples; None if the candidate passed."""
    excesses = run.verdict.excesses
    if run.verdict.passed or len(excesses) != len(case.calibration):
        return None
    watcher.stage("observe")
    worst = sorted(range(len(excesses)), key=lambda i: -excesses[i])[:_LOOKED_AT]
    low = LOW_FORMATS[(run.worth and run.worth.low) or "fp16"]
    roles = roles_of(case.network, low_type(low))
    with frozen_named(case, settings):
        try:
            few = case.calibration.select(sorted(worst))
            return observe_network(case.network, few, low, roles=roles, runtime=settings.runtime)[0]
        except HalfwiseError as error:
            watcher.note(f"the tensors' values are unknown ({error.message})")
            return None
