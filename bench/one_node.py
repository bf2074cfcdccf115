"""ONNX's node tests with one node, and how halfwise would write them in FP16 and BF16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
