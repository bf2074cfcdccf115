"""Non-finite values inside a candidate that the reference does not have, by the user's names."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.runner import Nonfinite, inspect_samples
from halfwise.emulation.typed import emulate_typed
from halfwise.graph.casts import converted
from halfwise.graph.model import is_standard, node_name, tensor_name
from halfwise.graph.roles import is_float
from halfwise.graph.weights import LOW_TYPES
from halfwise.metrics import Computed
from halfwise.records import IntermediateNonfinite, NodeName, TensorName


@dataclass(frozen=True)
class Emulated:
    """Results of a candidate's typed emulation on samples.

    Attributes:
        results: Outputs of each sample, or why it could not be run.
        nonfinite: Non-finite tensors of the candidate in the first `inspected` samples.
        inspected: Number of samples searched for them.
    """

    results: list[Computed]
    nonfinite: Mapping[TensorName, Nonfinite]
    inspected: int

    def first(self, inspected: int) -> "Emulated":
        """Return the same with only the first samples searched."""
        some = {name: found.first(inspected) for name, found in self.nonfinite.items()}
        nonfinite = {name: found for name, found in some.items() if found is not None}
        return Emulated(self.results, nonfinite, min(self.inspected, inspected))


def emulate(
    candidate: ir.Model,
    samples: Samples,
    *,
    accumulate: str = "fp32",
    inspected: int | None = None,
    runtime: Runtime = CPU,
) -> Emulated:
    """Run the typed emulation of `candidate` on every sample.

    Args:
        candidate: A typed model.
        samples: Samples to run.
        accumulate: Format of running sums inside low ops.
        inspected: Number of samples searched for non-finite values inside the model; None for all.
        runtime: Where to run.
    """
    watched = samples.select(range(len(samples))[:inspected])
    unwatched = samples.select(range(len(samples))[len(watched) :])
    emulation = emulate_typed(candidate, accumulate=accumulate)
    tensors = [tensor_name(v) for n in candidate.graph for v in n.outputs if _is_observed(v)]
    results, nonfinite = inspect_samples(emulation, tensors, watched, runtime=runtime)
    if unwatched:
        results += inspect_samples(emulation, (), unwatched, runtime=runtime)[0]
    return Emulated(results, nonfinite, len(watched))


def lacking_in(
    reference: Collection[TensorName],
    candidate: ir.Model,
    nonfinite: Mapping[TensorName, Nonfinite],
) -> dict[TensorName, Nonfinite]:
    """Return the tensors that are non-finite in the candidate but finite in the reference.

    Args:
        reference: Non-finite tensors of the reference.
        candidate: A typed model; a tensor before and after its Casts counts as one.
        nonfinite: Its non-finite tensors, by its own names.
    """
    names = converted(candidate.graph)
    return {
        tensor: found
        for tensor, found in nonfinite.items()
        if tensor not in reference and names.get(tensor, tensor) not in reference
    }


def told_inside(
    candidate: ir.Model, nonfinite: Mapping[TensorName, Nonfinite]
) -> tuple[IntermediateNonfinite, ...]:
    """Return a record for each non-finite tensor, once for all its types."""
    names = converted(candidate.graph)
    producers = _producers(candidate.graph, names)
    elements: dict[TensorName, int] = {}
    for tensor, found in nonfinite.items():
        name = names.get(tensor, tensor)
        elements[name] = max(elements.get(name, 0), found.elements)
    return tuple(
        IntermediateNonfinite(tensor=name, producer=producers.get(name), elements=most)
        for name, most in elements.items()
    )


def _producers(
    graph: ir.Graph, names: Mapping[TensorName, TensorName]
) -> dict[TensorName, NodeName]:
    """Return the producer of each tensor, skipping Casts."""
    found: dict[TensorName, NodeName] = {}
    for node in graph:
        source = node.inputs[0] if node.inputs else None
        for value in node.outputs:
            name = TensorName(value.name or "")
            converts = name in names and source is not None and source.name in names
            if name and not (converts and is_standard(node, "Cast")):
                found[names.get(name, name)] = node_name(node)
    return found


def _is_observed(value: ir.Value) -> bool:
    is_tensor = isinstance(value.type, ir.TensorType)
    return bool(value.name) and is_tensor and (is_float(value) or value.dtype in LOW_TYPES)
