"""What each node can do about precision: which of its slots may be low, and whether it computes.

Read from the ONNX operator schemas at the model's opset, so a new operator needs no code here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import onnx
import onnx_ir as ir

from halfwise.errors import CaseError
from halfwise.graph.model import Network, node_name
from halfwise.records import NodeName

DATA_MOVEMENT = frozenset(
    (
        *("Cast", "CastLike", "Compress", "Concat", "ConstantOfShape", "DepthToSpace", "Dropout"),
        *("Expand", "EyeLike", "Flatten", "Gather", "GatherElements", "GatherND", "Identity"),
        *("Pad", "Reshape", "ReverseSequence", "Scatter", "ScatterElements", "ScatterND", "Slice"),
        *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where"),
    )
)
"""Operators whose float outputs are copies of input or constant elements."""

_FP32_ONLY = {
    "BitCast": "reinterprets bits",
    "Constant": "is a constant that the model gives out",
    "MeanVarianceNormalization": "its ONNX definition adds an FP32 constant",
    **dict.fromkeys(
        ["BlackmanWindow", "EyeLike", "HammingWindow", "HannWindow", "MelWeightMatrix"],
        "makes its own values, in FP32 where ONNX Runtime computes it",
    ),
}
_BELOW_A_BYTE = frozenset(t for t in ir.DataType if t.name.endswith(("INT2", "INT4", "4E2M1")))
"""Types that ONNX Runtime's If cannot give out, so that no emulation could switch the node."""
_FIRST_BF16_OPSET = 13
_TYPE_BLIND = frozenset(("Shape", "Size"))
RANDOM = frozenset(("Bernoulli", "Multinomial"))
RANDOM_PREFIX = ("RandomNormal", "RandomUniform")


class Role(Enum):
    """How a node takes part in the choice of precision."""

    COMPUTE = "computes; counted when kept"
    MOVEMENT = "only moves data; free when kept between kept nodes"
    PINNED = "must be FP32"
    BLIND = "does not touch float values"


@dataclass(frozen=True)
class NodeRole:
    """Role and precision slots of one node.

    Attributes:
        role: The role.
        inputs: Per input slot, whether it takes the low format when the node is low.
        outputs: Per output slot, whether it has the low format when the node is low.
        reason: For pinned nodes, why; empty otherwise.
    """

    role: Role
    inputs: tuple[bool, ...] = ()
    outputs: tuple[bool, ...] = ()
    reason: str = ""

    @property
    def free(self) -> bool:
        """Whether the node may be low."""
        return self.role in (Role.COMPUTE, Role.MOVEMENT)


Roles = Mapping[NodeName, NodeRole]


def is_float(value: ir.Value | None) -> bool:
    """Return whether `value` is an FP32 tensor (sequences and optionals are not)."""
    return (
        value is not None
        and isinstance(value.type, ir.TensorType)
        and (value.dtype == ir.DataType.FLOAT)
    )


def roles_of(network: Network, low: ir.DataType = ir.DataType.FLOAT16) -> Roles:
    """Return the role of every node of the main graph.

    Nodes inside the bodies of If, Loop and Scan are FP32 and belong to their pinned node.

    Raises:
        CaseError: `low` is BF16, and the opset has no Cast to it.
    """
    if low == ir.DataType.BFLOAT16 and network.opset < _FIRST_BF16_OPSET:
        raise CaseError(
            f"BF16 needs opset {_FIRST_BF16_OPSET} or later; the model has {network.opset}.",
            "Raise the model's opset, for example with onnx.version_converter.convert_version.",
        )
    return {node_name(n): _role(n, network.model.opset_imports, low) for n in network.nodes()}


def _role(node: ir.Node, opsets: Mapping[str, int], low: ir.DataType) -> NodeRole:
    if reason := _why_pinned(node):
        return NodeRole(Role.PINNED, reason=reason)
    floats_in = [is_float(v) for v in node.inputs]
    floats_out = [is_float(v) for v in node.outputs]
    if node.op_type in _TYPE_BLIND or not any(floats_in + floats_out):
        return NodeRole(Role.BLIND)
    schema = onnx.defs.get_schema(node.op_type, opsets.get("", 1), "")
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    low_type = f"tensor({low.name.lower()})"

    def may_be_low(parameters: list[onnx.defs.OpSchema.FormalParameter], index: int) -> bool:
        parameter = parameters[min(index, len(parameters) - 1)]
        return low_type in allowed.get(parameter.type_str, ())

    inputs = tuple(f and may_be_low(list(schema.inputs), i) for i, f in enumerate(floats_in))
    outputs = tuple(f and may_be_low(list(schema.outputs), i) for i, f in enumerate(floats_out))
    if not any(inputs + outputs):
        return NodeRole(
            Role.PINNED,
            reason=f"{node.op_type} takes no {low.name.lower()} at opset {opsets.get('', 1)}",
        )
    moves = node.op_type in DATA_MOVEMENT and any(floats_out) and not _reduces(node)
    return NodeRole(Role.MOVEMENT if moves else Role.COMPUTE, inputs, outputs)


def _why_pinned(node: ir.Node) -> str:
    values = (*node.inputs, *node.outputs)
    if _has_body(node):
        return "control flow: its body runs in FP32"
    if any(not _is_tensor(v) for v in values):
        return "takes or gives a sequence or an optional"
    if node.domain not in ("", "ai.onnx") and any(is_float(v) for v in values):
        return f"operator of the custom domain {node.domain!r}"
    if node.op_type in RANDOM or node.op_type.startswith(RANDOM_PREFIX):
        return "draws random numbers"
    if not any(is_float(v) for v in values):
        return ""
    packed = "gives elements of less than a byte, which ONNX Runtime cannot switch"
    gives_packed = any(v.dtype in _BELOW_A_BYTE for v in node.outputs)
    return _FP32_ONLY.get(node.op_type, packed if gives_packed else "")


def _has_body(node: ir.Node) -> bool:
    return any(
        a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        for a in node.attributes.values()
    )


def _is_tensor(value: ir.Value | None) -> bool:
    return value is None or not value.name or isinstance(value.type, ir.TensorType)


def _reduces(node: ir.Node) -> bool:
    reduction = node.attributes.get("reduction")
    return reduction is not None and reduction.as_string() != "none"
