"""Constraints for weak typing: which nodes to pin to FP32.

TensorRT maps layers to ONNX nodes by their metadata, so a constraint is the name of a node. What
moves data between kept nodes is constrained too: a Shuffle layer may round otherwise. What two
builds differ in is the evidence there is where a fused block hides its precision.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import isfinite

import onnx_ir as ir

from halfwise.errors import CaseError
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.roles import Roles, bodies, is_float
from halfwise.records import EngineResult, EngineRung, NetworkLayer, NodeName, Verdict
from halfwise.tensorrt.quantised import quantised_types
from halfwise.wording import count, number

Assignment = frozenset[NodeName]

_UNTYPED = ("Cast", "Constant", "DequantizeLinear", "QuantizeLinear")
"""Operators whose layers have a type of their own: constraining a Cast ends the build with an
assertion of castLayer.cpp (NVIDIA/TensorRT#3618)."""
_PASSED_ON = ("Dropout", "Identity")
_SHOWN = 5


def constraints(network: Network, roles: Roles, fp32: Assignment) -> tuple[NodeName, ...]:
    """Return the nodes to constrain to FP32 in weak typing, in graph order.

    Casts, constants, and what gives integers, Booleans or shapes only take no constraint, nor does
    what may be computed in INT8, which a constraint would forbid. If, Loop and Scan have no layers
    that compute: the nodes in their bodies are constrained for them.

    Args:
        network: The model that the builder reads, names included.
        roles: Roles of its nodes.
        fp32: All FP32 nodes of the main graph, those that move data included.
    """
    found: list[NodeName] = []
    integers = quantised_types(network)
    for node in network.nodes():
        name = node_name(node)
        if name not in fp32 or name in integers:
            continue
        inner = [n for body in bodies(node) for n in body.all_nodes()]
        found += [node_name(n) for n in inner if roles.part(n).role.free and takes_type(n)]
        if not inner and takes_type(node):
            found.append(name)
    return tuple(found)


def takes_type(node: ir.Node) -> bool:
    """Return whether a node has a layer that takes a type: it gives a float, and has no bodies."""
    if bodies(node) or is_standard(node, *_UNTYPED):
        return False
    return any(is_float(v) for v in node.outputs)


def layer_types(asked: Iterable[tuple[str, str]], layers: Sequence[NetworkLayer]) -> dict[str, str]:
    """Return the type that each layer is asked to have, by its name.

    Args:
        asked: Names with types ("fp32", "fp16" …), as users and recipes give them. A name is that
            of an ONNX node or of a layer; `*` in it stands for anything.
        layers: Layers of the network.

    Raises:
        CaseError: a name is that of no layer, or a layer is asked to have two types.
    """
    found: dict[str, tuple[str, str]] = {}
    for name, wanted in asked:
        named = [layer.name for layer in layers if _bears(layer, name)]
        if not named:
            known = {word for layer in layers for word in (layer.name, *layer.nodes)}
            close = get_close_matches(name, sorted(known))
            meant = f" Did you mean {' or '.join(close)}?" if close else ""
            raise CaseError(
                f"The constraint {name}:{wanted} matches no layer of the network.",
                f"Give the name of a layer, or of an ONNX node that has one.{meant}",
            )
        for layer in named:
            other, before = found.setdefault(layer, (wanted, name))
            if other != wanted:
                raise CaseError(
                    f"Layer {layer} is constrained to {other} (by {before}) and {wanted} (by "
                    f"{name}).",
                    "Leave one of the two constraints out.",
                )
    return {layer: wanted for layer, (wanted, _) in found.items()}


def _bears(layer: NetworkLayer, name: str) -> bool:
    words = (layer.name, *layer.nodes)
    if name in words:
        return True
    # Only `*` has a meaning: names have brackets of their own.
    pattern = name.replace("[", "[[]").replace("?", "[?]")
    return "*" in name and any(fnmatchcase(word, pattern) for word in words)


def unmatched(network: Network, unconstrained: Mapping[NodeName, str]) -> tuple[str, ...]:
    """Return one sentence per reason why constraints reached no layer.

    Args:
        network: The model that was built.
        unconstrained: Nodes that no constraint reached, with the worker's reason.
    """
    nodes = {node_name(n): n for n in network.model.graph.all_nodes()}
    reasons: dict[str, list[NodeName]] = {}
    for name in (n for n in nodes if n in unconstrained):
        reasons.setdefault(_why(nodes[name], unconstrained[name]), []).append(name)
    return tuple(
        f"No constraint reached {', '.join(names[:_SHOWN])}"
        f"{f' and {len(names) - _SHOWN} more' if len(names) > _SHOWN else ''}: {why}."
        for why, names in reasons.items()
    )


def _why(node: ir.Node, told: str) -> str:
    if all(v is None or v.const_value is not None for v in node.inputs):
        return "it is computed from constants while the model is parsed"
    if is_standard(node, *_PASSED_ON):
        return "it only passes its input through"
    return told


_CHANGED_ERROR = 2.0
_CHANGED_TIME = 0.05
"""From which factor on errors differ, and from which share on latencies. Our choice: below, chance
in the choice of kernels may explain it (builds of one configuration on an H200 differ in time by a
few percent)."""
_EXACT_DB = 100.0
_ALIKE_DB = 6.0
"""What FP16 cannot reach, and what chance in the choice of FP32 kernels explains. One rounding to
FP16 leaves 20 log10(2^11 √3) = 71 dB of values spread evenly; errors that average out add to that,
3 dB for each doubling of what is averaged. FP32 engines of one model differ by less than 1 dB."""


def same_outputs(result: Verdict, full: Verdict) -> bool:
    """Return whether an engine gives the outputs of an FP32 or TF32 engine, by every measure.

    All errors, and mean and deviation of the outputs, have to agree to the last digit, and some
    error has to be above 0: outputs that round alike (classes, masks) prove nothing. An engine with
    FP16 on the way does not do that. One that TensorRT built in FP32 although FP16 was allowed
    often does: three of six mixed engines of a vision transformer (8.6.0, H200).
    """
    told = any(isfinite(o.max_abs) and o.max_abs > 0 for o in full.outputs.values())
    return told and result.samples == full.samples and result.outputs == full.outputs


def as_exact(result: Verdict, fp32: Verdict) -> bool:
    """Return whether an engine is as exact as the FP32 engine, which FP16 on the way prevents.

    That is weaker than `same_outputs`: FP16 where it has no effect on the outputs stays possible.
    """
    errors = [(result.outputs[name], error) for name, error in fp32.outputs.items()]
    exact = all(f.snr_db >= _EXACT_DB and r.snr_db >= f.snr_db - _ALIKE_DB for r, f in errors)
    return exact and any(isfinite(f.snr_db) for _, f in errors)


def shown(result: Verdict, full: Mapping[EngineRung, Verdict]) -> EngineRung | None:
    """Return the rung whose outputs an engine gives although a low format was allowed; else None.

    Whatever of it is in that format has no part in the outputs: they are as exact as those of the
    FP32 engine, or the very same as those of the one with TF32. FP16 has TF32's 11 significant
    bits, and FP32 engines alike in exactness differ in their last digits; so of TF32 nothing but
    the same outputs tells.

    Args:
        result: Its verdict.
        full: Those of the FP32 and the TF32 engine on the same samples, as far as there are any.
    """
    for rung, verdict in full.items():
        if same_outputs(result, verdict) or (rung == "fp32" and as_exact(result, verdict)):
            return rung
    return None


def alike(first: float, second: float) -> bool:
    """Return whether errors (≥ 0, or inf) of two builds differ by no more than chance explains."""
    return first == second or max(first, second) <= _CHANGED_ERROR * min(first, second)


def ab_remark(with_constraint: EngineResult, without: EngineResult) -> str:
    """Return what a build with a constraint and one without it differ in, as one sentence.

    It is the evidence there is where a fused block hides its nodes. Weakly typed builds of one
    configuration differ too, so one pair of builds shows an effect, and never that there is none.
    """
    a, b = with_constraint.verdict, without.verdict
    if a is None or b is None or not a.outputs or not b.outputs:
        which = "with" if a is None or not a.outputs else "without"
        return f"No A/B comparison: the build {which} the constraint has no result."
    first, second = (max(o.max_abs for o in v.outputs.values()) for v in (a, b))
    text = (
        f"With {count(with_constraint.kept, 'node')} constrained to FP32 the largest error is "
        f"{number(first)}, without {number(second)}"
    )
    error = not alike(first, second)
    time = False
    if with_constraint.latency and without.latency:
        own, other = with_constraint.latency.median_ms, without.latency.median_ms
        text += f"; a run takes {number(own)} ms, without {number(other)} ms"
        time = abs(own - other) > _CHANGED_TIME * other
    changed = " and ".join(["error"] * error + ["time"] * time)
    meaning = (
        f"so the constraint changes {changed} in the engine, whatever its inspector shows"
        if changed
        else "so these two builds do not show that the constraint has any effect"
    )
    return f"{text}: {meaning}."
