"""Runs of a switched model that start late: what lies before the first low node is the reference.

Most trials of a search keep the beginning of the network in FP32, where every value is that of the
reference. So a switched model may begin at one of a few cuts, with the tensors that cross it as
inputs. What lies between two cuts is in an If, which is skipped if the run begins later, and then
gives the tensors that crossed the cut (others are empty, as nothing reads them). Results are equal
to the bit, as the reference is computed by the same kernels from the same numbers.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import CPU, HELD_BYTES, Case, Runtime, Sample, Settings, hash_sample
from halfwise.emulation.ort import Session
from halfwise.emulation.rounding import Rounded, new_node
from halfwise.errors import RunFailed
from halfwise.graph.dataflow import giving_out, operands
from halfwise.graph.model import node_name
from halfwise.graph.roles import Role, Roles, bodies, is_float
from halfwise.graph.weights import is_large
from halfwise.metrics import Outputs
from halfwise.records import NodeName, TensorName

SIZE = 24
"""Approximate nodes per stretch; no result depends on it. Longer ones have fewer borders, but more
often mix precisions."""

LONG = 64
"""The same if no stretch mixes precisions. A run then has fewer borders; ONNX Runtime needs up to
three times as long to load a body of a thousand nodes."""

_END = 1 << 62


def stretches(
    nodes: Sequence[ir.Node],
    roles: Roles,
    size: int = SIZE,
    apart: Container[NodeName] = frozenset(),
) -> list[list[ir.Node]]:
    """Return the nodes in order, cut where few values cross; nodes that cannot join are alone.

    Args:
        nodes: The nodes of the main graph, in topological order.
        roles: Their roles.
        size: Approximate nodes per stretch; the actual number is 0.5 to 1.5 times that.
        apart: Nodes likely to differ in precision from their neighbours.
    """
    last = _last_readers(nodes, roles)
    parts: list[list[ir.Node]] = []
    for first, end in _joinable(nodes, roles, apart):
        start = first
        while start < end:
            cut = _best_cut(nodes, last, start, end, size)
            part = list(nodes[start:cut])
            several = sum(roles[node_name(n)].free for n in part) > 1
            parts += [part] if several else [[n] for n in part]
            start = cut
    return parts


def _joinable(
    nodes: Sequence[ir.Node], roles: Roles, apart: Container[NodeName]
) -> Iterator[tuple[int, int]]:
    """Yield maximal ranges of nodes that an If may hold and that likely share a precision."""
    start, side = 0, False
    for i, node in enumerate(nodes):
        free, joins = roles[node_name(node)].free, _may_join(node, roles)
        here = node_name(node) in apart if free else side
        if start < i and (not joins or here != side):
            yield start, i
            start = i
        side = here
        if not joins:
            yield i, i + 1
            start = i + 1
    if start < len(nodes):
        yield start, len(nodes)


def _may_join(node: ir.Node, roles: Roles) -> bool:
    role = roles[node_name(node)]
    if bodies(node) or role.role is Role.PINNED:
        return False
    return role.free or all(can_leave_if(v) for v in node.outputs if v.name)


def can_leave_if(value: ir.Value) -> bool:
    """Return whether ONNX Runtime's If can output `value`: no sequences, no packed types."""
    if not isinstance(value.type, ir.TensorType) or value.dtype is None:
        return False
    return value.dtype in (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL) or is_float(
        value
    )


def _last_readers(nodes: Sequence[ir.Node], roles: Roles) -> dict[ir.Value, int]:
    """Return where each value is read last; `_END` for graph outputs, unread values left out."""
    place = {node_name(n): i for i, n in enumerate(nodes)}
    last: dict[ir.Value, int] = {}
    for node in nodes:
        for value in node.outputs:
            readers = [place[roles.part(use.node).decider] for use in value.uses()]
            if readers or value.is_graph_output():
                last[value] = _END if value.is_graph_output() else max(readers)
    return last


def _best_cut(
    nodes: Sequence[ir.Node], last: dict[ir.Value, int], start: int, end: int, size: int
) -> int:
    """Return where a stretch from `start` ends: the latest place that the fewest values cross."""
    if end - start <= size * 3 // 2:
        return end
    cuts = range(start + max(1, size // 2), start + max(1, size * 3 // 2) + 1)
    return min(cuts, key=lambda cut: (_crossing_size(nodes[start:cut], last, cut), -cut))


def _crossing_size(part: Iterable[ir.Node], last: dict[ir.Value, int], cut: int) -> int:
    return sum(is_float(v) and last.get(v, -1) >= cut for n in part for v in n.outputs)


CUTS = 5
"""Cuts of a network; on YOLOX nano, any number of them would save only a tenth of a run more."""
FEWEST = 3 * SIZE
"""Nodes from which cuts pay: three stretches."""


@dataclass(frozen=True)
class Start:
    """A cut where runs may begin.

    Attributes:
        nodes: How many switchable nodes lie before it.
        skips: The input of the switched model that says whether a run begins here or later, bool[].
        given: Tensors of the network that cross the cut, each with the input that takes it if a run
            begins here, and its type.
    """

    nodes: int
    skips: str
    given: Mapping[TensorName, tuple[str, ir.DataType]]


def cuts_for(case: Case, settings: Settings) -> int:
    """Return how many cuts a case's network should have.

    None on CUDA, where kernels need not give the same bits in a branch, and none if weights are too
    large for one more session.
    """
    nodes = sum(1 for _ in case.network.nodes())
    too_large = is_large(case.network.model, settings.large_from)
    pays = nodes >= FEWEST and settings.runtime.device == "cpu" and not too_large
    return CUTS if pays else 0


def cuts_of(count: int, cuts: int) -> list[int]:
    """Return after how many of `count` nodes to cut: closer together at the beginning.

    There tensors are largest, and nodes take longest.
    """
    return [round(count * (i / (cuts + 1)) ** 1.5) for i in range(1, cuts + 1)]


@dataclass
class Cutter:
    """Cuts the graph of a finished switched model; call it in the order of the cuts.

    Attributes:
        graph: The graph; gets the inputs of each cut.
        switches: The input that nodes outside of all branches read switches from.
        rounded: What low nodes see of the network's values, by name; updated.
        rounding: Returns nodes that round a value, which stands for a tensor of the network.
        starts: The cuts so far.
    """

    graph: ir.Graph
    switches: ir.Value
    rounded: dict[str, ir.Value]
    rounding: Callable[[ir.Value, str, ir.Value], Rounded]
    starts: list[Start] = field(default_factory=list)
    _fed: dict[TensorName, ir.Value] = field(default_factory=dict)
    _cut: list[ir.Node] = field(default_factory=list)

    def cut(self, names: Container[str | None], nodes: int) -> None:
        """Let runs begin after some nodes, if that is possible.

        Args:
            names: Names of what the nodes give.
            nodes: How many switchable nodes lie before the cut.
        """
        every = list(self.graph)
        ending = [i for i, n in enumerate(every) if any(v.name in names for v in n.outputs)]
        end = ending[-1] + 1 if ending else 0
        reading = self._reading(every[:end])
        before = [node for node in every[:end] if node not in reading]
        read = {value for node in every[end:] for value in operands(node)}
        crossing = _crossing(before, read)
        wide = {value: name for name, value in self.rounded.items()}
        inputs = {v.name for v in self.graph.inputs}
        dtypes = {
            name: ir.DataType.FLOAT if value in wide else value.dtype or ir.DataType.FLOAT
            for value in crossing
            if (name := TensorName(wide.get(value, value.name or ""))) not in inputs
        }
        part = [node for node in before if node not in self._cut]
        leaving = _crossing(part, read)
        if not dtypes or not leaving or not all(map(can_leave_if, crossing)):
            return
        prefix = f"halfwise::start{len(self.starts)}"
        skips = ir.val(prefix, ir.DataType.BOOL, ir.Shape([]))
        self.graph.inputs.append(skips)
        for name, dtype in dtypes.items():
            if name not in self._fed:
                self._fed[name] = ir.val(f"{prefix}::{name}", dtype)
                self.graph.inputs.append(self._fed[name])
        fed = {v.name: v for v in self.graph.inputs} | self._fed
        taken = [self._taken(v, wide, fed, f"{v.name}::{prefix}") for v in leaving]
        ends, steps = [one[-1].outputs[0] for one in taken], [n for one in taken for n in one]
        skipped = ir.Graph([], ends, nodes=steps, name=f"{prefix}::skipped")
        self._cut.append(self._enclose(part, every[end - 1], leaving, skipped, skips))
        taking = {name: (self._fed[name].name or "", dtype) for name, dtype in dtypes.items()}
        self.starts.append(Start(nodes, prefix, taking))

    def _reading(self, nodes: Sequence[ir.Node]) -> set[ir.Node]:
        """Return the nodes that read switches: others after the cut may read the same ones."""
        readers = set[ir.Node]()
        for node in nodes:
            source = node.inputs[0] if node.op_type == "Gather" else None
            if source is not None and (source is self.switches or source.producer() in readers):
                readers.add(node)
        return readers

    def _taken(
        self,
        value: ir.Value,
        wide: Mapping[ir.Value, str],
        sources: Mapping[str | None, ir.Value],
        name: str,
    ) -> Sequence[ir.Node]:
        """Return nodes that give a crossing value from what was given, the last one itself."""
        if value not in wide:
            source = sources[value.name]
            return [new_node("Identity", [source], name, dtype=value.dtype or ir.DataType.FLOAT)]
        tensor = wide[value]
        return self.rounding(sources[tensor], name, ir.val(tensor, ir.DataType.FLOAT)).nodes

    def _enclose(
        self,
        before: Sequence[ir.Node],
        last: ir.Node,
        crossing: Sequence[ir.Value],
        skipped: ir.Graph,
        skips: ir.Value,
    ) -> ir.Node:
        """Move nodes into a branch of an If, which takes their place; return it."""
        inside = {*before, *(n for node in before for n in _within(node))}
        # Without shapes: ONNX Runtime trusts those of an If's outputs, and some are empty.
        outer = {v: ir.Value(name=v.name, type=v.type) for v in crossing}
        self.rounded.update({n: outer[v] for n, v in self.rounded.items() if v in outer})
        for value, new in outer.items():
            for use in list(value.uses()):
                if use.node not in inside:
                    use.node.replace_input_with(use.idx, new)
        for i, value in enumerate(self.graph.outputs):
            if value in outer:
                self.graph.outputs[i] = outer[value]
        chosen = ir.Node("", "If", [skips], outputs=list(outer.values()), name=f"{skips.name}::if")
        self.graph.insert_after(last, chosen)
        self.graph.remove(before)
        whole = ir.Graph([], list(crossing), nodes=before, name=f"{skips.name}::before")
        chosen.attributes["then_branch"] = ir.AttrGraph("then_branch", skipped)
        chosen.attributes["else_branch"] = ir.AttrGraph("else_branch", whole)
        return chosen


def _crossing(before: Sequence[ir.Node], read: Container[ir.Value]) -> list[ir.Value]:
    """Return the values of nodes that are read later or are the graph's outputs, in order."""
    made = (value for node in before for value in node.outputs)
    return [value for value in made if value in read or value.is_graph_output()]


def _within(node: ir.Node) -> Sequence[ir.Node]:
    return [inner for body in bodies(node) for inner in body.all_nodes()]


class References:
    """Tensors of the FP32 model at the cuts of its switched model, for samples that are run often.

    They are computed when a sample could use them for the second time.
    """

    def __init__(
        self,
        model: ir.Model,
        starts: Sequence[Start],
        runtime: Runtime = CPU,
        most: int = HELD_BYTES,
    ) -> None:
        """Take the FP32 model, the cuts, where to run, and how many bytes may be held."""
        self._model, self._runtime, self._most = model, runtime, most
        self._every = self._starts = starts
        self._unused: dict[str, np.ndarray] = {}
        for start in starts:
            self._unused[start.skips] = np.array(False)
            for taking, dtype in start.given.values():
                self._unused[taking] = np.zeros(0, dtype.numpy())
        self._known: dict[str, Outputs] = {}
        self._wanted: dict[str, int] = {}
        self._last: tuple[Sample, str] | None = None
        self._each: int | None = None

    def inputs(self, sample: Sample, low_from: int) -> Mapping[str, np.ndarray]:
        """Return the inputs of all cuts: the run begins at the last cut that is possible and known.

        Args:
            sample: The sample.
            low_from: How many switchable nodes come before the first low one.
        """
        held = self._of(sample) if any(s.nodes <= low_from for s in self._starts) else None
        possible = [start for start in self._starts if start.nodes <= low_from]
        if held is None or not possible:
            return self._unused
        resumed = {taking: held[name] for name, (taking, _) in possible[-1].given.items()}
        # By place, as a cut that is not used may have as many switchable nodes before it.
        before = self._every[: self._every.index(possible[-1]) + 1]
        skipped = {start.skips: np.array(True) for start in before}
        return {**self._unused, **skipped, **resumed}

    def forget(self) -> None:
        """Free all tensors."""
        self._known.clear()
        self._last = None

    def _of(self, sample: Sample) -> Outputs | None:
        """Return what is held for a sample; None if other samples need the memory more."""
        if self._last is None or self._last[0] is not sample:
            self._last = sample, hash_sample(sample)
        key = self._last[1]
        self._wanted[key] = wanted = self._wanted.get(key, 0) + 1
        if key in self._known or wanted < 2:
            return self._known.get(key)
        if self._each is not None and self._each > self._free():
            rarest = self._rarest()
            if rarest is None or wanted <= 2 * self._wanted[rarest]:
                return None
        try:
            tensors = self._computed(sample)
        except RunFailed:  # for want of memory or time: the trial itself may still run
            self._starts = ()
            return None
        self._each = _size(tensors)
        while self._each > self._free() and (rarest := self._rarest()):
            del self._known[rarest]
        self._known[key] = tensors
        return tensors

    def _free(self) -> int:
        return self._most - sum(map(_size, self._known.values()))

    def _rarest(self) -> str | None:
        return min(self._known, key=self._wanted.__getitem__, default=None)

    def _computed(self, sample: Sample) -> Outputs:
        """Return the tensors at the cuts; cuts whose tensors are too large are given up."""
        names = dict.fromkeys(name for start in self._starts for name in start.given)
        tensors = Session(giving_out(self._model, names), runtime=self._runtime).run(sample)
        held, starts = dict[str, NDArray[np.generic]](), list[Start]()
        for start in self._starts:
            both = held | {name: tensors[name] for name in start.given}
            if _size(both) <= self._most:
                held, starts = both, [*starts, start]
        self._starts = starts
        return held


def _size(tensors: Outputs) -> int:
    return sum(array.nbytes for array in tensors.values())
