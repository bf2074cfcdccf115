"""The FP32 reference: whether halfwise can lower it, types that ONNX left out, a first run."""

from collections.abc import Iterable
from contextlib import suppress

import onnx_ir as ir

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.bounded import forgiving
from halfwise.emulation.ort import Session
from halfwise.emulation.probe import observable
from halfwise.emulation.runner import inspect_samples
from halfwise.errors import CaseError, KernelMissing, RunFailed
from halfwise.graph.conversion import LOW_TYPES
from halfwise.graph.model import Network, infer_again
from halfwise.graph.normal_form import name_cast_types
from halfwise.graph.roles import RANDOM, RANDOM_PREFIX
from halfwise.metrics import Outputs
from halfwise.records import TensorName

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


def check(network: Network, *, runtime: Runtime = CPU) -> Session:
    """Complete the types of `network` and return the session of the reference.

    Raises:
        CaseError: ONNX Runtime cannot run the model; a custom operator gives FP16 or BF16 even
            where all else is FP32; the model has no float tensor at all; an output is not a
            tensor; it draws random numbers.
    """
    complete_types(network, runtime=runtime)
    values = [v for g in network.graphs() for v in (*g.inputs, *g.initializers.values())]
    values += [v for n in network.model.graph.all_nodes() for v in n.outputs if v.name]
    for value in values:
        if isinstance(value.type, ir.TensorType) and value.type.dtype in LOW_TYPES:
            raise CaseError(
                f"{value.name!r} is {LOW_TYPES[value.type.dtype]} even where all else is FP32, so "
                "there is no FP32 reference.",
                "Give a model whose custom operators compute in FP32.",
            )
    if not any(v.dtype == ir.DataType.FLOAT for v in values):
        raise CaseError(
            f"The model has no FP32 tensor, so there is no precision to choose; its types are "
            f"{', '.join(sorted({v.dtype.name for v in values if v.dtype is not None}))}.",
            "Give the model in FP32: nothing else is lowered, FP64 neither.",
        )
    for node in network.model.graph.all_nodes():
        if _draws(node):
            raise CaseError(
                f"Node {node.name!r} ({node.op_type}) draws random numbers, so no two runs of the "
                "model can be compared.",
                "Make the noise an input of the model, and export it again.",
            )
    for value in network.graph.outputs:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            raise CaseError(
                f"Output {value.name!r} is a {type(value.type).__name__}, not a tensor.",
                "Export the model with tensor outputs.",
            )
    return Session(network.model, runtime=runtime)


def check_types(network: Network, *, runtime: Runtime = CPU) -> None:
    """Complete the types of a mixed model: where its types are read, none may be missing.

    Raises:
        CaseError: ONNX Runtime cannot tell them: it lacks a custom operator, or a kernel for a low
            type; or the operator is in a body.
    """
    with suppress(KernelMissing):
        complete_types(network, runtime=runtime)
    if unknown := _untyped(network.model.graph.all_nodes()):
        node = unknown[0].producer()
        assert node is not None
        raise CaseError(
            f"Whether {unknown[0].name!r} is FP16, BF16 or FP32 is not known: the model does not "
            f"say it, and ONNX Runtime cannot tell for this {node.op_type}.",
            f"Store the types of tensors in {network.path or 'the model'} (`graph.value_info`).",
        )


def complete_types(network: Network, *, runtime: Runtime = CPU) -> None:
    """Give values that ONNX leaves untyped the types that ONNX Runtime finds, in place.

    These are what custom operators give, and what is computed from it; in bodies, the latter only.

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


def _draws(node: ir.Node) -> bool:
    """Return whether `node` may draw random numbers; Dropout does where it may be training."""
    if node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None:
        training = node.inputs[2].const_value
        return training is None or bool(training.numpy().any())
    return node.op_type in RANDOM or node.op_type.startswith(RANDOM_PREFIX)


def inspected_reference(
    network: Network, samples: Samples, *, runtime: Runtime = CPU
) -> tuple[list[Outputs], frozenset[TensorName]]:
    """Return the outputs of every sample, and the tensors that are not finite on any of them.

    What holds NaN or infinities in FP32 already, such as a mask of -inf, is no fault of a
    candidate's.

    Raises:
        RunFailed, TookTooLong: it cannot be run on a sample.
    """
    model = network.model
    with forgiving(any_number=False):
        results, nonfinite = inspect_samples(model, observable(model), samples, runtime=runtime)
    references: list[Outputs] = []
    for result in results:
        if isinstance(result, RunFailed):
            raise result
        references.append(result)
    return references, frozenset(nonfinite)
