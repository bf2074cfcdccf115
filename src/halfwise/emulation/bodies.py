"""Bodies of If, Loop and Scan as networks of their own, and what they read in each run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import Runtime, Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.graph.bodies import bodies_of, is_observable
from halfwise.graph.dataflow import (
    captured,
    captured_by,
    giving_out,
    operands,
    replace_reads,
)
from halfwise.graph.model import Network, add_constant, constant_array, tensor_name
from halfwise.records import Observations, TensorName

RUNS = 16
"""Most runs of a body that are observed per sample, evenly spread over its iterations. Our choice:
ranges of a state grow or settle over many more."""


@dataclass(frozen=True, eq=False)
class BodyRuns:
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
                update: dict[str, object] = {"worst_sample": self.samples[one.worst_sample]}
                if one.detail is not None:
                    detail = {"samples": min(one.detail.samples, most)}
                    update["detail"] = one.detail.model_copy(update=detail)
                tensors.append(one.model_copy(update=update))
        inner = (
            one.model_copy(update={"worst_sample": self.samples[one.worst_sample]})
            for one in seen.inner
        )
        return seen.model_copy(update={"tensors": tuple(tensors), "inner": tuple(inner)})


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


@dataclass(frozen=True, eq=False)
class _Holder:
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
            results = self._body.run(fed, list(dict.fromkeys(outputs)))
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
