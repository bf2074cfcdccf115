"""Bodies of If, Loop and Scan: as networks of their own, and what is counted in all their runs."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import count
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import Runtime, Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.rounding import Steps
from halfwise.graph.bodies import Key, bodies_in, bodies_of, is_observable
from halfwise.graph.dataflow import (
    captured,
    captured_by,
    giving_out,
    operands,
    replace_reads,
)
from halfwise.graph.model import (
    Network,
    add_constant,
    constant_array,
    node_name,
    opset_of,
    tensor_name,
)
from halfwise.graph.weights import FLOATS
from halfwise.records import Observations, TensorName, replace

RUNS = 16
"""Most runs of a body that are observed per sample, evenly spread over its iterations. Our choice:
ranges of a state grow or settle over many more."""


class BodyRuns(Struct, frozen=True, eq=False):
    """A body as a network of its own, and its runs.

    Attributes:
        network: It; what the body captures is an input.
        runs: What it reads in each observed run.
        samples: Index of the sample that each run belongs to.
        captured: The captured tensors.
    """

    network: Network
    runs: Samples
    samples: tuple[int, ...]
    captured: frozenset[TensorName]

    def of_samples(self, seen: Observations) -> Observations:
        """Return what was seen in the runs as seen on the samples, without what is captured."""
        most = len(set(self.samples))
        tensors = []
        for one in seen.tensors:
            if one.tensor not in self.captured:
                detail, worst = one.detail, self.samples[one.worst_sample]
                if detail is not None:
                    detail = replace(detail, samples=min(detail.samples, most))
                tensors.append(replace(one, worst_sample=worst, detail=detail))
        inner = (replace(one, worst_sample=self.samples[one.worst_sample]) for one in seen.inner)
        return replace(seen, tensors=tuple(tensors), inner=tuple(inner))


def observed_bodies(network: Network, samples: Samples, runtime: Runtime) -> Iterator[BodyRuns]:
    """Yield the bodies of the main graph's nodes that run on a sample.

    Those that are not observable (`is_observable`) are left out.

    Raises:
        CaseError, BackendMissing, RunFailed: as for `Session`.
    """
    for node in network.nodes():
        if bodies_of(node) and is_observable(node, network.opset):
            yield from _Holder(network, node, samples, runtime).observed()


def _alone(network: Network, node: ir.Node, body: ir.Graph) -> Network:
    """Return a body of a node as a network whose inputs are its own, then what it captures."""
    graph = body.clone(allow_outer_scope_values=True)
    graph.opset_imports.update(network.model.opset_imports)
    for value in captured_by(graph):
        if value.const_value is not None:
            inner = add_constant(graph, tensor_name(value), constant_array(value))
        else:
            inner = ir.val(value.name)
            inner.type, inner.shape = value.type, value.shape
            graph.inputs.append(inner)
        replace_reads(graph, value, inner)
    graph.outputs[:] = dict.fromkeys(graph.outputs)
    if node.op_type == "Loop":
        # What is carried may change its shape, and ONNX Runtime checks shapes of a model's inputs.
        for value in graph.inputs[2 : len(node.inputs)]:
            value.shape = None
    return Network(ir.Model(graph, ir_version=network.model.ir_version), None, "", {})


Places = list[tuple[int, int]]
"""Runs: of each the sample, and its number among those of the sample."""


class _Holder(Struct, frozen=True, eq=False, dict=True):
    """A node with bodies; its runs are computed again whenever they are asked for.

    Attributes:
        network: The network whose main graph it is in.
        node: It.
        samples: The network's.
        runtime: Where all runs.
    """

    network: Network
    node: ir.Node
    samples: Samples
    runtime: Runtime

    @cached_property
    def _bodies(self) -> Mapping[str, Network]:
        return {key: _alone(self.network, self.node, body) for key, body in bodies_of(self.node)}

    @cached_property
    def _before(self) -> Session | None:
        """What computes the operands; None if all are inputs and constants."""
        names = [tensor_name(v) for v in operands(self.node) if v.producer() is not None]
        model = giving_out(self.network.model, names)
        return Session(model, runtime=self.runtime) if names else None

    @cached_property
    def _body(self) -> Session:
        return Session(self._bodies["body"].model, runtime=self.runtime)

    def observed(self) -> Iterator[BodyRuns]:
        """Yield the bodies that run."""
        runs_of = lru_cache(maxsize=1)(self._runs)
        places: dict[str, Places] = {}
        for sample in range(len(self.samples)):
            for key, runs in runs_of(sample).items():
                places.setdefault(key, []).extend((sample, run) for run in range(len(runs)))
        outside = frozenset(map(tensor_name, captured(self.node)))
        for key, where in places.items():

            def load(index: int, key: str = key, where: Places = where) -> Sample:
                sample, run = where[index]
                return runs_of(sample)[key][run]

            ids = tuple(f"{self.samples.ids[sample]}, run {run}" for sample, run in where)
            seen = Samples(ids, load).held()
            yield BodyRuns(self._bodies[key], seen, tuple(s for s, _ in where), outside)

    def _runs(self, index: int) -> Mapping[str, list[Sample]]:
        """Return what each body reads in its runs on a sample."""
        sample, node = self.samples[index], self.node
        values = {**sample, **(self._before.run(sample) if self._before else {})}
        values |= {
            tensor_name(v): constant_array(v) for v in operands(node) if v.const_value is not None
        }
        read = [None if v is None or not v.name else values[v.name] for v in node.inputs]
        if node.op_type == "If":
            key = "then_branch" if np.all(read[0]) else "else_branch"
            return {key: [self._fed(key, (), values)]}
        runs: list[Sample] = []
        spread = 1
        for step, formals in enumerate(self._steps(read, values)):
            if step % spread == 0:
                runs.append(formals)
            if len(runs) > RUNS:
                runs, spread = runs[::2], 2 * spread
        return {"body": runs}

    def _fed(self, key: str, formals: Sequence[Any], values: Mapping[str, Any]) -> Sample:
        """Return what a body reads: its own inputs, and what it captures."""
        fed: dict[str, NDArray[Any]] = {}
        for place, value in enumerate(self._bodies[key].graph.inputs):
            name = tensor_name(value)
            array = np.asarray(formals[place] if place < len(formals) else values[name])
            # A step or condition may be declared as a vector of one.
            is_one = array.size == 1 and value.shape is not None
            fed[name] = array.reshape([1] * len(value.shape or ())) if is_one else array
        return fed

    def _steps(self, read: Sequence[Any], values: Mapping[str, Any]) -> Iterator[Sample]:
        """Yield what the body of a Loop or Scan reads in each iteration."""
        node, (_, body) = self.node, bodies_of(self.node)[0]
        outputs = [tensor_name(v) for v in body.outputs]
        scanned = _scanned(node, read) if node.op_type == "Scan" else []
        trips, go = (len(scanned[0]), None) if scanned else read[:2]
        state = read[: -len(scanned)] if scanned else read[2:]
        for step in count():
            if (trips is not None and step >= trips) or (go is not None and not np.all(go)):
                return
            own = [] if scanned else [np.int64(step), np.bool_(True)]
            fed = self._fed("body", [*own, *state, *(rows[step] for rows in scanned)], values)
            yield fed
            # What a body only passes on, such as weights, is not copied.
            made = [name for name in dict.fromkeys(outputs) if name not in fed]
            results = {**fed, **self._body.run(fed, made)}
            after = [results[name] for name in outputs]
            go, after = (None, after) if scanned else (after[0], after[1:])
            state = after[: len(state)]


def _scanned(node: ir.Node, read: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return what a Scan takes row by row, in that order."""
    arrays = read[-node.attributes["num_scan_inputs"].as_int() :]
    axes, reverse = (
        attribute.as_ints() if (attribute := node.attributes.get(name)) else [0] * len(arrays)
        for name in ("scan_input_axes", "scan_input_directions")
    )
    rows = (np.moveaxis(array, axis, 0) for array, axis in zip(arrays, axes, strict=True))
    return [a[::-1] if back else a for a, back in zip(rows, reverse, strict=True)]


_RUNS = "halfwise::runs"
_INT64 = ir.DataType.INT64
Measure = Callable[[Steps, ir.Value], ir.Value]
"""Appends the steps that measure a tensor of a body; returns int64[n], with one n for all."""


class Report(Struct, frozen=True):
    """An output that tells of all runs of a body.

    Attributes:
        output: Its name; int64[1 + n · tensors], summed over the runs: 1, then what is measured.
        tensors: The tensors that are measured.
    """

    output: str
    tensors: tuple[TensorName, ...]


def report(
    model: ir.Model,
    measure: Measure | None = None,
    length: int = 0,
    tensors: Container[str | None] | None = None,
) -> dict[Key, Report]:
    """Add an output for each body to a model, in place, that leaves each enclosing body too.

    Other branches output 0, and iterations are summed.

    Args:
        model: Any model with unique names of nodes and values.
        measure: What is measured in each run; None to count runs alone.
        length: How many numbers that gives for a tensor.
        tensors: Names of those that are measured; None for all floats.
    """
    told: dict[Key, list[ir.Value]] = {}
    for key, body in bodies_in(model.graph).items() if measure else ():
        values = (*body.graph.inputs, *(v for node in body.graph for v in node.outputs))
        floats = (v for v in values if v.name and v.dtype in FLOATS)
        told[key] = [v for v in floats if tensors is None or v.name in tensors]

    def tell(body: ir.Graph, key: Key) -> ir.Value:
        steps, measured = Steps("::".join((_RUNS, *key))), told.get(key, [])
        parts = [steps.integers([1]), *(measure(steps, v) for v in measured if measure)]
        result = steps.op("Concat", parts, {"axis": 0}, _INT64)
        result.shape = ir.Shape([1 + length * len(measured)])
        body.extend(steps.nodes)
        return result

    sums = _sums(model.graph, tell, opset_of(model))
    model.graph.outputs.extend(sums.values())
    return {
        key: Report(tensor_name(v), tuple(map(tensor_name, told.get(key, []))))
        for key, v in sums.items()
    }


def _sums(
    graph: ir.Graph, tell: Callable[[ir.Graph, Key], ir.Value], opset: int
) -> dict[Key, ir.Value]:
    """Return, for every body inside a graph, a vector of the graph: the sum over its runs.

    Args:
        graph: Changed in place.
        tell: Appends nodes to a body and returns their result: a vector of known length.
        opset: The model's.
    """
    sums: dict[Key, ir.Value] = {}
    for node in list(graph):
        bodies = {(node_name(node), name): body for name, body in bodies_of(node)}
        inner = {key: {key: tell(b, key), **_sums(b, tell, opset)} for key, b in bodies.items()}
        given = {key: value.shape for told in inner.values() for key, value in told.items()}
        for key, body in bodies.items():
            steps = Steps("::".join((_RUNS, *key, "others")))
            for other, shape in given.items():
                assert shape is not None
                zeros = [0] * int(shape.numpy()[0])
                body.outputs.append(inner[key].get(other) or steps.integers(zeros))
            body.extend(steps.nodes)
        first, steps = len(node.outputs), Steps("::".join((_RUNS, node_name(node))))
        node.resize_outputs(first + len(given))
        _lengthen(node, len(given))
        for (key, shape), value in zip(given.items(), node.outputs[first:], strict=True):
            value.name, value.type = steps.next_name("::".join(key)), ir.TensorType(_INT64)
            if node.op_type != "If":
                value = steps.reduced("ReduceSum", value, [0], opset, _INT64, keep=False)  # noqa: PLW2901
            value.shape = shape
            sums[key] = value
        graph.insert_after(node, steps.nodes)
    return sums


def _lengthen(node: ir.Node, by: int) -> None:
    """Extend a Scan's per-output attribute lists by `by` entries for the new outputs."""
    for name in ("scan_output_axes", "scan_output_directions"):
        if (entries := node.attributes.get(name)) is not None:
            node.attributes[name] = ir.AttrInt64s(name, [*entries.as_ints(), *[0] * by])
