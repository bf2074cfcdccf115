"""Predicts the cost of a plan before any engine exists: a roofline of the kernels that it becomes.

A kernel takes as long as its arithmetic or its memory traffic, whichever is longer (Williams,
Waterman, Patterson, "Roofline: an insightful visual performance model", 2009). Costs are in bytes:
what memory could move in that time. A constant time per kernel is left out because it is the same
in every precision; small inputs on large GPUs, where it dominates, therefore gain less than
predicted. `fixing/kernels.py` says which nodes share a kernel.

The kernel that makes a value also quantises it, and stores nothing else unless something else is
read (TensorRT's documentation on explicit quantisation: QuantizeLinear is fused with the preceding
layer); graph inputs are quantised by a separate kernel. TensorRT for RTX does otherwise, which the
costs of a run with that target count: see `int8_apart`.

Nothing is fitted. `bench/traffic.py` compares predictions with a builder's kernels, and
`bench/worth.py` with times of real engines.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir
from msgspec import Struct

from halfwise.case import FEW_SAMPLES, Case, Settings
from halfwise.emulation.runner import Shapes, seen_in_bodies
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.kernels import (
    QUANTISING,
    VIEWS,
    Part,
    Read,
    described,
    kernels,
    raw_of,
)
from halfwise.graph.bodies import Key, bodies_of
from halfwise.graph.model import Network, bodies, is_standard, node_name, tensor_name
from halfwise.graph.movement import Following
from halfwise.graph.quantised import (
    moves_before,
    pairs_of,
    pairs_read,
    quantised_nodes,
    residuals,
)
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.graph.written_out import attentions
from halfwise.records import NodeName, TensorName

FLOPS_PER_BYTE_LOW = 200.0
"""Dense FP16 (BF16) tensor-core operations per byte of memory traffic, from NVIDIA's data
sheets: A100 312 TFLOP/s at 1.555 TB/s, H200 989 at 4.8, T4 65 at 0.32, all within 3 %."""
FLOPS_PER_BYTE_FP32 = 14.0
"""FP32 without TF32: A100 19.5 TFLOP/s, H200 67; T4 has 25 per byte with 8.1."""
FLOPS_PER_BYTE_TF32 = 100.0
"""A100 156 TFLOP/s, H200 494; T4 has no TF32."""
FLOPS_PER_BYTE_INT8 = 2 * FLOPS_PER_BYTE_LOW
"""Dense INT8, from the same data sheets: A100 624 TOP/s, H200 1979, T4 130."""


class _Type(Struct, frozen=True, eq=False):
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
        """Return the type in which a kernel of a library reads an input."""
        if self is _INT8 and read.quantised:
            return self
        return self.output if read.takes_low else _FP32


_INT8 = _Type(1, FLOPS_PER_BYTE_INT8)
_LOW = _Type(2, FLOPS_PER_BYTE_LOW)
_BF16 = _Type(2, FLOPS_PER_BYTE_LOW)
_FP32 = _Type(4, FLOPS_PER_BYTE_FP32)

Assignment = frozenset[NodeName]
_NONE: Assignment = frozenset()


class _Value(Struct, frozen=True):
    """A value that a kernel stores, unless no other kernel reads it.

    Attributes:
        maker: The node that gives it; None for an input of a graph.
        elements: Their number, made per inference.
        gives_low: Whether a low node gives it low.
        reads: Who reads it.
        end: The input or output of the graph that it is; None inside.
        is_output: Whether it is an output.
    """

    maker: Part | None
    elements: float
    gives_low: bool
    reads: tuple[tuple[Part, Read], ...]
    end: TensorName | None
    is_output: bool


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
        int8_apart: bool = False,
    ) -> None:
        """Take the model, the roles of its nodes, and the shapes of its tensors.

        Args:
            network: The FP32 model.
            roles: Roles of its nodes.
            shapes: Shapes of float tensors; tensors without one cost nothing.
            low_io: Float graph inputs and outputs of the low type.
            runs: How often bodies of If, Loop and Scan run; if missing, they cost nothing.
            int8_apart: Whether an INT8 product stores its sums in FP32, and other kernels compute
                and quantise what follows, as in TensorRT for RTX.
        """
        self.low_io, self._roles = low_io, roles
        self._following = Following(network, roles)
        self._parts: list[Part] = []
        self._kernel: dict[NodeName, NodeName] = {}
        self._pairs, self._int8 = pairs_read(network), frozenset(quantised_nodes(network))
        self._residuals = {name: residual.slot for name, residual in residuals(network).items()}
        stored = (at for pair in pairs_of(network) if pair.source is None for at in pair.readers)
        self._folded = {node_name(move) for n, slot in stored for move in moves_before(n, slot)}
        outputs: dict[ir.Value, ir.Value] = {}
        self._add(network.graph, shapes, runs or {}, 1.0, outputs)
        self._values = list(self._read_values(outputs))
        products = frozenset(p.name for p in self._parts if not p.is_generated)
        cores = [frozenset(map(node_name, nodes)) for nodes in attentions(network)]
        self._cores = [(core, core & products) for core in cores if core <= self._kernel.keys()]
        self._library = {self._kernel[name] for name in products}
        self._apart = int8_apart
        self._epilogues = list(self._read_epilogues(products))

    def _add(
        self,
        graph: ir.Graph,
        shapes: Shapes,
        runs: Mapping[Key, float],
        often: float,
        outputs: dict[ir.Value, ir.Value],
    ) -> None:
        """Add the nodes of a graph that runs `often` times, bodies before their node."""
        for node in graph:
            name, role = node_name(node), self._roles.of(node)
            skipped = is_standard(node, *QUANTISING, *VIEWS) or name in self._folded
            if role.role is Role.BLIND or skipped:
                continue
            bodies = [(body, runs.get((name, at))) for at, body in bodies_of(node)]
            for body, ran in bodies:
                if ran:
                    self._add(body, shapes, runs, ran, outputs)
            self._parts.append(
                described(
                    node,
                    role,
                    shapes,
                    self._pairs.get(name, {}),
                    residual=self._residuals.get(name),
                    has_bodies=any(ran is not None for _, ran in bodies),
                    times=often,
                )
            )
        self._kernel |= kernels(graph, {p.name for p in self._parts if p.is_generated})
        given = {raw_of(v): v for v in graph.outputs if v.name and is_float(v)}
        outputs |= {raw: v for raw, v in given.items() if raw.graph is graph}

    def _read_values(self, outputs: Mapping[ir.Value, ir.Value]) -> Iterator[_Value]:
        """Yield the values that are read or given out."""
        made = {v: (part, size, low) for part in self._parts for v, size, low in part.outputs}
        reads = defaultdict[ir.Value, list[tuple[Part, Read]]](list)
        for part in self._parts:
            for read in part.inputs:
                if not part.is_free:
                    reads[read.value].append((part, read))
        for value in dict.fromkeys((*reads, *outputs)):
            most = max((read.elements for _, read in reads[value]), default=0.0)
            maker, size, gives_low = made.get(value, (None, most, False))
            at_end = value in outputs or maker is None
            yield _Value(
                maker,
                size,
                gives_low,
                tuple(reads[value]),
                tensor_name(outputs.get(value, value)) if at_end else None,
                value in outputs,
            )

    def _read_epilogues(
        self, products: Assignment
    ) -> Iterator[tuple[NodeName, Assignment, list[Assignment]]]:
        """Yield products, what follows in the kernel of each, and who reads a value twice."""
        members = defaultdict[NodeName, set[NodeName]](set)
        for name, kernel in self._kernel.items():
            if kernel in products and name != kernel:
                members[kernel].add(name)
        readers = defaultdict[NodeName, list[Assignment]](list)
        for value in self._values:
            if value.maker is None:
                continue
            own = self._kernel[value.maker.name]
            inside = frozenset(p.name for p, _ in value.reads if self._kernel[p.name] == own)
            if own in members and len(inside) > 1:
                readers[own].append(inside)
        for kernel, after in members.items():
            yield kernel, frozenset(after), readers[kernel]

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
        work = self._work(fp32, bf16, int8, tf32=tf32)
        return sum(max(operations, size) for operations, size in work)

    def traffic(
        self, fp32: Assignment, bf16: Assignment = _NONE, int8: Assignment = _NONE
    ) -> float:
        """Return the bytes that all kernels read and write; arguments as for `cost`."""
        return sum(size for _, size in self._work(fp32, bf16, int8))

    def _work(
        self, fp32: Assignment, bf16: Assignment, int8: Assignment, *, tf32: bool = False
    ) -> list[tuple[float, float]]:
        """Return the operations, in bytes, and the bytes moved, of each kernel and all Casts."""
        types = self._types(fp32, bf16, int8)
        kernel = self._kernels(types)
        moved = self._moved(types, kernel)
        operations = defaultdict[NodeName | None, float](float)
        for part in self._parts:
            kind, name = types[part.name], kernel[part.name]
            rate = FLOPS_PER_BYTE_TF32 if tf32 and kind is _FP32 else kind.flops_per_byte
            operations[name] += part.flops / rate
            weights = part.weights * self._filled(part, kind)
            constants = weights * kind.size + (part.stored - part.weights) * kind.output.size
            moved[name] += constants
        return [(operations[name], size) for name, size in moved.items()]

    def _types(self, fp32: Assignment, bf16: Assignment, int8: Assignment) -> dict[NodeName, _Type]:
        bf16, int8 = self._following(fp32, bf16), int8 | self._int8
        return {part.name: self._type_of(part, fp32, bf16, int8) for part in self._parts}

    def _type_of(self, part: Part, fp32: Assignment, bf16: Assignment, int8: Assignment) -> _Type:
        if part.name in int8:
            return _INT8
        if self._roles[part.name].free and part.name not in fp32:
            return _LOW
        return _BF16 if part.name in bf16 else _FP32

    def _kernels(self, types: Mapping[NodeName, _Type]) -> Mapping[NodeName, NodeName]:
        """Return which kernel computes each node."""
        kernel = dict(self._kernel)
        for product, epilogue, read_twice in self._epilogues:
            is_apart = any(len({types[name] for name in readers}) > 1 for readers in read_twice)
            if is_apart or (self._apart and types[product] is _INT8):
                kernel |= dict.fromkeys(epilogue, min(epilogue))
        for core, products in self._cores:
            if {types[name] for name in products} in ({_LOW}, {_BF16}):
                kernel |= dict.fromkeys(core, min(products))
        return kernel

    def _moved(
        self, types: Mapping[NodeName, _Type], kernel: Mapping[NodeName, NodeName]
    ) -> dict[NodeName | None, float]:
        """Return the bytes of values that each kernel reads and writes; those of Casts for None."""
        moved = defaultdict[NodeName | None, float](float)
        for value in self._values:
            maker, own = value.maker, None if value.maker is None else kernel[value.maker.name]
            # A generated kernel takes a value as it is stored.
            wanted = [
                (p, r, types[p.name].read(r) if kernel[p.name] in self._library else None)
                for p, r in value.reads
                if kernel[p.name] != own
            ]
            if not wanted and not value.is_output:
                continue
            end = _LOW if value.end in self.low_io else _FP32
            made = None if maker is None else types[maker.name]
            stored = end if made is None else _FP32
            if made is not None and value.gives_low:
                stored = made.output
            kinds = {kind for _, _, kind in wanted} | ({end} if value.is_output else set())
            is_apart = self._apart and own in self._library
            # Integer sums are given in any type.
            if made is _INT8 and (is_apart or _FP32 in kinds):
                stored = _FP32
            wants = {stored if kind is None else kind for kind in kinds}
            quantised = wants & {_INT8} if maker is not None and not is_apart else set()
            if maker is None:
                written = {stored}
            elif maker.is_generated:
                written = (wants - {_INT8} | quantised) or {stored}
            else:
                written = quantised | ({stored} if wants - quantised else set())
            if maker is not None and not maker.is_free:
                moved[own] += value.elements * sum(kind.size for kind in written)
            casts = wants - written
            moved[None] += value.elements * sum(stored.size + kind.size for kind in casts)
            # Who quantises reads the zeros, and writes them.
            filled = max((self._filled(p, kind) for p, _, kind in wanted), default=1.0)
            moved[own if _INT8 in written else None] += value.elements * 2 * (filled - 1)
            # A product's operand and what is added to it are read apart.
            read = {
                (kernel[p.name], kind and p.name): (kind or stored).size
                * (r.elements * self._filled(p, kind))
                for p, r, kind in wanted
            }
            for (name, _), size in read.items():
                moved[name] += size
        return moved

    def _filled(self, part: Part, kind: _Type | None) -> float:
        return part.filled if self._apart and kind is _INT8 else 1.0


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
    builds = any(not runner.runs for runner in settings.targets)
    shapes_of = outside | inside
    model = CostModel(case.network, roles, shapes_of, low_io=low_io, runs=runs, int8_apart=builds)
    return model if model.cost(frozenset()) > 0 else None


class Prices(Struct, frozen=True):
    """What costs of plans are relative to.

    Attributes:
        model: The cost model of the network.
        least: Cost of everything low in the network without repairs, in bytes, > 0.
        fp32: Cost of everything in FP32 there, relative to `least`.
        tf32: The same with products in TF32.
    """

    model: CostModel
    least: float
    fp32: float
    tf32: float
