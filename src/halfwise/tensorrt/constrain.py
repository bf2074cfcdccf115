"""Constraints for weak typing: which nodes to pin to FP32.

TensorRT maps layers to ONNX nodes by their metadata, so a constraint is the name of a node. Nodes
that move data between kept nodes are constrained too, since a Shuffle layer might round. If a fused
block hides its precision, the difference between two builds is the only evidence.
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
"""Operators whose layers have their own type: constraining a Cast ends the build with an
assertion in castLayer.cpp (NVIDIA/TensorRT#3618)."""
_PASSED_ON = ("Dropout", "Identity")
_SHOWN = 5


def constraints(network: Network, roles: Roles, fp32: Assignment) -> tuple[NodeName, ...]:
    """Return the nodes to constrain to FP32 in weak typing, in graph order.

    Casts, constants, and nodes that give only integers, Booleans or shapes take no constraint;
    neither do nodes that may be computed in INT8, which a constraint would forbid. If, Loop and
    Scan have no layers that compute: the nodes in their bodies are constrained instead.

    Args:
        network: The model that the builder reads, with the same names.
        roles: Roles of its nodes.
        fp32: All FP32 nodes of the main graph, including those that move data.
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
    """Return whether a node's layer takes a type: it gives a float and has no bodies."""
    if bodies(node) or is_standard(node, *_UNTYPED):
        return False
    return any(is_float(v) for v in node.outputs)


def layer_types(asked: Iterable[tuple[str, str]], layers: Sequence[NetworkLayer]) -> dict[str, str]:
    """Return the type requested for each layer, by its name.

    Args:
        asked: Names with types ("fp32", "fp16" …), as users and recipes give them. A name is an
            ONNX node's or a layer's; `*` in it matches anything.
        layers: Layers of the network.

    Raises:
        CaseError: a name matches no layer, or two types are requested for one layer.
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
    # Only `*` is special: names may contain brackets.
    pattern = name.replace("[", "[[]").replace("?", "[?]")
    return "*" in name and any(fnmatchcase(word, pattern) for word in words)


def unmatched(network: Network, unconstrained: Mapping[NodeName, str]) -> tuple[str, ...]:
    """Return one sentence per reason why constraints reached no layer.

    Args:
        network: The model that was built.
        unconstrained: Worker's reasons, by nodes that no constraint reached.
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
"""Errors differ beyond this factor, latencies beyond this share. Our choice: chance in the choice
of kernels may explain smaller differences (builds of one configuration on an H200 differ in time by
a few percent)."""
_EXACT_DB = 100.0
_ALIKE_DB = 6.0
"""An SNR that FP16 cannot reach, and a difference that chance in the choice of FP32 kernels can
explain. One rounding to FP16 leaves 20 log10(2^11 √3) = 71 dB for evenly spread values; averaging
adds 3 dB per doubling of its length. FP32 engines of one model differ by less than 1 dB."""


def same_outputs(result: Verdict, full: Verdict) -> bool:
    """Return whether an engine's outputs match those of an FP32 or TF32 engine in every measure.

    All errors and the outputs' means and deviations must agree to the last digit, and some
    error must be above 0: outputs that round alike (classes, masks) prove nothing. An engine with
    FP16 on the way does not pass. One that TensorRT built in FP32 although FP16 was allowed
    often does: three of six mixed engines of a vision transformer (8.6.0, H200).
    """
    told = any(isfinite(o.max_abs) and o.max_abs > 0 for o in full.outputs.values())
    return told and result.samples == full.samples and result.outputs == full.outputs


def as_exact(result: Verdict, fp32: Verdict) -> bool:
    """Return whether an engine is as accurate as the FP32 engine, which FP16 on the way prevents.

    This is weaker than `same_outputs`: FP16 that does not affect the outputs remains possible.
    """
    errors = [(result.outputs[name], error) for name, error in fp32.outputs.items()]
    exact = all(f.snr_db >= _EXACT_DB and r.snr_db >= f.snr_db - _ALIKE_DB for r, f in errors)
    return exact and any(isfinite(f.snr_db) for _, f in errors)


def shown(result: Verdict, full: Mapping[EngineRung, Verdict]) -> EngineRung | None:
    """Return the rung whose outputs an engine gives although a low format was allowed; else None.

    Layers in that format do not affect the outputs: they are as accurate as the FP32 engine's, or
    identical to the TF32 engine's. TF32 takes identical outputs, because FP16 has the same 11
    significant bits; for FP32 accuracy is enough, because equally accurate FP32 engines differ in
    their last digits.

    Args:
        result: The engine's verdict.
        full: Available verdicts of the FP32 and TF32 engines on the same samples.
    """
    for rung, verdict in full.items():
        if same_outputs(result, verdict) or (rung == "fp32" and as_exact(result, verdict)):
            return rung
    return None


def alike(first: float, second: float) -> bool:
    """Return whether chance may explain the difference of two builds' errors (≥ 0, or inf)."""
    return first == second or max(first, second) <= _CHANGED_ERROR * min(first, second)


def ab_remark(with_constraint: EngineResult, without: EngineResult) -> str:
    """Return a sentence comparing a build with a constraint to one without it.

    This is the only evidence if a fused block hides its nodes. Weakly typed builds of one
    configuration differ too, so a pair of builds can show an effect, but never its absence.
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
        f"so the constraint changes the engine's {changed}, whatever its inspector shows"
        if changed
        else "so these two builds do not show that the constraint has any effect"
    )
    return f"{text}: {meaning}."
