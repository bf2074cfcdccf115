"""Precision roles of nodes: which slots may be low, and whether the node computes.

Roles come from the operator schemas of ONNX and ONNX Runtime at the model's opsets and from what
TensorRT builds (`taken.json`), so a new operator needs no code here.

A body of an If, Loop or Scan is a graph like the main graph: what enters and leaves it is FP32, and
its nodes have roles of their own.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from enum import Enum

import onnx_ir as ir
from msgspec import Struct

from halfwise.errors import CaseError
from halfwise.graph.model import QUANTISED, Network, bodies, is_standard, node_name, tensor_name
from halfwise.graph.quantised import quantised_nodes
from halfwise.graph.taken import why_not_low
from halfwise.graph.types import Parameter, signature_of
from halfwise.graph.weights import LOW_TYPES
from halfwise.records import NodeName, TensorName, replace

DATA_MOVEMENT = frozenset(
    (
        *("Cast", "Compress", "Concat", "ConstantOfShape", "DepthToSpace", "Dropout"),
        *("Expand", "EyeLike", "Flatten", "Gather", "GatherElements", "GatherND", "Identity"),
        *("Pad", "Reshape", "ReverseSequence", "Scatter", "ScatterElements", "ScatterND", "Slice"),
        *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where"),
    )
)
"""Operators whose float outputs are copies of input or constant elements."""

_LOWER = "--lower NODE if your runtime has it in "
_FP32_ONLY = {
    "BitCast": "reinterprets bits",
    "Constant": "is a constant output of the model",
    "MeanVarianceNormalization": "its ONNX definition adds an FP32 constant",
    **dict.fromkeys(
        ["BlackmanWindow", "EyeLike", "HammingWindow", "HannWindow", "MelWeightMatrix"],
        "generates its values, in FP32 in ONNX Runtime",
    ),
}
_INT8 = "reads data and weights through Q and DQ: INT8 where a backend fuses them, in FP32 here"
"""Why quantised nodes are pinned. Sums of up to about 1,000 products of INT8 numbers are exact in
FP32, but not in FP16."""
_BELOW_A_BYTE = frozenset(t for t in ir.DataType if t.name.endswith(("INT2", "INT4", "4E2M1")))
"""Types that ONNX Runtime's If cannot output, so the emulation cannot switch the node."""
_STASHED = {"LayerNormalization": (1, 2)}
"""Outputs whose type is set by `stash_type`, whatever the input's type; FP32 here."""
FIRST_BF16_OPSET = 13
"""First opset whose Cast supports BF16."""
TYPE_BLIND = frozenset(("Shape", "Size"))
RANDOM = frozenset(("Bernoulli", "Multinomial"))
RANDOM_PREFIX = ("RandomNormal", "RandomUniform")


class Role(Enum):
    """How a node takes part in the choice of precision."""

    COMPUTE = "computes; counted when kept"
    MOVEMENT = "only moves data; free when kept between kept nodes"
    PINNED = "must be FP32"
    BLIND = "does not touch float values"


class NodeRole(Struct, frozen=True):
    """Role and precision slots of one node.

    Attributes:
        role: The role.
        inputs: Per input slot, whether it takes the low format when the node is low; for a pinned
            node, whether its operator could take it.
        outputs: Per output slot, the same.
        reason: Why a node is pinned; empty for others, and for one that only holds bodies.
    """

    role: Role
    inputs: tuple[bool, ...] = ()
    outputs: tuple[bool, ...] = ()
    reason: str = ""

    @property
    def free(self) -> bool:
        """Whether the node may be low."""
        return self.role in (Role.COMPUTE, Role.MOVEMENT)


class Roles(Mapping[NodeName, NodeRole]):
    """The role of every node, those in bodies included, by name.

    Attributes:
        computing: The compute nodes.
    """

    def __init__(self, roles: Mapping[NodeName, NodeRole]) -> None:
        """Store the roles, in graph order."""
        self._roles = roles
        self.computing = frozenset(n for n, role in roles.items() if role.role is Role.COMPUTE)

    def __getitem__(self, name: NodeName) -> NodeRole:
        return self._roles[name]

    def __iter__(self) -> Iterator[NodeName]:
        return iter(self._roles)

    def __len__(self) -> int:
        return len(self._roles)

    def of(self, node: ir.Node) -> NodeRole:
        """Return the role of a node of the network, or of a copy of it."""
        return self._roles[node_name(node)]

    def is_low(self, node: ir.Node, fp32: Container[NodeName] = ()) -> bool:
        """Return whether a node is low if the nodes `fp32` are FP32."""
        return self.of(node).free and node_name(node) not in fp32

    def reads_low(self, node: ir.Node, slot: int, fp32: Container[NodeName] = ()) -> bool:
        """Return whether a node is then low and takes its input `slot` in the low format."""
        return self.is_low(node, fp32) and self.of(node).inputs[slot]


def is_float(value: ir.Value | None) -> bool:
    """Return whether `value` is an FP32 tensor (sequences and optionals are not)."""
    return (
        value is not None
        and isinstance(value.type, ir.TensorType)
        and (value.dtype == ir.DataType.FLOAT)
    )


def float_io(network: Network) -> frozenset[TensorName]:
    """Return the names of the float graph inputs and outputs.

    An input that is itself an output is left out: no node computes it, so the emulation cannot
    round an output that has the input's name.
    """
    inputs, outputs = set(network.graph.inputs), set(network.graph.outputs)
    return frozenset(tensor_name(v) for v in inputs ^ outputs if is_float(v))


def roles_of(
    network: Network,
    low: ir.DataType = ir.DataType.FLOAT16,
    *,
    opset: int | None = None,
    lowered: Container[NodeName] = (),
    by_schema: bool = False,
) -> Roles:
    """Return the role of every node.

    Args:
        network: The model.
        low: The low type.
        opset: Version of the default operator set in which to look up operators; None for the
            model's.
        lowered: Nodes that may be low though nothing is known of their operators; others of these
            are pinned.
        by_schema: Whether a node may be low wherever ONNX's schema allows it, also where TensorRT
            does not build it.

    Raises:
        CaseError: `low` is BF16, and the opset has no Cast to BF16.
    """
    opset = opset or network.opset
    if low == ir.DataType.BFLOAT16 and opset < FIRST_BF16_OPSET:
        raise CaseError(
            f"BF16 needs opset {FIRST_BF16_OPSET} or later; the model has {network.opset}.",
            "Raise the model's opset, for example with onnx.version_converter.convert_version.",
        )
    opsets = {**network.model.opset_imports, "": opset}
    reading = _Reading(low, opsets, lowered, by_schema=by_schema)
    roles: dict[NodeName, NodeRole] = {}
    for node in network.nodes():
        reading.add(node, roles)
    for name in quantised_nodes(network):
        roles[name] = replace(roles[name], role=Role.PINNED, reason=_INT8)
    return Roles(roles)


class _Reading(Struct, frozen=True):
    """What decides the roles of nodes; see `roles_of`."""

    low: ir.DataType
    opsets: Mapping[str, int]
    lowered: Container[NodeName]
    by_schema: bool
    computed: set[ir.Node] = set()

    def add(self, node: ir.Node, roles: dict[NodeName, NodeRole]) -> None:
        """Add the roles of a node and of those in its bodies to `roles`."""
        role = roles[node_name(node)] = _role(node, self)
        for inner in (n for body in bodies(node) for n in body):
            self.add(inner, roles)
            if role.reason and roles[node_name(inner)].role is not Role.BLIND:
                roles[node_name(inner)] = NodeRole(Role.PINNED)


def _role(node: ir.Node, reading: _Reading) -> NodeRole:
    low, opset = reading.low, reading.opsets[""]
    known = signature_of(node, reading.opsets)
    lowered = known is None and node_name(node) in reading.lowered
    if reason := _why_pinned(node, None if known or lowered else low):
        return NodeRole(Role.PINNED, reason=reason)
    floats_in = [is_float(v) for v in node.inputs]
    floats_out = [is_float(v) for v in node.outputs]
    blind = node.op_type in TYPE_BLIND or not any(floats_in + floats_out)
    if blind or bodies(node):
        return NodeRole(Role.BLIND if blind else Role.PINNED)
    if known is None and not lowered:
        reason = f"is not in ONNX at opset {opset}, so the types it takes are unknown"
        return NodeRole(Role.PINNED, reason=reason)
    low_type = f"tensor({low.name.lower()})"

    def may_be_low(parameters: Sequence[Parameter], index: int) -> bool:
        return low_type in parameters[min(index, len(parameters) - 1)].allowed

    stashed = _STASHED.get(node.op_type, ())
    inputs = tuple(
        f and (known is None or may_be_low(known.inputs, i)) for i, f in enumerate(floats_in)
    )
    outputs = tuple(
        f and i not in stashed and (known is None or may_be_low(known.outputs, i))
        for i, f in enumerate(floats_out)
    )
    if not any(inputs + outputs):
        reason = f"{node.op_type} does not take {low.name.lower()} at opset {opset}"
        return NodeRole(Role.PINNED, reason=reason)
    by_schema = reading.by_schema or not is_standard(node)
    refused = (
        None if by_schema else why_not_low(node, opset, low, inputs, outputs, reading.computed)
    )
    if refused is not None:
        reason = f"TensorRT does not build {node.op_type} {refused.words(node.op_type)}"
        return NodeRole(Role.PINNED, inputs, outputs, reason)
    moves = is_standard(node, *DATA_MOVEMENT) and any(floats_out) and not _reduces(node)
    return NodeRole(Role.MOVEMENT if moves else Role.COMPUTE, inputs, outputs)


def _why_pinned(node: ir.Node, unknown_in: ir.DataType | None) -> str:
    """Return why a node has to be FP32; `unknown_in` is the low type if its operator is unknown."""
    values = (*node.inputs, *node.outputs)
    formals = (v for b in bodies(node) for v in (*b.inputs, *b.outputs))
    types = [v.type for v in (*values, *formals) if v is not None and v.name]
    if not all(isinstance(t, ir.TensorType | None) for t in types):
        return "reads or writes a sequence or an optional"
    unknown = None in types
    if not is_standard(node):
        opaque = unknown or bool(bodies(node))
        hint = "" if unknown_in is None or opaque else f"; {_LOWER}{LOW_TYPES[unknown_in]}"
        if opaque or (hint and any(map(is_float, values))):
            return f"operator of the custom domain {node.domain!r}{hint}"
    if unknown:
        return "reads or writes a tensor of unknown type, from a custom operator"
    if node.op_type in RANDOM or node.op_type.startswith(RANDOM_PREFIX):
        return "draws random numbers"
    if not any(is_float(v) for v in values):
        return ""
    reason = ""
    if node.op_type.startswith(QUANTISED):
        # From opset 19 on, these also take FP16. But their rounding is the file's own choice, and a
        # coarser input or scale would shift results by whole steps.
        reason = "quantises or dequantises"
    elif any(v.dtype in _BELOW_A_BYTE for v in node.outputs):
        reason = "writes elements smaller than a byte, which ONNX Runtime cannot switch"
    return _FP32_ONLY.get(node.op_type, reason)


def _reduces(node: ir.Node) -> bool:
    reduction = node.attributes.get("reduction")
    return reduction is not None and reduction.as_string() != "none"
