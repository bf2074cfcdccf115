"""What a plan costs before any engine exists, by a roofline of every node.

A node takes as long as its arithmetic or its memory traffic, whichever is longer (Williams,
Waterman, Patterson, "Roofline: an insightful visual performance model", 2009). Costs are in bytes:
what the memory could move in that time. Values inside of what builders fuse are never stored. A
constant time per kernel is left out: it is the same in every precision, so small inputs on large
GPUs, where it is all, gain less than this says.

Nothing is fitted. `bench/worth.py` compares with times of real engines.
"""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from enum import Enum
from math import prod

import onnx_ir as ir

from halfwise.emulation.rounding import POINTWISE
from halfwise.fixing.plan.cut import End, Terms
from halfwise.graph.bodies import Key, bodies_of
from halfwise.graph.model import Network, is_standard, node_name, tensor_name
from halfwise.graph.roles import NodeRole, Part, Role, Roles, is_float
from halfwise.records import NodeName, TensorName

FLOPS_PER_BYTE_LOW = 200.0
"""Dense FP16 (BF16) tensor-core operations for each byte that memory moves, by NVIDIA's data
sheets: A100 312 TFLOP/s at 1.555 TB/s, H200 989 at 4.8, T4 65 at 0.32, all within 3 %."""
FLOPS_PER_BYTE_FP32 = 14.0
"""FP32 without TF32: A100 19.5 TFLOP/s, H200 67; T4 has 25 for each byte with 8.1."""
LOW_BYTES, FP32_BYTES = 2, 4

_VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Dropout")
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_RECURRENT = ("GRU", "LSTM", "RNN")

Shapes = Mapping[TensorName, tuple[int, ...]]


@dataclass(frozen=True)
class _Node:
    """What the cost of a node is made of.

    Attributes:
        name: Its name.
        flops: Operations of its products.
        stored: Elements of the constants that it reads.
        inputs: Per float input that is no constant: its name, elements, whether a low node takes
            it low.
        outputs: Per float output: its name, elements, whether a low node gives it low.
        is_free: Whether it moves nothing.
        times: How often it runs.
    """

    name: NodeName
    flops: float
    stored: int
    inputs: tuple[tuple[TensorName, int, bool], ...]
    outputs: tuple[tuple[TensorName, int, bool], ...]
    is_free: bool
    times: float


class CostModel:
    """Predicts what assignments of a network cost."""

    def __init__(
        self,
        network: Network,
        roles: Roles,
        shapes: Shapes,
        *,
        low_io: frozenset[TensorName] = frozenset(),
        runs: Mapping[Key, float] | None = None,
    ) -> None:
        """Take the model, the roles of its nodes, and the shapes that its tensors have.

        Args:
            network: The FP32 model.
            roles: Roles of its nodes.
            shapes: Shapes of float tensors; those that are missing cost nothing.
            low_io: Float graph inputs and outputs that have the low type.
            runs: How often bodies of If, Loop and Scan run; without, they cost nothing.
        """
        self.low_io, self._roles = low_io, roles
        self._nodes: list[_Node] = []
        self._parts: dict[NodeName, Part] = {}
        self._inner: dict[TensorName, tuple[NodeName, NodeName]] = {}
        self._outputs: list[tuple[TensorName, int]] = []
        self._times: dict[TensorName, float] = {}
        self._add(network.graph, shapes, runs or {}, 1.0)

    def with_ends(self, low_io: frozenset[TensorName]) -> "CostModel":
        """Return a model of the same network with other float graph inputs and outputs low."""
        other = copy(self)
        other.low_io = low_io
        return other

    def _add(
        self, graph: ir.Graph, shapes: Shapes, runs: Mapping[Key, float], times: float
    ) -> None:
        """Take the nodes of a graph that runs so many times, those of bodies before their node."""
        for node in graph:
            part, name = self._roles.part(node), node_name(node)
            if part.role.role is Role.BLIND:
                continue
            bodies = [(body, runs.get((name, at))) for at, body in bodies_of(node)]
            for body, ran in bodies:
                if ran:
                    self._add(body, shapes, runs, ran)
            is_free = is_standard(node, *_VIEWS) or any(ran is not None for _, ran in bodies)
            described = _described(node, part.role, shapes, is_free=is_free, times=times)
            self._nodes.append(described)
            self._parts[name] = part
            self._inner |= {tensor_name(v): pair for v, pair in _fused(node)}
            self._times |= {value: times for value, _, _ in described.outputs}
        values = dict.fromkeys(v for v in graph.outputs if v.name and is_float(v))
        self._outputs += [(tensor_name(v), _elements(v, shapes)) for v in values]

    def cost(self, fp32: frozenset[NodeName], bf16: frozenset[NodeName] = frozenset()) -> float:
        """Return the cost in bytes.

        Args:
            fp32: The nodes that are not low, moved data included.
            bf16: Those of them that have BF16.
        """
        low_ends = dict.fromkeys(self.low_io.union(self._roles.low_formals(fp32)), _Type.LOW)
        types: dict[TensorName, _Type] = dict(low_ends)
        computed: dict[TensorName, _Type] = {}
        casts = _Casts(self._times)
        total = 0.0
        for node in self._nodes:
            own = self._type_of(node.name, fp32, bf16)
            moved = node.stored * own.size
            for name, elements, takes_low in node.inputs:
                wanted = own if takes_low else _Type.FP32
                casts.add(name, elements, types.get(name, _Type.FP32), wanted)
                if name not in computed or not self._stays_inside(name, fp32, bf16):
                    moved += elements * wanted.size
            for name, elements, gives_low in node.outputs:
                types[name] = computed[name] = own if gives_low else _Type.FP32
                if not self._stays_inside(name, fp32, bf16):
                    moved += elements * types[name].size
            if not node.is_free:
                total += node.times * max(node.flops / own.flops_per_byte, moved)
        for name, elements in self._outputs:
            wanted = low_ends.get(name, _Type.FP32)
            casts.add(name, elements, computed.get(name, wanted), wanted)
        return total + casts.cost

    def _type_of(
        self, name: NodeName, fp32: frozenset[NodeName], bf16: frozenset[NodeName]
    ) -> "_Type":
        part = self._parts[name]
        if part.is_low(fp32):
            return _Type.LOW
        return _Type.BF16 if part.decider in bf16 else _Type.FP32

    def terms(self) -> Terms:
        """Return the cost as a sum over nodes and over pairs, up to a constant.

        Exact but where a node's arithmetic takes longer than its memory traffic and a neighbour
        that it is fused with has the other precision: then storing the value is counted beside it.
        """
        terms = Terms()
        ends: dict[TensorName, End] = dict.fromkeys(self.low_io, False)
        ends |= self._roles.low_formals(frozenset())
        read: dict[TensorName, tuple[list[End], float]] = {}
        for node in self._nodes:
            part = self._parts[node.name]
            end: End = part.decider if part.role.free else True
            if not node.is_free and not isinstance(end, bool):
                extra = self._alone(node, _Type.FP32) - self._alone(node, _Type.LOW)
                terms.nodes[end] = terms.nodes.get(end, 0.0) + max(0.0, extra)
            for name, elements, takes_low in node.inputs:
                readers, most = read.get(name, ([], 0.0))
                readers.append(end if takes_low else True)
                read[name] = readers, max(most, elements * node.times)
            ends |= {name: end if gives_low else True for name, _, gives_low in node.outputs}
        for name, elements in self._outputs:
            read.setdefault(name, ([], float(elements)))[0].append(name not in self.low_io)
        for name, (readers, most) in read.items():
            # Where fused, it is stored and read beside the Cast.
            bytes_each = (LOW_BYTES + FP32_BYTES) * (2 if name in self._inner else 1)
            terms.values.append((ends.get(name, True), tuple(readers), bytes_each * most))
        return terms

    def _alone(self, node: _Node, own: "_Type") -> float:
        """Return what a node costs where all that may be fused with it has its precision."""
        values = [
            elements
            for name, elements, _ in (*node.inputs, *node.outputs)
            if name not in self._inner
        ]
        moved = (node.stored + sum(values)) * own.size
        return node.times * max(node.flops / own.flops_per_byte, moved)

    def _stays_inside(
        self, value: TensorName, fp32: frozenset[NodeName], bf16: frozenset[NodeName]
    ) -> bool:
        """Return whether one kernel makes and reads a value: one precision, and fused."""
        pair = self._inner.get(value)
        return pair is not None and len({self._type_of(n, fp32, bf16) for n in pair}) == 1


class _Type(Enum):
    """The type that a node computes in, as the options call it."""

    LOW = "low"
    BF16 = "bf16"
    FP32 = "fp32"

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return FP32_BYTES if self is _Type.FP32 else LOW_BYTES

    @property
    def flops_per_byte(self) -> float:
        """Operations of a product in the time in which memory moves a byte."""
        return FLOPS_PER_BYTE_FP32 if self is _Type.FP32 else FLOPS_PER_BYTE_LOW


class _Casts:
    """What conversions cost, of each tensor one into each precision.

    Attributes:
        cost: Of those so far, in bytes.
    """

    def __init__(self, times: Mapping[TensorName, float]) -> None:
        self.cost, self._times = 0.0, times
        self._done: set[tuple[TensorName, _Type]] = set()

    def add(self, name: TensorName, elements: int, given: _Type, wanted: _Type) -> None:
        """Convert a tensor that has another precision than is wanted."""
        if given is not wanted and (name, wanted) not in self._done:
            self._done.add((name, wanted))
            self.cost += self._times.get(name, 1.0) * elements * (given.size + wanted.size)


def _elements(value: ir.Value, shapes: Shapes) -> int:
    return prod(shapes.get(tensor_name(value), (0,)))


def _described(
    node: ir.Node, role: NodeRole, shapes: Shapes, *, is_free: bool, times: float
) -> _Node:
    written = [
        (tensor_name(v), _elements(v, shapes), _at(role.outputs, i))
        for i, v in enumerate(node.outputs)
        if v.name and is_float(v)
    ]
    most = sum(elements for _, elements, _ in written)
    read, stored = [], 0
    for slot, value in enumerate(node.inputs):
        if value is None or not is_float(value):
            continue
        if value.const_value is not None:
            stored += _read(value.const_value.size, most, role)
            continue
        elements = _read(_elements(value, shapes), most, role)
        read.append((tensor_name(value), elements, _at(role.inputs, slot)))
    flops = _flops(node, shapes, most)
    return _Node(node_name(node), flops, stored, tuple(read), tuple(written), is_free, times)


def _read(elements: int, written: int, role: NodeRole) -> int:
    """Return how many elements of an input are read: Gather and Slice read what they give out."""
    return min(elements, written) if role.role is Role.MOVEMENT else elements


def _at(slots: tuple[bool, ...], index: int) -> bool:
    return index < len(slots) and slots[index]


def _flops(node: ir.Node, shapes: Shapes, written: int) -> float:
    """Return the operations of a product: two for each multiply-accumulate."""
    if not node.inputs or node.inputs[0] is None:
        return 0.0
    left = _shape(node.inputs[0], shapes)
    weight = _shape(node.inputs[1], shapes) if len(node.inputs) > 1 else ()
    per_element = 0.0
    if is_standard(node, "Conv"):
        per_element = prod(weight[1:])
    elif is_standard(node, "ConvTranspose"):
        per_element, written = prod(weight[1:]), prod(left)
    elif is_standard(node, "MatMul", "Gemm") and left:
        per_element = left[0 if node.attributes.get_int("transA", 0) else -1]
    elif is_standard(node, *_RECURRENT):
        per_element, written = (
            sum(prod(_shape(v, shapes)) for v in node.inputs[1:3]),
            prod(left[:2]),
        )
    return 2.0 * written * per_element


def _shape(value: ir.Value | None, shapes: Shapes) -> tuple[int, ...]:
    if value is None:
        return ()
    if value.const_value is not None:
        return tuple(map(int, value.const_value.shape.numpy()))
    return shapes.get(tensor_name(value), (0,))


def _fused(node: ir.Node) -> Iterator[tuple[ir.Value, tuple[NodeName, NodeName]]]:
    """Yield the outputs that the kernel of `node` hands on to the one node that reads them."""
    if not is_standard(node, *_PRODUCTS, *POINTWISE, "BatchNormalization"):
        return
    for value in node.outputs:
        readers = {use.node for use in value.uses()}
        if len(readers) != 1 or value.is_graph_output():
            continue
        reader = readers.pop()
        if reader.graph is node.graph and is_standard(reader, *POINTWISE, "BatchNormalization"):
            yield value, (node_name(node), node_name(reader))
