"""Whether the error of a plan comes from decisions that the low format changes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from halfwise.case import Runtime, Sample
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import ModelRunner
from halfwise.fixing.trial import Trials
from halfwise.graph.dataflow import GIVEN, giving_out, region_model
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.graph.roles import Roles
from halfwise.graph.sensitivity import decided, decisions, leading_to
from halfwise.judging.file_run import differing
from halfwise.metrics import Outputs
from halfwise.records import Decided, Flip, NodeName, TensorName

FEW = 4
"""Samples on which decisions are compared: those with the largest errors."""
MOST_TRIED = 8
"""Decisions tried one by one, in graph order; then all together."""
MOST = 0.5
"""Decisions cause an error if the true ones leave no more than this share of it."""


@dataclass(frozen=True)
class Deciding:
    """Runs a low model with some decisions of the reference.

    Attributes:
        network: The model.
        roles: Roles of its nodes.
        low: Typed emulation of the mixed model; same tensor names.
        trials: For references and tolerances.
        runtime: Where to run.
        progress: Called before each run of a sample; an exception from it ends the work.
    """

    network: Network
    roles: Roles
    low: ir.Model
    trials: Trials
    runtime: Runtime
    progress: Callable[[], None]

    def cause(self, errors: Sequence[float]) -> Decided | None:
        """Return the decisions whose change causes most of the error, if trials show any.

        In a trial, the low model reads the reference's decisions in place of its own, also where
        it outputs them. What else leads to the outputs stays low, so this tells the effect of the
        decisions from that of other roundings before them.

        Args:
            errors: The error of each calibration sample.
        """
        every = {node_name(n): n for n in decisions(self.network) if decided(n)}
        worst = sorted(range(len(errors)), key=lambda i: -errors[i])[:FEW]
        found = self._flips(every, worst) if every else ()
        before = self._error((), worst) if found else 0.0
        groups = [*((flip,) for flip in found[:MOST_TRIED]), found]
        for flips in groups if before > 0 else ():
            tensors = [t for flip in flips for t in decided(every[flip.node])]
            left = self._error(tensors, worst)
            if left <= MOST * before and left < before:
                return Decided(
                    flips=flips,
                    nodes=tuple(self._leading([every[flip.node] for flip in flips])),
                    error=before,
                    left=left,
                    samples=len(worst),
                )
        return None

    def _leading(self, nodes: Sequence[ir.Node]) -> Iterator[NodeName]:
        leading = {name for node in nodes for name in leading_to(node, self.roles)}
        return (n for n in map(node_name, self.network.nodes()) if n in leading)

    def _flips(self, every: Mapping[NodeName, ir.Node], chosen: Sequence[int]) -> tuple[Flip, ...]:
        samples = self.trials.samples.select(chosen)
        sides = [
            ModelRunner(model, samples, partial=True, runtime=self.runtime)
            for model in (self.network.model, self.low)
        ]
        for _ in chosen:
            self.progress()
        return differing(list(every.values()), *sides)

    def _error(self, tensors: Sequence[TensorName], chosen: Sequence[int]) -> float:
        """Return the largest error on some samples with the reference's values of `tensors`."""
        made = _Given(self, tensors)
        trials, largest = self.trials.on(made), 0.0
        for error in trials.contributions(frozenset(), chosen):
            self.progress()
            largest = max(largest, error)
        return largest


class _Given:
    """The low model, given some tensors of the reference; a `Switching` that switches nothing."""

    def __init__(self, deciding: Deciding, tensors: Sequence[TensorName]) -> None:
        outputs = [TensorName(v.name) for v in deciding.low.graph.outputs if v.name]
        self._given = dict(_computed_as(deciding.low, deciding.network, tensors))
        region = region_model(Network(deciding.low, None, "", {}), outputs, self._given)
        self._read = {v.name for v in region.graph.inputs}
        self._low = Session(region, runtime=deciding.runtime)
        source = giving_out(deciding.network.model, tensors) if tensors else None
        self._source = source and Session(source, runtime=deciding.runtime)
        self._tensors = tensors

    def prepare(self, _changed: frozenset[NodeName], /) -> None:
        """Do nothing: all is loaded."""

    def release(self) -> None:
        """Do nothing: it is short-lived."""

    def run(self, sample: Sample, _changed: frozenset[NodeName], /) -> Outputs:
        """Return the outputs; an output that is given is as given."""
        true = self._source.run(sample, self._tensors) if self._source else {}
        given = {low: true[name] for low, name in self._given.items()}
        read = {n: array for low, array in given.items() if (n := f"{low}{GIVEN}") in self._read}
        found = self._low.run({**sample, **read})
        return {name: given.get(TensorName(name), array) for name, array in found.items()}


def _computed_as(
    low: ir.Model, network: Network, tensors: Sequence[TensorName]
) -> Iterator[tuple[TensorName, TensorName]]:
    """Yield the names of `tensors` in `low` where their nodes compute them, and their own names.

    What rounds and casts a tensor comes after its node, and the last of that has the tensor's name.
    """
    nodes = {node_name(node): node for node in low.graph}
    for node in network.nodes():
        for slot, value in enumerate(node.outputs):
            if value.name in tensors:
                yield tensor_name(nodes[node_name(node)].outputs[slot]), tensor_name(value)
