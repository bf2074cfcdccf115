"""Predicts the cost of a plan before any engine exists, by a roofline of every node.

A node takes as long as its arithmetic or its memory traffic, whichever is longer (Williams,
Waterman, Patterson, "Roofline: an insightful visual performance model", 2009). Costs are in bytes:
what memory could move in that time. Values inside fused nodes are never stored. A constant time per
kernel is left out because it is the same in every precision; small inputs on large GPUs, where it
dominates, therefore gain less than predicted.

INT8 nodes read one byte per element of quantised inputs. The kernel that makes a value also
quantises it, and stores nothing else unless something else is read (TensorRT's documentation on
explicit quantisation: QuantizeLinear is fused with the preceding layer); graph inputs are quantised
by a separate kernel. Sums are wider internally: the kernel writes what its readers take.

Nothing is fitted. `bench/worth.py` compares predictions with times of real engines.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import onnx_ir as ir

from halfwise.case import FEW_SAMPLES, Case, Settings
from halfwise.emulation.rounding import POINTWISE
from halfwise.emulation.runner import Shapes, seen_in_bodies
from halfwise.errors import CaseError, RunFailed
from halfwise.graph.bodies import Key, bodies_of
from halfwise.graph.cut import End, Terms
from halfwise.graph.model import Network, is_standard, node_name, tensor_name
from halfwise.graph.movement import Following
from halfwise.graph.quantised import (
    QUANTISABLE,
    Pair,
    moves_before,
    pairs_of,
    pairs_read,
    quantised_nodes,
    residuals,
)
from halfwise.graph.roles import NodeRole, Role, Roles, bodies, is_float
from halfwise.records import NodeName, TensorName

QUANTISING = ("QuantizeLinear", "DequantizeLinear")
_VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Dropout")
_RECURRENT = ("GRU", "LSTM", "RNN")


@dataclass(frozen=True)
class Read:
    """A float input that is not constant.

    Attributes:
        name: The tensor, in front of any quantisation.
        elements: Number of elements read.
        takes_low: Whether a low node reads it low.
        quantised: Whether an INT8 node reads it in INT8.
    """

    name: TensorName
    elements: int
    takes_low: bool
    quantised: bool


@dataclass(frozen=True)
class Kernel:
    """What a node's cost depends on.

    Attributes:
        name: Its name.
        flops: Floating-point operations of its products.
        stored: Elements of the constants it reads.
        weights: Those elements that an INT8 node reads in INT8.
        inputs: Its float inputs that are not constant.
        outputs: Per float output: name, elements, and whether a low node gives it low.
        is_free: Whether it moves no data.
        times: Runs per inference.
    """

    name: NodeName
    flops: float
    stored: int
    weights: int
    inputs: tuple[Read, ...]
    outputs: tuple[tuple[TensorName, int, bool], ...]
    is_free: bool
    times: float


def described(
    node: ir.Node,
    role: NodeRole,
    shapes: Shapes,
    pairs: Mapping[int, Pair],
    *,
    residual: int | None = None,
    has_bodies: bool,
    times: float,
) -> Kernel:
    """Return what a node that runs `times` times and reads these pairs consists of.

    One that reads no pairs is assumed to read in INT8 through pairs: both factors of a product, and
    the slot `residual` of a sum that a convolution's kernel computes.
    """
    written = [
        (tensor_name(v), elements(v, shapes), _at(role.outputs, i))
        for i, v in enumerate(node.outputs)
        if v.name and is_float(v)
    ]
    most = sum(count for _, count, _ in written)
    read, stored, weights = [], 0, 0
    factors = {0, 1} if is_standard(node, *QUANTISABLE) else {residual}
    for slot, value in enumerate(node.inputs):
        if value is None or not is_float(value):
            continue
        raw, quantised = _raw(value, pairs.get(slot)), slot in (set(pairs) or factors)
        constant = raw.const_value
        size = elements(raw, shapes) if constant is None else constant.size
        # Gather and Slice read what they return.
        size = min(size, most) if role.role is Role.MOVEMENT else size
        if constant is None:
            read.append(Read(tensor_name(raw), size, _at(role.inputs, slot), quantised))
        else:
            stored += size
            weights += size if quantised else 0
    operations, free = flops(node, shapes, most), has_bodies or is_standard(node, *_VIEWS)
    return Kernel(
        node_name(node), operations, stored, weights, tuple(read), tuple(written), free, times
    )


def elements(value: ir.Value, shapes: Shapes) -> int:
    """Return the number of elements of a tensor; 0 if its shape is unknown."""
    return prod(shapes.get(tensor_name(value), (0,)))


def fused(node: ir.Node) -> Iterator[tuple[ir.Value, NodeName]]:
    """Yield the outputs that the kernel of `node` passes to its only reader."""
    if not is_standard(node, *QUANTISABLE, *POINTWISE, "BatchNormalization"):
        return
    for value in node.outputs:
        readers = set(_readers(value))
        if len(readers) != 1 or value.is_graph_output():
            continue
        reader = readers.pop()
        if reader.graph is node.graph and is_standard(reader, *POINTWISE, "BatchNormalization"):
            yield value, node_name(reader)


def _raw(value: ir.Value, pair: Pair | None) -> ir.Value:
    """Return the tensor in front of a quantisation; for weights, the integers."""
    if pair is not None and pair.quantise is None:
        value = pair.dequantise.outputs[0]
    elif pair is not None and pair.source is not None:
        value = pair.source
    maker = value.producer()
    while maker is not None and maker.op_type in QUANTISING and maker.inputs[0] is not None:
        value = maker.inputs[0]
        maker = value.producer()
    return value


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    for use in value.uses():
        if use.node.op_type in QUANTISING:
            yield from _readers(use.node.outputs[0])
        else:
            yield use.node


def _at(slots: tuple[bool, ...], index: int) -> bool:
    return index < len(slots) and slots[index]


def flops(node: ir.Node, shapes: Shapes, written: int) -> float:
    """Return the operations of a product that gives `written` elements: two per multiply-add.

    0 for other nodes, and if shapes are unknown.
    """
    first, weight, *_ = (*(_shape(v, shapes) for v in node.inputs), (), ())
    per_element, op = 0.0, node.op_type
    if not is_standard(node):
        op = op.removeprefix("Fused") if node.domain == "com.microsoft" else ""
    if op == "Conv":
        per_element = prod(weight[1:])
    elif op == "ConvTranspose":
        per_element, written = prod(weight[1:]), prod(first)
    elif op in ("MatMul", "Gemm") and first:
        per_element = first[0 if node.attributes.get_int("transA", 0) else -1]
    elif op == "MatMulNBits":
        per_element = node.attributes.get_int("K", 0)
    elif op == "Attention" and not is_standard(node):  # it multiplies by its weights first
        per_element, written = prod(weight), prod(first[:-1])
    elif is_standard(node, *_RECURRENT):
        per_element = sum(prod(_shape(v, shapes)) for v in node.inputs[1:3])
        written = prod(first[:2])
    return 2.0 * written * per_element


def _shape(value: ir.Value | None, shapes: Shapes) -> tuple[int, ...]:
    if value is None:
        return ()
    if value.const_value is not None:
        return tuple(map(int, value.const_value.shape.numpy()))
    return shapes.get(tensor_name(value), (0,))


FLOPS_PER_BYTE_LOW = 200.0
"""Dense FP16 (BF16) tensor-core operations per byte of memory traffic, from NVIDIA's data
sheets: A100 312 TFLOP/s at 1.555 TB/s, H200 989 at 4.8, T4 65 at 0.32, all within 3 %."""
FLOPS_PER_BYTE_FP32 = 14.0
"""FP32 without TF32: A100 19.5 TFLOP/s, H200 67; T4 has 25 per byte with 8.1."""
FLOPS_PER_BYTE_TF32 = 100.0
"""A100 156 TFLOP/s, H200 494; T4 has no TF32."""
FLOPS_PER_BYTE_INT8 = 2 * FLOPS_PER_BYTE_LOW
"""Dense INT8, from the same data sheets: A100 624 TOP/s, H200 1979, T4 130."""


@dataclass(frozen=True, eq=False)
class _Type:
    """A type that nodes compute in.

    Attributes:
        size: Bytes per element.
        flops_per_byte: Operations of a product in the time that memory takes to move one byte.
    """

    size: int
    flops_per_byte: float

    @property
    def output(self) -> "_Type":
        """The type that such a node outputs, and reads unless quantised."""
        return _LOW if self is _INT8 else self

    def read(self, read: Read) -> "_Type":
        """Return the type in which such a node reads an input."""
        if self is _INT8 and read.quantised:
            return self
        return self.output if read.takes_low else _FP32


_INT8 = _Type(1, FLOPS_PER_BYTE_INT8)
_LOW = _Type(2, FLOPS_PER_BYTE_LOW)
_BF16 = _Type(2, FLOPS_PER_BYTE_LOW)
_FP32 = _Type(4, FLOPS_PER_BYTE_FP32)

Assignment = frozenset[NodeName]
_NONE: Assignment = frozenset()


class CostModel:
    """Predicts the cost of assignments of a network."""

    def __init__(
        self,
        network: Network,
        roles: Roles,
        shapes: Shapes,
        *,
        low_io: frozenset[TensorName] = frozenset(),
        runs: Mapping[Key, float] | None = None,
    ) -> None:
        """Take the model, the roles of its nodes, and the shapes of its tensors.

        Args:
            network: The FP32 model.
            roles: Roles of its nodes.
            shapes: Shapes of float tensors; tensors without one cost nothing.
            low_io: Float graph inputs and outputs of the low type.
            runs: How often bodies of If, Loop and Scan run; if missing, they cost nothing.
        """
        self.low_io, self._roles = low_io, roles
        self._following = Following(network, roles)
        self._nodes: list[Kernel] = []
        self._inner: dict[TensorName, NodeName] = {}
        self._outputs: dict[TensorName, int] = {}
        self._times: dict[TensorName, float] = {}
        self._pairs, self._int8 = pairs_read(network), frozenset(quantised_nodes(network))
        self._residuals = {name: residual.slot for name, residual in residuals(network).items()}
        stored = (at for pair in pairs_of(network) if pair.source is None for at in pair.readers)
        self._folded = {node_name(move) for n, slot in stored for move in moves_before(n, slot)}
        self._add(network.graph, shapes, runs or {}, 1.0)
        self._reads: dict[TensorName, list[tuple[Kernel, Read]]] = {}
        for node in self._nodes:
            for read in node.inputs:
                self._reads.setdefault(read.name, []).append((node, read))
        self._reads |= {name: [] for name in self._outputs if name not in self._reads}

    def _add(
        self, graph: ir.Graph, shapes: Shapes, runs: Mapping[Key, float], times: float
    ) -> None:
        """Add the nodes of a graph that runs `times` times, bodies before their node."""
        for node in graph:
            name, role = node_name(node), self._roles.of(node)
            if role.role is Role.BLIND or node.op_type in QUANTISING or name in self._folded:
                continue
            bodies = [(body, runs.get((name, at))) for at, body in bodies_of(node)]
            for body, ran in bodies:
                if ran:
                    self._add(body, shapes, runs, ran)
            kernel = described(
                node,
                role,
                shapes,
                self._pairs.get(name, {}),
                residual=self._residuals.get(name),
                has_bodies=any(ran is not None for _, ran in bodies),
                times=times,
            )
            self._nodes.append(kernel)
            self._inner |= {tensor_name(v): reader for v, reader in fused(node)}
            self._times |= {value: times for value, _, _ in kernel.outputs}
        self._times |= {tensor_name(v): times for v in graph.inputs}
        values = (v for v in graph.outputs if v.name and is_float(v))
        self._outputs |= {tensor_name(v): elements(v, shapes) for v in values}

    def cost(
        self,
        fp32: Assignment,
        bf16: Assignment = _NONE,
        int8: Assignment = _NONE,
        *,
        tf32: bool = False,
    ) -> float:
        """Return the cost in bytes.

        Args:
            fp32: The nodes that are not low, including data movement.
            bf16: The compute nodes that are BF16.
            int8: The products and residual sums of the main graph that are INT8, in `fp32` or not,
                in addition to those that the network quantises. They read in INT8 what they read
                through a quantisation; if the network has none, both factors, or the residual.
            tf32: Whether FP32 products compute in TF32.
        """
        bf16, int8 = self._following(fp32, bf16), int8 | self._int8
        types = {node.name: self._type_of(node, fp32, bf16, int8) for node in self._nodes}
        ends = dict.fromkeys(self.low_io, _LOW)
        computed: dict[TensorName, _Type] = {}
        # One per tensor and precision.
        casts: dict[tuple[TensorName, _Type, _Type], float] = {}

        def convert(name: TensorName, count: int, wanted: _Type) -> None:
            stored = computed.get(name, ends.get(name, _FP32))
            size = self._times.get(name, 1.0) * count * (stored.size + wanted.size)
            casts.setdefault((name, stored, wanted), size)

        total = 0.0
        for node in self._nodes:
            kind = types[node.name]
            moved = node.weights * kind.size + (node.stored - node.weights) * kind.output.size
            for read in node.inputs:
                want, name = kind.read(read), read.name
                if want is not _INT8 or name not in computed:
                    convert(name, read.elements, want)
                if name not in computed or not self._stays_inside(name, computed[name], types):
                    moved += read.elements * want.size
            for name, count, gives_low in node.outputs:
                # Without INT8, a value has the type of the node that gives it, whatever reads it.
                wants = self._wanted(name, types, ends) if int8 else frozenset()
                widened = kind is _INT8 and _FP32 in wants
                computed[name] = kind.output if gives_low and not widened else _FP32
                if not self._stays_inside(name, computed[name], types):
                    moved += count * _stored(computed[name], wants)
            if not node.is_free:
                rate = FLOPS_PER_BYTE_TF32 if tf32 and kind is _FP32 else kind.flops_per_byte
                total += node.times * max(node.flops / rate, moved)
        for name, count in self._outputs.items():
            convert(name, count, ends.get(name, _FP32))
        sizes = (size for (_, stored, wanted), size in casts.items() if stored is not wanted)
        return total + sum(sizes)

    def _type_of(self, node: Kernel, fp32: Assignment, bf16: Assignment, int8: Assignment) -> _Type:
        if node.name in int8:
            return _INT8
        if self._roles[node.name].free and node.name not in fp32:
            return _LOW
        return _BF16 if node.name in bf16 else _FP32

    def _wanted(
        self,
        name: TensorName,
        types: Mapping[NodeName, _Type],
        ends: Mapping[TensorName, _Type],
    ) -> frozenset[_Type]:
        """Return the types in which a tensor is read."""
        reads = self._reads.get(name, ())
        read_as = (types[n.name].read(read) for n, read in reads)
        end = (ends.get(name, _FP32),) if name in self._outputs else ()
        return frozenset((*read_as, *end))

    def macs(self, nodes: Assignment) -> float:
        """Return the share of all multiply-accumulates in `nodes`; 0 if there are none."""
        each = {n.name: n.times * n.flops for n in self._nodes}
        whole = sum(each.values())
        return sum(each.get(name, 0.0) for name in nodes) / whole if whole else 0.0

    def terms(self) -> Terms:
        """Return the cost as a sum over nodes and pairs, up to a constant.

        Exact except if a node's arithmetic takes longer than its memory traffic and a neighbour
        fused with it has the other precision: then storing the value is counted in addition.
        """
        terms = Terms()
        ends: dict[TensorName, End] = dict.fromkeys(self.low_io, False)
        deciders = {n.name: n.name if self._roles[n.name].free else True for n in self._nodes}
        for node in self._nodes:
            end: End = deciders[node.name]
            if not node.is_free and not isinstance(end, bool):
                extra = self._alone(node, _FP32) - self._alone(node, _LOW)
                terms.nodes[end] = terms.nodes.get(end, 0.0) + max(0.0, extra)
            ends |= {name: end if gives_low else True for name, _, gives_low in node.outputs}
        for name, reads in self._reads.items():
            readers: list[End] = [deciders[n.name] if r.takes_low else True for n, r in reads]
            readers += [name not in self.low_io] if name in self._outputs else []
            # If fused, it is stored and read in addition to the Cast.
            bytes_each = (_LOW.size + _FP32.size) * (2 if name in self._inner else 1)
            cost = bytes_each * self._most_read(name)
            terms.values.append((ends.get(name, True), tuple(readers), cost))
        return terms

    def int8_terms(self, candidates: Assignment) -> Terms:
        """Return the cost of leaving candidates out of INT8, in the form of `terms`.

        True then means a low node, False an INT8 node. Exact if memory dominates, nothing else is
        FP32, and no INT8 node outputs FP32.
        """
        terms = Terms()
        for node in self._nodes:
            if node.name in candidates:
                extra = self._alone(node, _LOW) - self._alone(node, _INT8)
                terms.nodes[node.name] = max(0.0, extra)
        computed = {name for node in self._nodes for name, _, _ in node.outputs}
        for name, reads in self._reads.items():
            chosen = [n.name in candidates and r.quantised and n.name for n, r in reads]
            readers: tuple[End, ...] = tuple(end or True for end in chosen)
            readers += (True,) if reads and name in self._outputs else ()
            stored = 0 if name in computed else _LOW.size if name in self.low_io else _FP32.size
            low = 0 if name in self.low_io else _LOW.size + stored
            most = self._most_read(name)
            if reads:
                terms.values.append((False, readers, low * most))
                terms.values.append((True, readers, (_INT8.size + stored) * most))
        return terms

    def _most_read(self, name: TensorName) -> float:
        """Return how many elements of a tensor are read at most, or given out."""
        reads = (r.elements * n.times for n, r in self._reads[name])
        return max(reads, default=float(self._outputs.get(name, 0)))

    def _alone(self, node: Kernel, kind: _Type) -> float:
        """Return a node's cost if everything that may be fused with it has its precision."""
        moved = node.weights * kind.size + (node.stored - node.weights) * kind.output.size
        read = [r for r in node.inputs if r.name not in self._inner]
        moved += sum(r.elements * (kind if r.quantised else kind.output).size for r in read)
        written = sum(c for name, c, _ in node.outputs if name not in self._inner)
        moved += written * kind.output.size
        return node.times * max(node.flops / kind.flops_per_byte, moved)

    def _stays_inside(
        self, value: TensorName, stored: _Type, types: Mapping[NodeName, _Type]
    ) -> bool:
        """Return whether one kernel makes and reads a value: same precision, and fused."""
        reader = self._inner.get(value)
        return reader is not None and types[reader].output is stored


def _stored(output: _Type, wants: frozenset[_Type]) -> int:
    """Return the bytes written per element of a value that is read in `wants`."""
    if _INT8 not in wants:
        return output.size
    return _INT8.size + (output.size if len(wants) > 1 else 0)


def cost_model(
    case: Case,
    settings: Settings,
    roles: Roles,
    low_io: frozenset[TensorName],
    shapes: Callable[[], Shapes],
) -> CostModel | None:
    """Return the cost model, from the shapes seen in a run on the calibration.

    None if shapes are unknown, including those in bodies, and if nothing costs.

    Args:
        case: The network and the samples.
        settings: Where to run.
        roles: Roles of the network's nodes.
        low_io: Float graph inputs and outputs of the low type.
        shapes: Returns the shapes of its tensors on the first sample of the calibration; may raise
            as `seen_shapes` does.
    """
    graph, calibration = case.network.graph, case.calibration
    if any(len(bodies_of(node)) != len(bodies(node)) for node in graph.all_nodes()):
        return None  # a SequenceMap's body, whose shapes are not seen
    # Branches may differ between samples.
    few = [calibration[i] for i in range(min(FEW_SAMPLES, len(calibration)))]
    try:
        outside = shapes()
        runs, inside = seen_in_bodies(case.network, few, runtime=settings.runtime)
    except (CaseError, RunFailed):
        return None
    model = CostModel(case.network, roles, outside | inside, low_io=low_io, runs=runs)
    return model if model.cost(frozenset()) > 0 else None


@dataclass(frozen=True)
class Prices:
    """What costs of plans are relative to.

    Attributes:
        model: The cost model of the network.
        low: Cost of everything low in it, in bytes, > 0.
        nodes: All nodes of the network.
        base: What costs of a repaired network are relative to: those of the network without
            repairs. None for itself.
    """

    model: CostModel
    low: float
    nodes: Assignment
    base: "Prices | None" = None

    @property
    def least(self) -> float:
        """Cost of everything low, in bytes."""
        return self.base.least if self.base else self.low

    @cached_property
    def fp32(self) -> float:
        """Cost of everything in FP32, relative to `least`."""
        return self.base.fp32 if self.base else self.model.cost(self.nodes) / self.low

    @cached_property
    def tf32(self) -> float:
        """The same with products in TF32."""
        return self.base.tf32 if self.base else self.model.cost(self.nodes, tf32=True) / self.low
