"""Names that do not identify one node, and unused parts."""

from collections import Counter
from collections.abc import Iterator

import onnx

from halfwise.graph.protobufs import graphs_in, nodes_in
from halfwise.linting.rule import Found, Subject, rule

_NAMES = "https://github.com/onnx/onnx/blob/main/docs/IR.md#names-within-a-graph"
_UNUSED = "https://github.com/onnx/onnx/blob/main/docs/IR.md#graphs"
_OPTIONAL = "https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md"
_OTHERWISE = ("BatchNormalization", "GRU", "LSTM", "RNN")
_CLEAN = "Remove it: polygraphy surgeon sanitize --cleanup does."


@rule("unnamed-node", "info", _NAMES, reads_graph=False)
def unnamed(subject: Subject) -> Iterator[Found]:
    """TensorRT invents names for unnamed nodes, and nothing maps them back to the model.

    Constants do not count.
    """
    for place, node in subject.model.nodes:
        if not node.name and node.op_type != "Constant":
            called = f"node_of_{next(iter(node.output), '')}"
            yield Found(
                f"it has no name; TensorRT calls it {called}",
                "Export with names, or name it: constraints and reports refer to nodes by name.",
                place,
            )


@rule("duplicate-name", "warning", _NAMES, reads_graph=False)
def duplicates(subject: Subject) -> Iterator[Found]:
    """TensorRT numbers nodes that share a name, so a constraint reaches only the first."""
    counts = Counter(node.name for _, node in subject.model.nodes if node.name)
    for place, node in subject.model.nodes:
        if (number := counts.pop(node.name, 0)) > 1:
            yield Found(
                f"{number} nodes are called {node.name}; a constraint with that name applies to "
                "the first only",
                "Give every node a unique name.",
                place,
            )


@rule("unused-node", "info", _UNUSED, reads_graph=False)
def unused_nodes(subject: Subject) -> Iterator[Found]:
    """A node whose outputs nothing reads, left over by an export or an edit."""
    used = _used(subject.model.proto.graph)
    for place, node in subject.model.nodes:
        if node.output and not used & set(filter(None, node.output)):
            yield Found(f"nothing reads {', '.join(filter(None, node.output))}", _CLEAN, place)


@rule("unused-output", "info", _OPTIONAL, reads_graph=False)
def unused_outputs(subject: Subject) -> Iterator[Found]:
    """A named optional output is computed, and TensorRT's parser supports few of them.

    Outputs of recurrent operators are excluded: exporters name them all, and they cost nothing. So
    are those of a BatchNormalization: they come with training mode, which has its own rule.
    """
    used = _used(subject.model.proto.graph)
    for place, node in subject.model.nodes:
        names = [name for name in _optional(node, subject.opset) if name not in used]
        if names and used & set(filter(None, node.output)):
            yield Found(
                f"nothing reads its optional output {', '.join(names)}",
                'Remove it, or name it "".',
                place,
            )


def _optional(node: onnx.NodeProto, opset: int) -> list[str]:
    """Return the names of a node's optional outputs that it names."""
    if node.domain not in ("", "ai.onnx") or node.op_type in _OTHERWISE:
        return []
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:
        return []
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    pairs = zip(schema.outputs, node.output, strict=False)
    return [name for output, name in pairs if name and output.option == optional]


@rule("unused-constant", "info", _UNUSED, reads_graph=False)
def unused_constants(subject: Subject) -> Iterator[Found]:
    """A weight that nothing reads: wasted space, and a sign of an incomplete fold or edit."""
    graph = subject.model.proto.graph
    used = _used(graph)
    for body in graphs_in(graph):
        for tensor in body.initializer:
            if tensor.name not in used:
                shape = "×".join(map(str, tensor.dims)) or "one number"
                yield Found(
                    f"nothing reads the constant {tensor.name} ({shape})", _CLEAN, None, tensor.name
                )


@rule("unused-input", "info", _UNUSED, reads_graph=False)
def unused_inputs(subject: Subject) -> Iterator[Found]:
    """A graph input that nothing reads: a builder may drop it, and then refuse data for it."""
    graph = subject.model.proto.graph
    used = _used(graph)
    constants = {tensor.name for tensor in graph.initializer}
    for info in graph.input:
        if info.name not in used and info.name not in constants:
            yield Found(
                f"nothing reads the input {info.name}",
                "Remove it, or find the node that should read it.",
                None,
                info.name,
            )


def _used(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all values that a node reads, or that a graph or body outputs."""
    read = {name for _, node in nodes_in(graph) for name in node.input}
    return read | {info.name for body in graphs_in(graph) for info in body.output}
