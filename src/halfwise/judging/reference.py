"""The FP32 reference: whether halfwise can lower it, types ONNX cannot infer, why it fails."""

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import onnx_ir as ir

from halfwise.case import CPU, Case, Runtime, Samples, Seen
from halfwise.emulation.bodies import report
from halfwise.emulation.budget import forgiving
from halfwise.emulation.ort import Session
from halfwise.emulation.probe import observable
from halfwise.emulation.runner import inspect_samples
from halfwise.errors import CaseError, KernelMissing, RunFailed
from halfwise.graph.aside import draws
from halfwise.graph.bodies import Body, alike, bodies_in
from halfwise.graph.dataflow import giving_out
from halfwise.graph.intake import name_cast_types
from halfwise.graph.loading import infer_again
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.graph.sizes import frozen_axes, frozen_states
from halfwise.graph.weights import LOW_TYPES
from halfwise.metrics import Outputs, untested_outputs, untested_task
from halfwise.records import TensorName, Unjudged
from halfwise.wording import listed, quoted


def find_unjudged(
    case: Case,
    candidate: ir.Model | None,
    samples: Samples,
    references: Sequence[Outputs],
    *,
    runtime: Runtime = CPU,
) -> tuple[Unjudged, ...]:
    """Return what the verdict on `samples` does not cover.

    Args:
        case: The FP32 model, all samples, and what is acceptable. A body that ran on any sample,
            even of the search, counts as tested.
        candidate: The judged model with its types: a body that is in FP32, as in the reference,
            needs no test. None for an engine and for recorded outputs, where all bodies need one.
        samples: The judged samples.
        references: FP32 outputs of each.
        runtime: Where to run.
    """
    labels = None if samples.labels is None else list(samples.labels)
    untested = (
        *untested_outputs(case.criterion, references),
        *untested_task(case.criterion, case.metric, references, labels),
    )
    wanted = _to_be_tested(case, candidate)
    idle = _never_run(case, wanted, runtime) if wanted else ()
    return (*untested, *(_untested(body, case.network.graph) for body in idle))


def _to_be_tested(case: Case, candidate: ir.Model | None) -> list[Body]:
    """Return the reference's bodies that compute, except those unchanged in the candidate.

    Bodies that no input reaches are excluded.
    """
    candidates = {} if candidate is None else bodies_in(candidate.graph)
    wanted = (b for b in bodies_in(case.network.graph).values() if b.computes(low=False))
    kept = {k for k, body in candidates.items() if not body.computes(low=True)}
    return [
        b
        for b in wanted
        if b.can_run and not (b.key in kept and alike(b.graph, candidates[b.key].graph))
    ]


def _never_run(case: Case, wanted: Sequence[Body], runtime: Runtime) -> list[Body]:
    """Return the bodies that run on no sample; of nested bodies, only the outermost."""
    model = case.network.copy()
    reports = report(model)
    names = {body: reports[body.key].output for body in wanted}
    session = Session(model, runtime=runtime)
    waiting = list(wanted)
    for sample in case.heldout + case.calibration:
        if not waiting:
            return []
        runs = session.run(sample, [names[body] for body in waiting])
        waiting = [body for body in waiting if not runs[names[body]].any()]
    idle = {body.key for body in waiting}
    return [body for body in waiting if idle.isdisjoint(body.around)]


def _untested(body: Body, graph: ir.Graph) -> Unjudged:
    (node, attribute), inputs = body.key, body.inputs(graph)
    return Unjudged(
        kind="never-ran",
        name=node,
        body=attribute,
        op=body.node.op_type,
        around=(*body.around, body.key)[0][0],
        inputs=inputs if len(inputs) < len(graph.inputs) else (),
    )


_ORT_TYPES = {
    f"tensor({name})": dtype
    for name, dtype in {
        "float": ir.DataType.FLOAT,
        "float16": ir.DataType.FLOAT16,
        "bfloat16": ir.DataType.BFLOAT16,
        "double": ir.DataType.DOUBLE,
        "bool": ir.DataType.BOOL,
        "string": ir.DataType.STRING,
        **{
            f"{s}int{b}": getattr(ir.DataType, f"{s}int{b}".upper())
            for s in ("", "u")
            for b in (8, 16, 32, 64)
        },
    }.items()
}


def check(network: Network, *, runtime: Runtime = CPU) -> None:
    """Complete the types of `network`, and check that halfwise can lower it.

    Raises:
        CaseError: ONNX Runtime cannot infer its types; a custom operator outputs FP16 or BF16 even
            with everything else in FP32; the model has no FP32 tensor; an output is not a tensor;
            or the model draws random numbers.
    """
    complete_types(network, runtime=runtime)
    values = [v for g in network.graphs() for v in (*g.inputs, *g.initializers.values())]
    values += [v for n in network.model.graph.all_nodes() for v in n.outputs if v.name]
    for value in values:
        if isinstance(value.type, ir.TensorType) and value.type.dtype in LOW_TYPES:
            raise CaseError(
                f"{value.name!r} is {LOW_TYPES[value.type.dtype]} even with everything else in "
                "FP32, so there is no FP32 reference.",
                "Give a model whose custom operators compute in FP32.",
            )
    if not any(v.dtype == ir.DataType.FLOAT for v in values):
        raise CaseError(
            f"The model has no FP32 tensor whose precision halfwise could choose; its types are "
            f"{', '.join(sorted({v.dtype.name for v in values if v.dtype is not None}))}.",
            "Give the model in FP32: no other type is lowered, not even FP64.",
        )
    for node in network.model.graph.all_nodes():
        if draws(node):
            raise CaseError(
                f"Node {node.name!r} ({node.op_type}) draws random numbers, so no two runs of the "
                "model can be compared.",
                "Make the noise an input of the model, and export it again.",
            )
    for value in network.graph.outputs:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            raise CaseError(
                f"Output {value.name!r} is not a tensor.",
                "Export the model with tensor outputs.",
            )


def demand_same_inputs(network: Network, other: ir.Model, whose: str) -> None:
    """Check that another model has the network's inputs; `whose` names it in the error.

    Raises:
        CaseError: its inputs differ.
    """
    expected = sorted(tensor_name(v) for v in network.graph.inputs)
    actual = sorted(tensor_name(v) for v in other.graph.inputs)
    if expected != actual:
        raise CaseError(
            f"The inputs of {whose} are {quoted(actual)}, the model's {quoted(expected)}.",
            "Give a model made from this one, with the same names of inputs and tensors.",
        )


def check_types(network: Network, *, runtime: Runtime = CPU) -> None:
    """Complete the types of a mixed model, in place; no type may remain unknown.

    Raises:
        CaseError: ONNX Runtime cannot infer them: it lacks a custom operator or a kernel for a low
            type, or the operator is in a body.
    """
    with suppress(KernelMissing):
        complete_types(network, runtime=runtime)
    if unknown := _untyped(network.model.graph.all_nodes()):
        node = unknown[0].producer()
        assert node is not None
        raise CaseError(
            f"The type of {unknown[0].name!r} (FP16, BF16 or FP32) is unknown: the model does not "
            f"state it, and ONNX Runtime cannot infer it for this {node.op_type}.",
            f"Store the types of tensors in {network.path or 'the model'} (`graph.value_info`).",
        )


def complete_types(network: Network, *, runtime: Runtime = CPU) -> None:
    """Set types that ONNX cannot infer to those that ONNX Runtime finds, in place.

    These are outputs of custom operators and values computed from them; in bodies, only the latter.

    Raises:
        CaseError: ONNX Runtime cannot load the model.
    """
    if not (untyped := _untyped(network.nodes())):
        return
    probe = network.copy()
    names = {v.name for v in untyped} - {v.name for v in probe.graph.outputs}
    probe.graph.outputs.extend(v for n in probe.graph for v in n.outputs if v.name in names)
    types = Session(probe, runtime=runtime).output_types
    for value in untyped:
        if dtype := _ORT_TYPES.get(types.get(value.name or "", "")):
            value.type = ir.TensorType(dtype)
    name_cast_types(network.graphs())
    if _untyped(network.model.graph.all_nodes()):
        infer_again(network)


def _untyped(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    return [v for n in nodes for v in n.outputs if v.name and v.type is None]


def inspected_reference(
    network: Network, samples: Samples, *, runtime: Runtime = CPU, seen: Seen | None = None
) -> tuple[list[Outputs], frozenset[TensorName]]:
    """Return the outputs of every sample, and the tensors that are non-finite on any of them.

    NaN or infinities that FP32 already has, such as a mask of -inf, are not a candidate's fault.
    The probe of what was `seen` of the model runs them, if any.

    Raises:
        CaseError, RunFailed, TookTooLong: the model fails on a sample; see `frozen_named`.
    """
    model = network.model
    with forgiving(any_number=False):
        tensors = observable(model, bodies=True)
        probe = seen.probe if seen is not None and seen.model is model else None
        results, nonfinite = inspect_samples(model, tensors, samples, runtime=runtime, probe=probe)
    references: list[Outputs] = []
    with frozen_named(network):
        for result in results:
            if isinstance(result, RunFailed):
                raise result
            references.append(result)
    return references, frozenset(nonfinite)


def refuse_nan(
    network: Network,
    samples: Samples,
    references: Sequence[Outputs],
    nonfinite: Container[TensorName],
    *,
    runtime: Runtime = CPU,
) -> None:
    """Refuse a model whose own outputs are NaN: no precision can make them right.

    Args:
        network: The FP32 model.
        samples: The samples.
        references: Its outputs on each.
        nonfinite: The tensors that have NaN or infinities on any sample.
        runtime: Where it runs.

    Raises:
        CaseError: an output has NaN; it names the first node that computes one from numbers.
    """
    for sample, identifier, outputs in zip(samples, samples.ids, references, strict=True):
        wrong = [name for name, array in outputs.items() if _has_nan(array)]
        if not wrong:
            continue
        computed = {tensor_name(v): n for n in network.nodes() for v in n.outputs if v.name}
        names = [name for name in computed if name in nonfinite]
        found = Session(giving_out(network.model, names), runtime=runtime).run(sample, names)
        first = next(computed[name] for name in names if _has_nan(found[name]))
        raise CaseError(
            f"The FP32 model itself gives NaN: output {wrong[0]} on {identifier}, and first at "
            f"node {node_name(first)} ({first.op_type}).",
            "No precision makes that right: mend that node, or leave such inputs out. To judge all "
            "else, add --allow unjudged.",
        )


def _has_nan(array: object) -> bool:
    return (
        isinstance(array, np.ndarray)
        and np.issubdtype(array.dtype, np.floating)
        and bool(np.isnan(array).any())
    )


@contextmanager
def frozen_named(network: Network) -> Iterator[None]:
    """Name the sizes that an export fixed, where the FP32 model fails: they may be why.

    Raises:
        CaseError: it fails on a sample, and a constant fixes an axis that the file declares
            dynamic. Any other failure is raised unchanged.
    """
    try:
        yield
    except RunFailed as failure:
        batch, others = (frozen_axes(network, batch=which) for which in (True, False))
        frozen = (*batch, *frozen_states(network), *others)
        nodes = listed(list(dict.fromkeys(node_name(each.node) for each in frozen)))
        if failure.late or not nodes:
            raise
        raise CaseError(
            "The export may have fixed a size that the file declares dynamic: constants of "
            f"{nodes} hold one. {failure.message}",
            "Give samples of the size that the model was exported with, or export it again with "
            "this axis dynamic: `halfwise lint` says how.",
        ) from failure
