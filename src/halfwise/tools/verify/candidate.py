"""What is asked of a candidate's file: its interface, its types, its graph and its repairs."""

from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir
from msgspec.structs import asdict

from halfwise.case import CPU, Case, Runtime
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import OnnxRuntime
from halfwise.errors import (
    CaseError,
    GraphRefused,
    RunFailed,
)
from halfwise.fixing.filed import fp32_on
from halfwise.fixing.repair.making import further, repaired_at
from halfwise.fixing.repair.proof import LIMIT, is_same, prove
from halfwise.graph.anchors import folded
from halfwise.graph.aside import resolve, set_aside
from halfwise.graph.bodies import alike, bodies_in, first_difference
from halfwise.graph.casts import is_low_custom
from halfwise.graph.conversion import raise_opset, upcast
from halfwise.graph.excluding import excluding
from halfwise.graph.loading import REFUSALS
from halfwise.graph.model import Network, graphs_of, node_name, values_of
from halfwise.graph.quantised import census, quantised_nodes, quantising
from halfwise.graph.weights import LOW_TYPES
from halfwise.judging.reference import (
    check_types,
    demand_same_inputs,
)
from halfwise.metrics import Outputs
from halfwise.options.loading import runnable, tell
from halfwise.options.options import without_outputs
from halfwise.progress import Silent, Watcher
from halfwise.records import (
    Fact,
    Failure,
    Note,
    Proof,
    Remade,
    Verdict,
    replace,
)
from halfwise.reporting.remarks import with_failures
from halfwise.wording import listed, quoted


def remade(
    case: Case, candidate: Network, *, runtime: Runtime, watcher: Watcher | None = None
) -> Remade | None:
    """Redo a candidate's repairs; None if it needs none.

    One that names none but differs in more than types gives no verdict: it may be any conversion.

    Leading repairs that the original lists in the same order are already in it.

    Args:
        case: The original and the samples for the proof.
        candidate: As in its file, in low types.
        runtime: Where both run in FP32.
        watcher: Receives the stage `proof` if there is one.

    Raises:
        CaseError: the candidate's metadata cannot be read.
    """
    network = case.network
    repairs = further(candidate.model, network.model)
    if not repairs:
        differs = _unnamed(network, candidate)
        return Remade(repairs=(), differs=differs) if differs else None
    (watcher or Silent()).stage("proof")
    try:
        network, made = repaired_at(network, repairs, candidate.opset)
        unseen = case.calibration.select(())
        proof = prove(network, made, case.calibration, unseen, runtime=runtime)
    except (CaseError, *REFUSALS) as error:
        why = error.message if isinstance(error, CaseError) else f"{type(error).__name__}: {error}"
        return Remade(repairs=repairs, failures=(Failure(kind="unmade", names={"why": why}),))
    floats = excluding(candidate, quantised_nodes(candidate), made)
    failures = tuple(_failures(first_difference(made, floats), proof))
    return Remade(repairs=repairs, proof=proof, failures=failures)


def demand_version(
    case: Case, candidate: Network, references: Sequence[Outputs], runtime: Runtime
) -> None:
    """Check that a candidate computes what the model does, types aside.

    Args:
        case: The model, and the judged samples for calibration.
        candidate: As in its file, with the outputs of the case.
        references: Outputs of the model.
        runtime: Where the candidate runs in FP32.

    Raises:
        CaseError: it differs in more than types and the repairs that it names, and is wrong in
            FP32 too.
    """
    if quantising(candidate):
        return
    try:
        plain = replace(case, network=upcast(candidate)[0], aside=None)
        right, failing = fp32_on(OnnxRuntime(runtime), plain, case.calibration, references)
        if right or failing is None:
            return
        redone = remade(case, candidate, runtime=runtime)
    except CaseError:
        return
    failures = () if redone is None else redone.failures
    other = [failure.names["node"] for failure in failures if failure.kind == "other-graph"]
    where = next(iter(other), None if redone is None else redone.differs)
    if where:
        raise CaseError(
            f"{candidate.path or 'The candidate'} is another network: it differs from the model at "
            f"{where}, and its outputs are wrong in FP32 too.",
            "Give a file that was made from this model.",
        )


def _unnamed(network: Network, candidate: Network) -> str | None:
    """Return where a candidate without repairs differs, at its opset; None if nowhere."""
    candidate = excluding(candidate, quantised_nodes(candidate), network)
    differs = first_difference(network, candidate)
    if differs is None or network.opset >= candidate.opset:
        return differs
    try:
        return first_difference(raise_opset(network, candidate.opset), candidate)
    except (CaseError, *REFUSALS):
        return differs


def _failures(differs: str | None, proof: Proof) -> Iterator[Failure]:
    if differs is not None:
        yield Failure(kind="other-graph", names={"node": differs})
    if not is_same(proof):
        off = {"error": proof.repaired, "limit": LIMIT}
        yield Failure(kind="unproven", numbers={"elements": proof.broken} if proof.broken else off)


def shared_outputs(case: Case, shared: Collection[str], watcher: Watcher) -> Case:
    """Return the case on the outputs a candidate shares; warn about the others.

    A candidate may have more, such as all its inner tensors. It may lack outputs of the model that
    other nodes read: these are marked inner tensors.

    Args:
        case: Model and samples.
        shared: Names of the candidate's outputs.
        watcher: Receives what is left out, as do the case's notes.

    Raises:
        CaseError: the candidate lacks another output of the model, or all outputs.
    """
    outputs = case.network.graph.outputs
    declared = [str(v.name) for v in outputs]
    inner = {str(v.name) for v in outputs if v.uses()}
    lacking = [name for name in dict.fromkeys(declared) if name not in shared]
    if any(name not in inner for name in lacking) or len(lacking) == len(set(declared)):
        raise CaseError(
            f"The candidate's outputs are {quoted(sorted(shared))}, the model's "
            f"{quoted(sorted(set(declared)))}.",
            "Give a candidate made from this model, with the same output names; it may have more.",
        )
    left_out = {
        "candidate": sorted(set(shared) - set(declared)),
        "model": lacking,
    }
    for whose, names in left_out.items():
        if names:
            facts: dict[str, Fact] = {"whose": whose, "names": tuple(names)}
            case = _noted(case, Note(kind="left-out", severity="warning", facts=facts), watcher)
    if not lacking:
        return case
    network = replace(case.network, model=case.network.copy())
    keep_outputs(network.graph, shared)
    return without_outputs(replace(case, network=network), lacking)


def keep_outputs(graph: ir.Graph, names: Collection[str]) -> None:
    """Keep only the outputs with these names in a graph, in place."""
    kept = [value for value in graph.outputs if value.name in names]
    graph.outputs.clear()
    graph.outputs.extend(kept)


_FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, *LOW_TYPES}


def interface(network: Network, candidate: Network) -> tuple[list[Failure], list[str]]:
    """Return how a candidate's inputs and outputs differ from the model's.

    Returns:
        What breaks callers: outputs of a type that is no other width of float, or in another order.
        And a sentence for each input and output of another type, which a caller has to know.
    """
    failures, hints = list[Failure](), list[str]()
    for ours, others, use in (
        (network.graph.inputs, candidate.graph.inputs, "feed"),
        (network.graph.outputs, candidate.graph.outputs, "read"),
    ):
        theirs = {value.name: value.dtype for value in others}
        for value in ours:
            given, dtype = theirs.get(value.name), value.dtype
            if not given or not dtype or given == dtype:
                continue
            hints.append(
                f"{value.name!r} is {given.name} in the candidate and {dtype.name} in the model: "
                f"callers have to {use} it as that."
            )
            if use == "read" and not {given, dtype} <= _FLOATS:
                types = {"output": str(value.name), "type": given.name, "expected": dtype.name}
                failures.append(Failure(kind="interface", names=types))
    names, given_names = (
        dict.fromkeys(str(value.name) for value in side.graph.outputs)
        for side in (network, candidate)
    )
    order = [name for name in given_names if name in names]
    if order != [name for name in names if name in given_names]:
        failures.append(Failure(kind="interface", names={"order": listed(order)}))
    return failures, hints


def with_mended(verdict: Verdict, candidate: Network) -> Verdict:
    """Return the verdict; it fails if the types in the candidate's file were mended on reading."""
    clashes = candidate.mistyped
    if not clashes:
        return verdict
    names = {"first": clashes[0], **({"outputs": "pass"} if verdict.passed else {})}
    failure = Failure(kind="mistyped", names=names, numbers={"clashes": len(clashes)})
    return with_failures(verdict, (failure,), ahead=True)


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


def with_type_notes(case: Case, candidate: Network, watcher: Watcher) -> Case:
    """Return the case with notes on the candidate's types.

    They tell of its quantised parts, of FP32 products that TensorRT makes low, or that nothing is
    low.
    """
    graphs = graphs_of(candidate.model)
    if names := tuple(node_name(f.node) for graph in graphs for f in folded(graph)):
        note = Note(kind="folded", severity="warning", facts={"nodes": names})
        case = _noted(case, note, watcher)
    values = (v for graph in graphs for v in values_of(graph))
    types = census(candidate)
    if types.quantised:
        note = Note(kind="quantised", facts={"whose": "candidate", **asdict(types)})
    elif any(v.dtype in LOW_TYPES for v in values):
        return case
    else:
        note = Note(kind="none-low", severity="warning")
    return _noted(case, note, watcher)


def _noted(case: Case, note: Note, watcher: Watcher) -> Case:
    """Return the case with a note, which is told."""
    tell(watcher, [note])
    return replace(case, notes=(*case.notes, note))


def without_aside(candidate: Network, case: Case, runtime: Runtime) -> tuple[Network, Case]:
    """Return a candidate without what was set aside of the case's model, and the case.

    Both are whole if another branch than the judged one is low or differs: no sample tests it.
    """
    aside = case.aside
    if aside is None:
        return candidate, case
    if aside.branches:
        ours, theirs = (bodies_in(network.graph) for network in (aside.whole, candidate))
        check_types(candidate, runtime=runtime)
        idle = {key for key in ours if aside.branches.get(key[0], key[1]) != key[1]}
        if all(
            key in theirs
            and not theirs[key].computes(low=True)
            and alike(ours[key].graph, theirs[key].graph)
            for key in idle
        ):
            return resolve(candidate, aside.branches)[0], case
        return candidate, replace(case, network=aside.whole, aside=None)
    types = {value.name: value.dtype for value in case.network.graph.inputs}
    given = {n: types[n] or ir.DataType.FLOAT for n in aside.supplied}
    judged, other = set_aside(candidate, runnable(runtime), given)
    judged = replace(judged, model=judged.copy())
    # A Cast may stand between what is judged and what is not run.
    values = {v.name: v for v in values_of(judged.graph)}
    ends, declared = judged.graph.outputs, {v.name for v in candidate.graph.outputs}
    behind = set() if other is None else {*other.read}.difference(aside.read, declared)
    ends[:] = [v for v in ends if v.name not in behind]
    ends.extend(values[n] for n in aside.read if n in values and values[n] not in ends)
    return judged, case


def other_aside(case: Case, candidate: Network) -> Iterator[Failure]:
    """Yield that what is not run differs in a candidate's file."""
    where = None if case.aside is None else case.aside.differs(candidate)
    if where is not None:
        yield Failure(kind="other-aside", names={"where": where})


def on_shared_outputs(candidate: Network, case: Case, watcher: Watcher) -> tuple[Network, Case]:
    """Return a candidate and the case, both on the outputs they share."""
    demand_same_inputs(case.network, candidate.model, "the candidate")
    case = shared_outputs(case, {str(v.name) for v in candidate.graph.outputs}, watcher)
    candidate = replace(candidate, model=candidate.copy())
    keep_outputs(candidate.graph, {str(v.name) for v in case.network.graph.outputs})
    return candidate, case
