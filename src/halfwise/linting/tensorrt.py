"""What a version of TensorRT cannot parse."""

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from halfwise.graph.anchors import folded
from halfwise.graph.model import graphs_of, is_standard
from halfwise.graph.taken import features, taken, why_refused
from halfwise.linting.rule import Found, Subject, name_of, rule
from halfwise.records import Severity
from halfwise.tensorrt.versions import (
    ASKED,
    AT_THE_LATEST,
    OPERATORS,
    SINCE,
    has,
    highest_opset,
    lowest_opset,
    text_of,
)


@rule("opset-unparsed", "warning", OPERATORS, parses=True)
def opset(subject: Subject) -> Iterator[Found]:
    """A parser refuses, or misreads, operator sets newer than itself.

    Checked with --trt-version only. A warning: operators that did not change since are built.
    """
    current, version = subject.opset, text_of(subject.version)
    first, last = lowest_opset(subject.version), highest_opset(subject.version)
    if subject.version >= ASKED:  # how new an operator may be, its own rules say
        first, last = taken().first_opset, current
    if current < first:
        fix = f"Export with opset {first} or later."
        yield Found(f"opset {current}; TensorRT {version} reads {first} and later", fix)
    elif current > last:
        fix = f"Export with opset {last}, or build with a later TensorRT."
        yield Found(f"opset {current}; TensorRT {version} is known to read up to {last}", fix)


@rule("operator-unparsed", "error", OPERATORS, parses=True)
def operators(subject: Subject) -> Iterator[Found]:
    """An operator that this version's parser lacks makes the build fail.

    Checked with --trt-version only.
    """
    version = text_of(subject.version)
    for node in filter(is_standard, subject.nodes()):
        op = node.op_type
        if op in SINCE and subject.version < SINCE[op]:
            since = text_of(SINCE[op])
            fix = f"Build with TensorRT {since} or later, export it decomposed, or add a plugin."
            yield Found(f"TensorRT {version} has no {op}; {since} has", fix, node)
        elif op in AT_THE_LATEST and subject.version < AT_THE_LATEST[op]:
            since = text_of(AT_THE_LATEST[op])
            message = f"{op} is in TensorRT {since}; whether it is in {version} is not known"
            yield Found(message, "Parse it, and read the log.", node, severity="info")
        elif op in taken().never and op not in SINCE:
            message = f"no TensorRT up to {text_of(ASKED)} has {op}"
            yield Found(message, "Rewrite it in other operators, or add a plugin.", node)
        elif subject.ahead and op in taken().unknown:
            message = f"{op} cannot be built ahead of time, on a machine without a GPU"
            fix = "Try to build where a GPU is (not seen to work), or leave it out of the engine."
            yield Found(message, fix, node, severity="warning")
        elif not onnx.defs.has(op):
            message = f"{op} is not an ONNX operator: TensorRT {version} looks for a plugin"
            yield Found(message, "Load the plugin in the builder.", node, severity="warning")


@rule("form-unparsed", "error", OPERATORS, parses=True)
def forms(subject: Subject) -> Iterator[Found]:
    """The parser or the builder has an operator, but refuses some forms of it.

    For example, axes that are known only at run time, a second output, a type. Checked with
    --trt-version only. The forms are what the builder of TensorRT for RTX, which is like TensorRT
    11, answered; whether older versions take them is not known. A warning where only similar forms
    were refused. Operators that quantise have rules of their own.
    """
    computed: set[ir.Node] = set()
    for node in subject.nodes():
        if is_standard(node, "If") and (shapes := _unlike(node)):
            message = f"its branches give {shapes[0]} and {shapes[1]}, which TensorRT refuses"
            fix = "Export so that both branches give one shape, or that the exporter decides"
            fix += _FIXED if _by_shape(node, subject, "input 0") else "."
            yield Found(
                message, fix, node, severity="warning" if subject.version >= ASKED else None
            )
        if not is_standard(node) or why_refused(node, subject.opset, computed) is None:
            continue
        used = features(node, subject.opset, computed=computed)
        refused = taken().why(node.op_type, used)
        assert refused is not None
        message = f"refuses {node.op_type} {refused.words(node.op_type)}"
        remedy = refused.remedy(node.op_type)
        remedy += _FIXED if _by_shape(node, subject, *refused.when) else "."
        yield _refusal(subject, message, remedy, node, refused.certain(used))


@rule("product-folded", "warning", OPERATORS, parses=True)
def products(subject: Subject) -> Iterator[Found]:
    """With strong typing, a product in FP32 between FP16 nodes becomes a low kernel.

    Its weights are rounded, without a word of the builder: TensorRT for RTX 1.4 to 1.7 do so, which
    have no other typing. It stays FP32 where an activation behind it is FP32 too, as in the files
    that halfwise writes. Checked with --trt-version from 10.0 on only.
    """
    if has("strong typing by default", subject.version):
        for graph in graphs_of(subject.network.model):
            for product in folded(graph):
                message = f"{product.node.op_type} is in FP32 between {product.low.name} nodes"
                yield Found(
                    f"{message}: TensorRT for RTX computes it in that type",
                    "Keep the activation behind it in FP32 too.",
                    product.node,
                )


_FIXED = "; fixed shapes of the inputs decide it: halfwise fix writes such a model."


def _by_shape(node: ir.Node, subject: Subject, *inputs: str) -> bool:
    """Return whether any of these features is an input that follows from shapes alone."""
    used = features(node, subject.opset)
    return any(used.get(name) == "shape" for name in inputs)


def _unlike(node: ir.Node) -> tuple[str, str] | None:
    """Return two shapes that the branches of an If give for one output; None if all are alike."""
    names = ("then_branch", "else_branch")
    ends = [node.attributes[name].as_graph().outputs for name in names]
    for one, other in zip(*ends, strict=True):
        shapes = one.shape, other.shape
        if shapes[0] is None or shapes[1] is None:
            continue
        sizes = zip(shapes[0], shapes[1], strict=False)
        known = ((a, b) for a, b in sizes if isinstance(a, int) and isinstance(b, int))
        if shapes[0].rank() != shapes[1].rank() or any(a != b for a, b in known):
            return f"{shapes[0]}", f"{shapes[1]}"
    return None


@rule("type-unparsed", "error", OPERATORS, parses=True)
def types(subject: Subject) -> Iterator[Found]:
    """Some element types are refused for every tensor.

    Checked with --trt-version only. See form-unparsed for where the types are from.
    """
    # Outputs first: they have a node, which an unused input lacks.
    values = [output for node in subject.nodes() for output in node.outputs]
    values += [*subject.network.graph.inputs, *subject.network.graph.initializers.values()]
    seen = set()
    for value in values:
        kind = _kind(value)
        if kind in taken().types and kind not in seen:
            seen.add(kind)
            users = [value.producer(), *(use.node for use in value.uses())]
            node = next((user for user in users if user is not None), None)
            message = f"has no tensors of type {kind}: {name_of(value)}"
            yield _refusal(subject, message, "use another type.", node, True, name_of(value))


def _kind(value: ir.Value) -> str:
    """Return the element type of a tensor, "sequence" or "optional"; "" if it is not known."""
    if isinstance(value.type, ir.SequenceType):
        return "sequence"
    if isinstance(value.type, ir.OptionalType):
        return "optional"
    return value.dtype.name.lower() if value.dtype is not None else ""


def _refusal(
    subject: Subject,
    message: str,
    fix: str,
    node: ir.Node | None,
    certain: bool,
    tensor: str | None = None,
) -> Found:
    """Return a finding that the builder's answers gave."""
    fix = fix[0].upper() + fix[1:]
    if subject.version >= ASKED:
        severity: Severity | None = None if certain else "warning"
        return Found(f"TensorRT {message}", fix, node, tensor, severity)
    message = f"TensorRT {text_of(ASKED)} {message}"
    message += f"; whether {text_of(subject.version)} does is not known"
    return Found(message, fix, node, tensor, "info")


@rule("operator-custom", "warning", OPERATORS, parses=True)
def custom(subject: Subject) -> Iterator[Found]:
    """For operators outside ONNX's own domain, the parser looks for a plugin.

    Checked with --trt-version only. Functions defined in the model do not count.
    """
    for node in subject.nodes():
        if not is_standard(node):
            yield Found(
                f"{node.op_type} is in the domain {node.domain}: TensorRT "
                f"{text_of(subject.version)} looks for a plugin",
                "Load the plugin in the builder, or export without such operators.",
                node,
            )
