"""Check that a network is one that halfwise can lower, and complete what ONNX left untyped."""

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from halfwise.backends.ort import Session
from halfwise.errors import CaseError
from halfwise.graph.castlike import name_cast_types
from halfwise.graph.model import Network
from halfwise.graph.roles import RANDOM, RANDOM_PREFIX
from halfwise.graph.widen import LOW_TYPES

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


def check(network: Network, *, device: str = "cpu", libraries: Sequence[Path] = ()) -> Session:
    """Complete the types of `network` and return the session of the reference.

    Values that ONNX's shape inference leaves untyped (outputs of custom operators) get the type
    that ONNX Runtime finds.

    Raises:
        CaseError: ONNX Runtime cannot run the model; a custom operator gives FP16 or BF16 even
            where all else is FP32; the model has no float tensor at all; an output is not a
            tensor; it draws random numbers.
    """
    untyped = [v for n in network.nodes() for v in n.outputs if v.name and v.type is None]
    if untyped:
        _ask_runtime(network, untyped, device, libraries)
        name_cast_types(network.graphs())
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
    return Session(network.model, device=device, libraries=libraries)


def _draws(node: ir.Node) -> bool:
    """Return whether `node` may draw random numbers; Dropout does where it may be training."""
    if node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None:
        training = node.inputs[2].const_value
        return training is None or bool(training.numpy().any())
    return node.op_type in RANDOM or node.op_type.startswith(RANDOM_PREFIX)


def _ask_runtime(
    network: Network, untyped: list[ir.Value], device: str, libraries: Sequence[Path]
) -> None:
    probe = network.copy()
    names = {v.name for v in untyped} - {v.name for v in probe.graph.outputs}
    probe.graph.outputs.extend(v for n in probe.graph for v in n.outputs if v.name in names)
    types = Session(probe, device=device, libraries=libraries).output_types
    for value in untyped:
        if dtype := _ORT_TYPES.get(types.get(value.name or "", "")):
            value.type = ir.TensorType(dtype)
