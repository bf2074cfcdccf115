"""Statistics of a model's tensors, computed inside ONNX Runtime so that few activations leave it.

`ExtremaProbe` adds three reductions per tensor and gets their results as one small vector.
`visit_elements` fetches tensors or some of their elements, a limited number of bytes at a time.
"""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.rounding import Steps, new_node
from halfwise.graph.bodies import carried
from halfwise.graph.dataflow import drop_unused_nodes, giving_out
from halfwise.graph.model import add_constant, is_standard, opset_of, tensor_name
from halfwise.graph.roles import is_float
from halfwise.graph.weights import weight_bytes
from halfwise.records import TensorName

LIVE_BYTES = 40 << 20, 256 << 20
"""Least and most bytes of fetched tensors that `visit_elements` keeps alive at a time.

In between, it keeps as many as the model needs anyway: its weights, here and in ONNX Runtime, or
two of its largest tensors.
"""

INT64 = ir.DataType.INT64
_REDUCTIONS = ("ReduceMax", "ReduceMin", "ReduceSum")
_PERMUTATIONS = frozenset(
    (
        *("DepthToSpace", "Flatten", "Identity", "Reshape"),
        *("SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze"),
    )
)
_PACKED, _SHAPES = "halfwise::packed", "halfwise::shapes"
TENSORS_AT_ONCE = 16
"""Tensors held or packed at a time, however large: bounds the number of runs; no result depends
on it."""


SELECTING_OPSET = 9
"""Where takes floats from here on."""


@dataclass(frozen=True)
class Extremum:
    """Extremum of one tensor on one sample.

    Attributes:
        absmax: Largest finite magnitude; 0 for a tensor that is empty or has no finite element, and
            before opset 9, where no operator selects them, for one that has any other.
        nonfinite: Number of NaN and infinite elements, exact up to 2²⁴.
        size: Number of elements.
    """

    absmax: float
    nonfinite: int
    size: int = field(default=0, compare=False)


def observable(model: ir.Model, *, bodies: bool = False) -> tuple[TensorName, ...]:
    """Return the FP32 tensors that a probe can see, in graph order.

    These are the graph's FP32 inputs and the FP32 outputs of the main graph's nodes; with `bodies`,
    also of those in bodies, which `inspect_samples` sees. Initializers and unused outputs are left
    out: asking for an unused optional output can make a kernel fail that would otherwise run. The
    state of a Loop or Scan is never optional.
    """
    nodes = model.graph.all_nodes() if bodies else model.graph
    computed = [v for n in nodes for v in _made(n) if v.name]
    return tuple(tensor_name(v) for v in (*model.graph.inputs, *computed) if is_float(v))


def _made(node: ir.Node) -> Iterator[ir.Value]:
    states = carried(node)
    return (v for v in node.outputs if v.uses() or v.is_graph_output() or v in states)


class ExtremaProbe:
    """A model that outputs the extremum of each chosen tensor, besides its own outputs.

    Its own outputs are bitwise equal to those of the plain model: the reductions only read. Each
    reduction runs as soon as its tensor exists, so it needs no more memory than plain inference.
    """

    def __init__(
        self,
        model: ir.Model,
        tensors: Sequence[TensorName],
        *,
        magnitudes: bool = True,
        exact: bool = False,
        runtime: Runtime = CPU,
    ) -> None:
        """Load `model` with its reductions.

        Args:
            model: Any model, such as a reference or an emulation; changed only while it loads.
            tensors: FP32 tensors of the main graph, computed or inputs.
            magnitudes: If False, every `absmax` and `size` stays 0, with a third of the nodes.
            exact: Count non-finite elements of all tensors from the start, for a model that has
                some: it is not loaded again then.
            runtime: Where it runs.

        Raises:
            BackendMissing: `runtime.device` is not available.
            CaseError: ONNX Runtime cannot load the model.
            KeyError: a tensor is not in the model's main graph.
        """
        self._model, self._runtime = model, runtime
        self._roots = roots(model.graph, tensors)
        self._measured = tuple(dict.fromkeys(self._roots.values()))
        self._reductions = _REDUCTIONS if magnitudes else _REDUCTIONS[-1:]
        self._suspects = dict.fromkeys(self._measured if exact else ())
        self._session: Session | None
        self._load()

    def release(self) -> None:
        """Free the session; another run loads it again."""
        self._session = None

    def _load(self) -> None:
        with _packed(self._model, self._measured, self._reductions, self._suspects):
            self._session = Session(self._model, runtime=self._runtime)

    def run(self, sample: Sample) -> tuple[dict[str, NDArray[Any]], dict[TensorName, Extremum]]:
        """Run the model on one sample.

        Tensors that seem to hold non-finite elements are counted exactly from then on, and at once
        by a second run: an overflowing sum of finite elements looks the same.

        Returns:
            The model's outputs by name, and the extremum of each chosen tensor.

        Raises:
            RunFailed: ONNX Runtime failed on this sample.
        """
        if self._session is None:
            self._load()
        assert self._session is not None
        outputs: dict[str, NDArray[Any]] = self._session.run(sample)
        shapes = outputs.pop(_SHAPES, np.zeros((len(self._measured), 2), np.int64))
        rows = outputs.pop(_PACKED, np.zeros(0, np.float32)).reshape(-1, len(self._reductions))
        found = dict(zip(self._measured, rows.tolist(), strict=True))
        suspects = {t for t, (*_, total) in found.items() if not math.isfinite(total)}
        if suspects:
            self._suspects |= dict.fromkeys(suspects)
            self.release()
            return self.run(sample)
        sized = zip(found.items(), shapes.reshape(-1, 2)[:, 1].tolist(), strict=True)
        extrema = {t: self._extremum(t, row, size) for (t, row), size in sized}
        return outputs, {t: extrema[root] for t, root in self._roots.items()}

    def _extremum(self, tensor: TensorName, row: Sequence[float], size: int) -> Extremum:
        *ends, last = row
        # Over no elements, the maximum is -inf and the minimum +inf.
        absmax = max(map(abs, ends)) if ends and ends[0] >= ends[1] else 0.0
        nonfinite = int(last) if tensor in self._suspects else 0
        return Extremum(absmax if math.isfinite(absmax) else 0.0, nonfinite, size)


class View(Struct, frozen=True):
    """Tensors that are examined together.

    Attributes:
        tensors: Names of computed tensors or graph inputs, of any type.
        visit: Called as `visit(sample index, *arrays)`, one array per name. It must not keep them.
        drawn: Size of each tensor on every sample, if the view gets `DRAWN` elements of each, from
            the same places; else 0.
    """

    tensors: tuple[TensorName, ...]
    visit: Callable[..., None]
    drawn: int = 0


def visit_elements(
    model: ir.Model,
    samples: Samples | Sequence[Sample],
    views: Sequence[View],
    sizes: Mapping[TensorName, int],
    *,
    runtime: Runtime = CPU,
    live_bytes: int | None = None,
) -> None:
    """Visit every view on every sample: chunk by chunk, in each the samples in order.

    ONNX Runtime keeps every tensor that is a graph output until the run ends, fetched or not. So
    views are split into chunks, each with a session that outputs only that chunk's tensors. The
    model runs once per sample and chunk.

    Args:
        model: Any model; changed in the end.
        samples: The samples; iterated once per chunk.
        views: Best in graph order, so that neighbours share tensors.
        sizes: Elements per FP32 tensor, to cut chunks; a tensor without a size counts as 0.
        runtime: Where it runs.
        live_bytes: Bytes of fetched tensors alive at a time, by default within `LIVE_BYTES`; a
            single view may exceed it.

    Raises:
        CaseError, BackendMissing, RunFailed: as for `Session`.
    """
    inputs = {tensor_name(v) for v in model.graph.inputs}
    chunks = [*_chunks(views, sizes, live_bytes or _affordable(model, sizes))]
    for number, chunk in enumerate(chunks, start=1):
        wanted = dict.fromkeys((t, view.drawn) for view in chunk for t in view.tensors)
        fetched = {w: _output(*w) for w in wanted if w[1] or w[0] not in inputs}
        session = None  # it holds as much memory as the new one will
        if fetched:
            part = model.clone() if number < len(chunks) else model
            _fetch(part, fetched)
            session = Session(part, runtime=runtime)
            del part
        for index, sample in enumerate(samples):
            results: dict[str, NDArray[Any]] = {}
            if session is not None:
                results = session.run(sample, list(fetched.values()), lent=True)
            for view in chunk:
                arrays = (
                    results[fetched[w]] if (w := (t, view.drawn)) in fetched else sample[t]
                    for t in view.tensors
                )
                view.visit(index, *map(np.asarray, arrays))
            # Otherwise they would stay alive while the next sample is computed.
            del results


def _affordable(model: ir.Model, sizes: Mapping[TensorName, int]) -> int:
    least, most = LIVE_BYTES
    return min(most, max(least, 2 * weight_bytes(model), 2 * 4 * max(sizes.values(), default=0)))


DRAWN = 1 << 14
"""Elements drawn from a large tensor on each sample: a share of a half is then known to 0.4 %, and
their median is within 0.4 % of the true median's rank (one standard deviation)."""


def _output(tensor: TensorName, drawn: int) -> str:
    return f"halfwise::drawn::{tensor}" if drawn else tensor


def _fetch(model: ir.Model, fetched: Iterable[tuple[TensorName, int]]) -> None:
    """Make a model output only tensors or elements of them, first ones first.

    Args:
        model: The model; changed in place.
        fetched: Tensors, and of each its size if elements are drawn from it, else 0.
    """
    graph, values = model.graph, _values(model.graph)
    places: dict[int, ir.Value] = {}
    first: list[ir.Node] = []
    outputs = []
    for tensor, size in fetched:
        value = values[tensor]
        if size:
            if size not in places:
                # Sorted, as the median and counts need no order, and memory has one.
                chosen = np.sort(np.random.default_rng(0).integers(size, size=DRAWN))
                places[size] = add_constant(graph, f"halfwise::places::{size}", chosen)
            name = _output(tensor, size)
            flat = new_node("Flatten", [value], f"{name}::flat", {"axis": 0})
            drawn = new_node("Gather", [flat.outputs[0], places[size]], name, {"axis": 1})
            first = [flat, drawn, *first]
            value = drawn.outputs[0]
        elif (
            (end := value.producer())
            and end not in first  # another of its outputs came before
            and not any(v.uses() for v in end.outputs)
        ):
            graph.remove(end)
            first = [end, *first]
        outputs.append(value)
    # Both last tensor first, for the reasons in `_packed`.
    if len(graph):
        graph.insert_before(graph[0], first)
    else:
        graph.extend(first)
    graph.outputs[:] = outputs[::-1]
    drop_unused_nodes(graph)


def shapes_of(
    model: ir.Model, names: Sequence[TensorName], sample: Sample, runtime: Runtime
) -> dict[TensorName, tuple[int, ...]]:
    """Return the shapes of computed tensors; `names` are in graph order.

    The model runs once and outputs only shapes, so no tensor lives longer than needed.
    """
    if not names:
        return {}
    copy = giving_out(model, names)
    values = list(copy.graph.outputs)
    copy.graph.outputs.clear()
    # Written last tensor first: otherwise ONNX Runtime would run the whole model before the first
    # Shape (see `_packed`).
    for value in reversed(values):
        shape = ir.val(f"{value.name}::shape", type=ir.TensorType(ir.DataType.INT64))
        copy.graph.append(ir.Node("", "Shape", [value], outputs=[shape], name=shape.name))
        copy.graph.outputs.append(shape)
    outputs = Session(copy, runtime=runtime).run(sample)
    return {name: tuple(map(int, outputs[f"{name}::shape"])) for name in names}


def _chunks(
    views: Sequence[View], sizes: Mapping[TensorName, int], live_bytes: int
) -> Iterator[list[View]]:
    chunk: list[View] = []
    alive: dict[tuple[TensorName, int], int] = {}
    total = 0
    for view in views:
        drawn = view.drawn
        new = {(t, drawn): 4 * (DRAWN if drawn else sizes.get(t, 0)) for t in view.tensors}
        total += sum(size for t, size in new.items() if t not in alive)
        if chunk and total > live_bytes:
            yield chunk
            chunk, alive, total = [], {}, sum(new.values())
        chunk.append(view)
        alive |= new
    if chunk:
        yield chunk


def _values(graph: ir.Graph) -> dict[TensorName, ir.Value]:
    values = (*graph.inputs, *(v for node in graph for v in node.outputs))
    return {tensor_name(v): v for v in values if v.name}


def roots(graph: ir.Graph, tensors: Sequence[TensorName]) -> dict[TensorName, TensorName]:
    """Return, for each tensor, the tensor that it is a permutation of; in most cases itself.

    Both have the same elements. A third of a transformer's tensors are such permutations.
    """
    values = _values(graph)
    return {tensor: tensor_name(_root(values[tensor])) for tensor in tensors}


def _root(value: ir.Value) -> ir.Value:
    while (node := value.producer()) is not None:
        source = node.inputs[0] if node.inputs else None
        if (
            not is_standard(node, *_PERMUTATIONS)
            or source is None
            or source.is_initializer()
            or not is_float(source)
        ):
            break
        value = source
    return value


def _reduced(
    steps: Steps, same: ir.Value, ops: Sequence[str], *, exact: bool, selects: bool
) -> list[ir.Value]:
    """Return the results of `ops`; if `exact`, the last one counts."""
    values = dict.fromkeys(ops, same)
    if exact:
        nothing = steps.op("Sub", [same, same])  # NaN where not finite
        lost = steps.op("Cast", [nothing], {"to": int(ir.DataType.BOOL)}, ir.DataType.BOOL)
        count = steps.op("Cast", [lost], {"to": int(ir.DataType.FLOAT)})
        if selects and len(ops) > 1:
            zero = steps.op("Sub", [count, count])
            values = dict.fromkeys(ops, steps.op("Where", [lost, zero, same]))
        values[_REDUCTIONS[-1]] = count
    return [steps.op(op, [value]) for op, value in values.items()]


@contextmanager
def _packed(
    model: ir.Model,
    tensors: Sequence[TensorName],
    ops: Sequence[str],
    suspects: Container[TensorName] = (),
) -> Iterator[None]:
    """Give `model` the results of `ops` on each flattened tensor as an output, within the block.

    Of `suspects`, all but the last op are over finite elements, and that is the number of others.
    If there are several ops, another output has the flattened shapes, [1, elements] each.

    Flatten shares its input's memory, turns any shape (scalar and empty included) into
    [1, elements], and lets the ops run without axes, whose form differs between opsets.

    Results do not depend on the order of nodes, but time and memory do. ONNX Runtime orders nodes
    by depth-first search from the outputs, last written first. So the last tensor is written first,
    or the whole model would run before the first reduction. While loading, it also walks forwards,
    first written first, through a list of all nodes that are ready. Behind the model, the new nodes
    would all wait in that list, which takes n² steps. One Concat of n inputs takes n² steps too,
    hence a Concat of Concats. A Shape that nothing in the reductions reads would run after all of
    them, and hold its tensor until then, hence a Reshape by it, which changes nothing.

    In place: copying a graph takes as long as loading it.
    """
    if not tensors:
        yield
        return
    graph, values = model.graph, _values(model.graph)
    selects = opset_of(model) >= SELECTING_OPSET
    groups: list[list[ir.Node]] = []
    sized = len(ops) > 1
    ends: dict[str, list[ir.Value]] = {
        kind: [] for kind in ((_SHAPES, _PACKED) if sized else (_PACKED,))
    }
    for start in range(0, len(tensors), TENSORS_AT_ONCE):
        nodes: list[ir.Node] = []
        parts: dict[str, list[ir.Value]] = {kind: [] for kind in ends}
        for i, name in enumerate(tensors[start : start + TENSORS_AT_ONCE], start):
            steps = Steps(f"halfwise::{i}")
            same = steps.op("Flatten", [values[name]], {"axis": 0})
            if sized:
                parts[_SHAPES].append(steps.op("Shape", [same], dtype=INT64))
                same = steps.op("Reshape", [same, parts[_SHAPES][-1]])
            parts[_PACKED] += _reduced(steps, same, ops, exact=name in suspects, selects=selects)
            nodes = [*steps.nodes, *nodes]
        for kind, results in parts.items():
            nodes.append(_joined(results, f"{kind}::{start}"))
            ends[kind].append(nodes[-1].outputs[0])
        groups.append(nodes)
    last = [_joined(of_groups, kind) for kind, of_groups in ends.items()]
    graph.extend(last)
    added = [n for group in reversed(groups) for n in group]
    for node in added:
        node.outputs[0].type = None  # ONNX Runtime infers it sooner than it is written and read
    graph.insert_before(graph[0], added)
    graph.outputs.extend(node.outputs[0] for node in last)
    try:
        yield
    finally:
        del graph.outputs[-len(last) :]
        graph.remove([*added, *last], safe=True)


def _joined(values: Sequence[ir.Value], name: str) -> ir.Node:
    dtype = INT64 if name.startswith(_SHAPES) else ir.DataType.FLOAT
    return new_node("Concat", values, name, {"axis": 0}, dtype)
