"""A model too large for its device, run part by part: each part brings its weights and drops them.

The parts are consecutive ranges of the main graph's nodes, each a session with its large weights
as inputs. ONNX Runtime copies inputs to the device when a run begins and frees them when it ends,
so the device holds the weights of one part, and weights stay in mapped files on the host.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from msgspec import Struct
from numpy.typing import NDArray
from onnx import TensorProto, ValueInfoProto, helper

from halfwise.errors import RunFailed
from halfwise.graph.protobufs import bodies_of
from halfwise.wording import size_of

Sizes = Mapping[str, int]
"""Bytes of each large weight, by name."""


class _Part(Struct, frozen=True):
    """A part of a model.

    Attributes:
        session: Runs it.
        inputs: Names of all that it reads: inputs of the model, large weights, values of parts
            before it.
        outputs: Names of what later parts read, or the model gives.
    """

    session: ort.InferenceSession
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Parts:
    """A model as a sequence of sessions, used like one `InferenceSession`."""

    def __init__(
        self,
        proto: onnx.ModelProto,
        weights: Mapping[str, ort.OrtValue],
        sizes: Sizes,
        most: float,
        start: Callable[[onnx.ModelProto], ort.InferenceSession],
    ) -> None:
        """Cut a model and load its parts, without weights.

        Args:
            proto: A `divisible` model, with types of what operators do not tell; large weights lie
                in a file that may not exist. Not changed.
            weights: The large weights by name, for each run.
            sizes: Bytes that each of them takes on the device during a run; 0 if it is there.
            most: Bytes of weights that a part should bring; as many are left for values.
            start: Makes the session of a part.

        Raises:
            RunFailed: what cannot be divided brings more than twice that.
        """
        self._weights = weights
        outputs = [value.name for value in proto.graph.output]
        self._parts = [
            _Part(
                start(part),
                tuple(value.name for value in part.graph.input),
                tuple(value.name for value in part.graph.output),
            )
            for part in _cut(onnx.shape_inference.infer_shapes(proto), sizes, most)
        ]
        made = {o.name: o for part in self._parts for o in part.session.get_outputs()}
        self._outputs = [made[name] for name in outputs]

    def get_outputs(self) -> list[ort.NodeArg]:
        """Return the model's outputs, in order."""
        return self._outputs

    def get_providers(self) -> list[str]:
        """Return the providers of its sessions."""
        return list(self._parts[0].session.get_providers())

    def run(
        self, names: Sequence[str], sample: Mapping[str, Any], options: ort.RunOptions
    ) -> list[Any]:
        """Return outputs; of values between parts, only those are kept that a later part reads."""
        wanted = frozenset(names)
        asked: list[tuple[_Part, list[str], frozenset[str]]] = []
        for part in reversed(self._parts):
            if outputs := [name for name in part.outputs if name in wanted]:
                asked.append((part, outputs, wanted))
                wanted |= {*part.inputs}
        values = dict(sample)
        for part, outputs, later in reversed(asked):
            known = (values, self._weights)
            given = {n: one[n] for n in part.inputs for one in known if n in one}
            values |= zip(outputs, part.session.run(outputs, given, options), strict=True)
            values = {name: value for name, value in values.items() if name in later}
        return [values[name] for name in names]


def divisible(graph: onnx.GraphProto) -> bool:
    """Return whether all outputs of a graph are of its nodes, none an input or a constant."""
    return {o.name for o in graph.output} <= {name for node in graph.node for name in node.output}


def _cut(proto: onnx.ModelProto, sizes: Sizes, most: float) -> list[onnx.ModelProto]:
    """Return the parts of a model in order, each with all it reads as inputs.

    Where a part would bring more than `most` bytes of weights, it ends at the place in its second
    half that fewest values cross.

    Raises:
        RunFailed: see `Parts`.
    """
    graph = proto.graph
    unordered = [_reads(node) for node in graph.node]
    order = _order(graph, unordered)
    read, nodes = [unordered[i] for i in order], [graph.node[i] for i in order]
    about = {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}
    given = {value.name for value in graph.output}
    made = {name: at for at, node in enumerate(nodes) for name in node.output if name}
    last = dict(made)
    for at, reads in enumerate(read):
        last |= dict.fromkeys(reads & made.keys(), at)
    # How many values cross the place before each node, and how many that cannot.
    crossing, stuck = np.zeros((2, len(nodes) + 1), np.int64)
    for name, at in made.items():
        for counts in (crossing, stuck) if not _may_cross(about.get(name)) else (crossing,):
            counts[at + 1] += 1
            counts[last[name] + 1] -= 1
    crossing, stuck = np.cumsum(crossing), np.cumsum(stuck)
    brought = [[(name, sizes[name]) for name in names if name in sizes] for names in read]
    ends = [0, *_ends(brought, most, crossing, stuck == 0), len(nodes)]
    constants = {tensor.name: tensor for tensor in graph.initializer}
    parts = []
    for start, end in pairwise(ends):
        names = dict.fromkeys(name for one in read[start:end] for name in sorted(one))
        own = {name for node in nodes[start:end] for name in node.output if name}
        inputs = [
            _as_input(constants[name]) if name in sizes else about[name]
            for name in names
            if name not in own and (name in sizes or name not in constants)
        ]
        _refuse_beyond(2 * most, nodes[start], sum(sizes.get(name, 0) for name in names))
        outputs = [about[n] for n in about if n in own and (last[n] >= end or n in given)]
        held = [constants[name] for name in names if name in constants and name not in sizes]
        part = helper.make_graph(nodes[start:end], graph.name, inputs, outputs, held)
        kept = {"opset_imports": proto.opset_import, "functions": proto.functions}
        parts.append(helper.make_model(part, ir_version=proto.ir_version, **kept))
    return parts


def _refuse_beyond(most: float, node: onnx.NodeProto, nbytes: int) -> None:
    if nbytes > most:
        raise RunFailed(
            f"The part of the model that begins with node {node.name!r} cannot be divided further "
            f"and reads {size_of(nbytes)} of weights; the device has room for "
            f"{size_of(int(most))} at a time.",
            "Use a device with more memory, or --device cpu.",
            node=node.name,
        )


def _ends(
    brought: Sequence[Sequence[tuple[str, int]]],
    most: float,
    crossing: NDArray[np.int64],
    possible: NDArray[np.bool_],
) -> Iterator[int]:
    """Yield the places, as indices of nodes, at which parts end."""
    start = at = 0
    while at < len(brought):
        reached: list[int] = []
        weights: dict[str, int] = {}
        for at in range(start, len(brought)):
            weights |= brought[at]
            if (total := sum(weights.values())) > most and any(possible[start + 1 : at + 1]):
                break
            reached.append(total)
        else:
            return
        places = [p for p in range(start + 1, at + 1) if possible[p]]
        half = [p for p in places if 2 * reached[p - start - 1] >= most] or places[-1:]
        start = min(half, key=lambda place: (crossing[place], -place))
        yield start


def _order(graph: onnx.GraphProto, read: Sequence[frozenset[str]]) -> list[int]:
    """Return the order of nodes in which little crosses from part to part.

    Of those that are ready, the first written one; what constants alone decide, such as a widened
    weight, just before its first reader.
    """
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    needs = {i: {makers[n] for n in names if n in makers} for i, names in enumerate(read)}
    inputs = {value.name for value in graph.input}
    fixed: set[int] = set()
    rank = dict(enumerate(range(len(read))))
    sorted_once = list(TopologicalSorter(needs).static_order())
    for i in sorted_once:
        if needs[i] <= fixed and read[i].isdisjoint(inputs):
            fixed.add(i)
    first = dict.fromkeys(fixed, len(read))
    for i in reversed(sorted_once):
        rank[i] = first.get(i, i)
        for maker in needs[i] & fixed:
            first[maker] = min(first[maker], rank[i])
    sorter, ready, order = TopologicalSorter(needs), list[tuple[int, int]](), list[int]()
    sorter.prepare()
    while sorter.is_active():
        for i in sorter.get_ready():
            heapq.heappush(ready, (rank[i], i))
        _, i = heapq.heappop(ready)
        order.append(i)
        sorter.done(i)
    return order


def _reads(node: onnx.NodeProto) -> frozenset[str]:
    """Return the names of what a node reads, in its bodies too, from outside of it."""
    names = {name for name in node.input if name}
    for body in bodies_of(node):
        own = {one.name for one in (*body.input, *body.initializer)}
        own.update(name for inner in body.node for name in inner.output)
        names.update(*(_reads(inner) - own for inner in body.node))
        names.update({value.name for value in body.output} - own)
    return frozenset(names)


def _may_cross(value: ValueInfoProto | None) -> bool:
    """Return whether a value can leave a session and enter another: a tensor of NumPy's types."""
    if value is None or not value.type.HasField("tensor_type"):
        return False
    kind = value.type.tensor_type.elem_type
    return kind not in (TensorProto.UNDEFINED, TensorProto.STRING) and (
        helper.tensor_dtype_to_np_dtype(kind).isbuiltin == 1
    )


def _as_input(tensor: TensorProto) -> ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
