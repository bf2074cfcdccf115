"""The nodes that a recipe keeps in FP32: their layers, and attention that is partly FP32."""

import shlex
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from halfwise.errors import CaseError, RecordMismatch
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.reading import moves
from halfwise.graph.roles import bodies, is_float
from halfwise.graph.written_out import attentions
from halfwise.records import BuildOutcome, Constraint, NodeName, Run
from halfwise.tensorrt.versions import has
from halfwise.wording import count, verb

_UNCONSTRAINED_OPS = ("Cast", "CastLike", "Constant", "Shape", "Size")
"""Operators whose layers take no precision."""


def layers_of(build: BuildOutcome) -> dict[NodeName, tuple[str, ...]]:
    """Return the network layers that a build constrained for each node."""
    found: dict[NodeName, tuple[str, ...]] = {}
    for layer in build.layers:
        for node in layer.nodes if layer.constrained else ():
            found[node] = (*found.get(node, ()), layer.name)
    return found


def constraints_of(
    network: Network,
    path: str,
    keep: frozenset[NodeName],
    layers: Mapping[NodeName, tuple[str, ...]],
) -> tuple[Constraint, ...]:
    """Return the constraints that keep nodes in FP32, in graph order.

    Args:
        network: The FP32 model.
        path: Its path, for messages.
        keep: The nodes.
        layers: The result of `layers_of` for the judged engine.

    Raises:
        RecordMismatch: the file lacks a node.
        CaseError: a node has bodies.
    """
    nodes = {node_name(n): n for n in network.model.graph.all_nodes()}
    if missing := sorted(keep - nodes.keys()):
        raise RecordMismatch(
            f"{path} has no node {missing[0]!r}, which the run keeps in FP32.",
            "Give the model that the run was made from.",
        )
    kept = [(name, node) for name, node in nodes.items() if name in keep]
    for name, node in kept:
        if bodies(node):
            raise CaseError(
                f"Node {name!r} ({node.op_type}) is kept in FP32, but constraints cannot reach "
                "layers in its bodies.",
                "Use strong typing (--trt-version 9 or later), where Casts in the bodies set what "
                "is FP32.",
            )
    return tuple(
        Constraint(node=name, op=node.op_type, outputs=outputs, layers=layers.get(name, ()))
        for name, node in kept
        if any(outputs := _float_outputs(node)) and is_standard(node)
    )


def _float_outputs(node: ir.Node) -> tuple[bool, ...]:
    """Return whether each output of the node is a float; empty if it takes no precision."""
    if is_standard(node, *_UNCONSTRAINED_OPS):
        return ()
    return tuple(is_float(value) for value in node.outputs if value.name)


_MOST = 24
"""Largest number of options that a note lists; beyond that it gives only their number."""


def note_on_attention(run: Run, network: Network, kept: frozenset[NodeName], version: str) -> str:
    """Return a note if a plan keeps cores of attention only in part, else an empty string.

    There is none if a strongly typed engine was judged: its verdict covers this.

    Args:
        run: A run of `fix`.
        network: The mixed model.
        kept: Its FP32 nodes.
        version: TensorRT's version.
    """
    if run.engines is not None and run.engines.typing == "strong":
        return ""
    found = list(_split(network, kept))
    if not found:
        return ""
    missing = sorted(frozenset().union(*found))
    options = " ".join(f"--keep {shlex.quote(name)}" for name in missing)
    if len(missing) > _MOST:
        options = f"--keep for {len(missing)} more nodes"
    upcast = has("FP32 sums in fused attention", version)
    sums = " (or, by its notes, is FP32 with queries, keys and values cast up)" if upcast else ""
    return (
        f"{count(len(found), 'attention core')} {verb(len(found), 'is', 'are')} partly FP32, "
        f"but TensorRT {version} fuses a core only if all of it has one type{sums}: halfwise "
        f"fix with --start-from and {options} keeps whole cores in FP32, and judges the result."
    )


def _split(network: Network, kept: frozenset[NodeName]) -> Iterator[frozenset[NodeName]]:
    """Yield the low nodes of every core that also has FP32 nodes."""
    for nodes in dict.fromkeys(attentions(network)):
        core = frozenset(node_name(n) for n in nodes if not moves(n))
        if core & kept and core - kept:
            yield core - kept
