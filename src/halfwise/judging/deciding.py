"""Whether an error comes from decisions that a computation takes differently than the reference."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct

from halfwise.case import CPU, FEW_SAMPLES, Runtime, Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import ModelRunner, Runner
from halfwise.errors import RunFailed
from halfwise.graph.dataflow import GIVEN, giving_out
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.graph.roles import Roles
from halfwise.graph.sensitivity import decided, decisions, first_of, leading_to
from halfwise.judging.judge import differing
from halfwise.metrics import Computed
from halfwise.records import MOST, Decided, Flip, NodeName, TensorName

MOST_TRIED = 8
"""Decisions tried one by one: one run of a sample rejects most of them."""

Candidate = Callable[[Samples], Runner]
"""Returns the candidate on some samples."""
Corrected = Callable[[Sequence[TensorName], Samples], Iterator[Computed]]
"""Yields the outputs of a candidate that reads the reference's values of some tensors instead of
its own, for each sample; or why it failed."""


class Deciding(Struct, frozen=True):
    """Compares the decisions of a candidate with the reference's, and gives it these.

    Attributes:
        network: The reference.
        roles: Roles of its nodes.
        candidate: The candidate; same tensor names.
        corrected: The candidate with decisions of the reference.
        error: Returns the error of a sample's outputs, relative to what is allowed.
        samples: All samples on which the errors were measured.
        runtime: Where the reference runs.
    """

    network: Network
    roles: Roles
    candidate: Candidate
    corrected: Corrected
    error: Callable[[int, Computed], float]
    samples: Samples
    runtime: Runtime = CPU

    def cause(self, errors: Sequence[float]) -> Decided | None:
        """Return the decisions whose change causes most of the error, if trials show any.

        In a trial, the candidate reads the reference's decisions in place of its own, also where
        it outputs them. What else leads to the outputs stays as it is, so this tells the effect of
        the decisions from that of other roundings before them.

        Args:
            errors: The error of each sample, ≥ 0; inf for new NaN, infinities or another shape.
        """
        every = {node_name(n): n for n in decisions(self.network) if decided(n)}
        order = worst_first(errors)
        if not every or max(errors, default=0.0) == 0:
            return None
        worst = errors[order[0]]
        flips = differing(list(every.values()), *self.sides(range(len(self.samples))))
        for group in self._groups(flips, every):
            tensors = [t for flip in group for t in decided(every[flip.node])]
            remaining = max(self.errors(tensors, order[:FEW_SAMPLES]))
            if _undoes(remaining, worst):
                remaining = max([remaining, *self.errors(tensors, order[FEW_SAMPLES:])])
            if _undoes(remaining, worst):
                nodes = [every[flip.node] for flip in group]
                return Decided(
                    flips=group,
                    nodes=tuple(self._leading(nodes)),
                    error=worst,
                    left=remaining,
                    samples=len(errors),
                )
        return None

    def _groups(
        self, flips: tuple[Flip, ...], every: Mapping[NodeName, ir.Node]
    ) -> Iterator[tuple[Flip, ...]]:
        """Yield groups of decisions to try, none twice: single ones, the first ones, all."""
        first = set(map(node_name, first_of([every[flip.node] for flip in flips])))
        groups: list[tuple[Flip, ...]] = [(flip,) for flip in flips[:MOST_TRIED]]
        groups += [tuple(flip for flip in flips if flip.node in first), flips]
        yield from dict.fromkeys(groups if flips else ())

    def _leading(self, nodes: Sequence[ir.Node]) -> Iterator[NodeName]:
        leading = {name for node in nodes for name in leading_to(node, self.roles)}
        return (n for n in map(node_name, self.network.nodes()) if n in leading)

    def sides(self, chosen: Sequence[int]) -> tuple[Runner, Runner]:
        """Return the reference and the candidate on samples, given by their places."""
        samples = self.samples.select(chosen)
        right = ModelRunner(self.network.model, samples, runtime=self.runtime)
        return right, self.candidate(samples)

    def errors(self, tensors: Sequence[TensorName], chosen: Sequence[int]) -> Iterator[float]:
        """Yield the error of each sample with the reference's values of some tensors."""
        results = self.corrected(tensors, self.samples.select(chosen))
        return (self.error(i, outputs) for i, outputs in zip(chosen, results, strict=True))


def _undoes(remaining: float, error: float) -> bool:
    return remaining <= MOST * error and remaining < error


def worst_first(errors: Sequence[float]) -> list[int]:
    """Return the places of samples, those with the largest errors first."""
    return sorted(range(len(errors)), key=lambda i: -errors[i])


def with_true_values(
    low: ir.Model,
    network: Network,
    *,
    runtime: Runtime = CPU,
) -> Corrected:
    """Return how an emulation runs with tensors of the reference; an output that is one is true.

    Args:
        low: The emulation, with FP32 tensors and the reference's node names.
        network: The reference.
        runtime: Where to run.
    """

    def outputs(tensors: Sequence[TensorName], samples: Samples) -> Iterator[Computed]:
        names = [TensorName(v.name) for v in low.graph.outputs if v.name]
        places = dict(_computed_as(low, network, tensors))
        region = giving_out(low, names, places)
        wanted = {v.name for v in region.graph.inputs}
        session = Session(region, runtime=runtime)
        source = Session(giving_out(network.model, tensors), runtime=runtime)
        for sample in samples:
            true = source.run(sample, tensors)
            corrected = {place: true[name] for place, name in places.items()}
            inputs = {f"{name}{GIVEN}": array for name, array in corrected.items()}
            try:
                result = session.run({**sample, **{n: inputs[n] for n in inputs.keys() & wanted}})
            except RunFailed as failure:
                yield failure
            else:
                yield {n: corrected.get(TensorName(n), array) for n, array in result.items()}

    return outputs


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
