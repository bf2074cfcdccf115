"""Models with one node: ONNX's node tests, forms of an operator, and both in FP16 and BF16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bench.onnx_cases import cases, first_inputs, inputs_of
from halfwise.errors import HalfwiseError
from halfwise.formats import Format
from halfwise.graph.casts import low_type, rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.graph.taken import Feature, features

NODE = "node"
INVALID = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, TypeError, ValueError)

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Model:
    """A model with one node that is asked about, and values of the inputs known at run time."""

    proto: onnx.ModelProto
    given: Mapping[str, Array]

    @property
    def node(self) -> onnx.NodeProto:
        """The node."""
        found: onnx.NodeProto = next(n for n in self.proto.graph.node if n.name == NODE)
        return found

    @property
    def opset(self) -> int:
        """Its opset."""
        return int(next(o.version for o in self.proto.opset_import if o.domain in ("", "ai.onnx")))

    def copy(self) -> Model:
        """Return a copy that may be changed."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        return Model(proto, dict(self.given))


def described(model: Model) -> Mapping[str, Feature]:
    """Return the features of the node."""
    graph = ir.serde.deserialize_model(model.proto).graph
    return features(next(n for n in graph if n.name == NODE), model.opset)


def models() -> Iterator[Model]:
    """Yield the node tests with one node of ONNX's own domain and no bodies."""
    for case in cases():
        if case.model is None or len(case.model.graph.node) != 1 or case.model.functions:
            continue
        proto = onnx.ModelProto()
        proto.CopyFrom(case.model)
        node = proto.graph.node[0]
        bodies = any(a.type in (a.GRAPH, a.GRAPHS) for a in node.attribute)
        if node.domain or bodies:
            continue
        node.name = NODE
        names = [i.name for i in inputs_of(proto)]
        values: Sequence[Any] = first_inputs(case)
        given = {
            n: numpy_helper.to_array(v) if isinstance(v, TensorProto) else v
            for n, v in zip(names, values, strict=False)
        }
        yield Model(proto, given)


Source = Literal["input", "constant", "computed", "shape"]
Use = Literal["used", "unread", ""]
UNKNOWN = "?"


@dataclass(frozen=True, eq=False)
class Operand:
    """An input of a node: its value, and where it comes from (see `features`)."""

    value: Array
    place: Source = "input"

    @property
    def dtype(self) -> int:
        """Its element type."""
        return int(helper.np_dtype_to_tensor_dtype(self.value.dtype))


@dataclass(frozen=True, eq=False)
class Form:
    """A node with all on which it may depend whether a builder takes it.

    Attributes:
        op: The operator.
        opset: The opset.
        operands: Its inputs; None for one that is left out.
        attributes: Its attributes, as `helper.make_attribute` takes them.
        outputs: Whether each output is an output of the graph, named but unread, or has no name.
        ranks: Per output, the rank if ONNX cannot infer it.
    """

    op: str
    opset: int
    operands: tuple[Operand | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[Use, ...] = ("used",)
    ranks: tuple[int, ...] = ()

    @property
    def schema(self) -> onnx.defs.OpSchema:
        """What ONNX says of the operator."""
        return onnx.defs.get_schema(self.op, self.opset, "")

    def model(self) -> Model | None:
        """Return a model with this node; None if it is invalid."""
        graph, given = onnx.GraphProto(name="form"), dict[str, Array]()
        for k, operand in enumerate(self.operands):
            if operand is not None:
                _feed(graph, given, f"x{k}", operand)
        node = helper.make_node(
            self.op,
            ["" if operand is None else f"x{k}" for k, operand in enumerate(self.operands)],
            [use and f"y{k}" for k, use in enumerate(self.outputs)],
            NODE,
        )
        for name, value in self.attributes.items():
            node.attribute.append(helper.make_attribute(name, value))
        graph.node.append(node)
        for k, use in enumerate(self.outputs):
            if use == "used":
                dims = [UNKNOWN] * self.ranks[k] if k < len(self.ranks) else None
                graph.output.append(helper.make_tensor_value_info(f"y{k}", 0, dims))
        imports = [helper.make_opsetid("", self.opset)]
        return sound(Model(helper.make_model(graph, opset_imports=imports, ir_version=11), given))


def _feed(graph: onnx.GraphProto, given: dict[str, Array], name: str, operand: Operand) -> None:
    """Add what an operand comes from."""
    place, value = operand.place, operand.value
    if place in ("computed", "shape"):
        zero = numpy_helper.from_array(np.zeros((), value.dtype), f"{name} zero")
        graph.node.append(helper.make_node("Add", [f"{name} raw", f"{name} zero"], [name]))
        if place == "shape":
            size, ends = f"{name} size", f"{name} zero"
            graph.node.insert(0, helper.make_node("Size", ["x0"], [size]))
            graph.node.insert(1, helper.make_node("Sub", [size, size], [ends]))
        else:
            graph.initializer.append(zero)
        name = f"{name} raw"
    if place in ("constant", "shape"):
        graph.initializer.append(numpy_helper.from_array(value, name))
    else:
        graph.input.append(helper.make_tensor_value_info(name, operand.dtype, value.shape))
        given[name] = value


def form_of(model: Model) -> Form | None:
    """Return the form of a node test; None if not all of its inputs are tensors of numbers."""
    stored = {i.name: numpy_helper.to_array(i) for i in model.proto.graph.initializer}
    operands: list[Operand | None] = []
    for name in model.node.input:
        value = stored.get(name, model.given.get(name))
        if not name:
            operands.append(None)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            operands.append(Operand(value, "constant" if name in stored else "input"))
        else:
            return None
    return Form(
        model.node.op_type,
        model.opset,
        tuple(operands),
        {a.name: helper.get_attribute_value(a) for a in model.node.attribute},
        tuple("used" if name else "" for name in model.node.output),
        tuple(len(o.type.tensor_type.shape.dim) for o in model.proto.graph.output),
    )


def sound(model: Model) -> Model | None:
    """Return a model with the types of its outputs inferred; None if it is invalid.

    A shape that cannot be inferred is left as it was.
    """
    proto, shapes = model.proto, {}
    del proto.graph.value_info[:]
    for end in proto.graph.output:
        shapes[end.name] = onnx.TensorShapeProto()
        shapes[end.name].CopyFrom(end.type.tensor_type.shape)
        end.ClearField("type")
    try:
        found = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
        for end in found.graph.output:
            kind = end.type.tensor_type
            if kind.elem_type and not kind.HasField("shape"):
                kind.shape.CopyFrom(shapes[end.name])
        onnx.checker.check_model(found)
    except INVALID:
        return None
    return Model(found, model.given)


def later(model: Model) -> Iterator[Model]:
    """Yield a model at the opsets that define its operator anew, where it is valid."""
    op, newest = model.node.op_type, onnx.defs.onnx_opset_version()
    since = {onnx.defs.get_schema(op, o, "").since_version for o in range(model.opset, newest + 1)}
    for opset in sorted(o for o in since if o > model.opset):
        other = model.copy()
        del other.proto.opset_import[:]
        other.proto.opset_import.append(helper.make_opsetid("", opset))
        if (made := sound(other)) is not None:
            yield made


def lowered(model: Model, fmt: Format, *, by_schema: bool = False) -> Model | None:
    """Return a model as halfwise writes it with all low; None if it cannot be.

    Args:
        model: The model.
        fmt: The low format.
        by_schema: As of `roles_of`; then None also if the node stays FP32.
    """
    try:
        network = network_from_proto(model.proto)
        roles = roles_of(network, low_type(fmt), by_schema=by_schema)
        if by_schema and not any(role.free for role in roles.values()):
            return None
        mixed = rewrite(network, roles, frozenset(), fmt).model
    except HalfwiseError:
        return None
    return Model(ir.serde.serialize_model(mixed), model.given)
