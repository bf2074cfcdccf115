"""Non-finite values inside a candidate that the reference does not have, by the user's names."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.probe import ElementProbe, View
from halfwise.emulation.runner import Nonfinite, inspect_samples
from halfwise.emulation.typed import emulate_typed
from halfwise.formats import Format
from halfwise.graph.casts import converted
from halfwise.graph.model import Network, constant_array, is_standard, node_name, tensor_name
from halfwise.graph.roles import Roles, is_float
from halfwise.graph.sensitivity import (
    MASK_SHARE,
    End,
    Fate,
    fates,
    masked_by_constants,
    original,
    saturating_activations,
)
from halfwise.graph.weights import LOW_TYPES
from halfwise.metrics import Computed
from halfwise.records import IntermediateNonfinite, NodeName, Observations, TensorName


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


def nonfinite_records(
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


SATURATED = 2.0**-10
"""The reference counts as at its limit within this: FP16's spacing at 1 (IEEE 754-2019)."""
LOOKED_AT = 8
"""Samples with infinities whose reference is compared with the limits."""
AT_ONCE = 4
"""Bounds memory: number of readers compared together, each with its inputs and outputs."""


def judge_infinities(
    candidate: ir.Model,
    network: Network,
    roles: Roles,
    observations: Observations,
    fmt: Format,
    inside: Mapping[TensorName, Nonfinite],
    samples: Samples,
    *,
    keeping: Callable[[frozenset[NodeName]], ir.Model | None] = lambda _: None,
    accumulate: str = "fp32",
    runtime: Runtime = CPU,
) -> dict[TensorName, Fate]:
    """Return the fate of each tensor that is infinite inside `candidate` and not in FP32.

    An infinity is harmless under two conditions. Every reader, directly or through data movement,
    has a finite limit that larger inputs keep (tanh, a clip, a comparison with a constant, a
    reciprocal that nothing multiplies) or is a Softmax that reads masks. And the reference is at
    that limit at those very elements (`SATURATED`), on the samples checked; or the candidate is
    there too if the infinite tensors, then finite, and those readers are in FP32: then the values
    are wrong for another reason, which the outputs show. A NaN is never harmless.

    Args:
        candidate: The mixed model made from `network`.
        network: The FP32 model.
        roles: Roles of its nodes.
        observations: Of its tensors, with details.
        fmt: The low format.
        inside: Tensors of the candidate with new NaN or infinities.
        samples: The samples that `inside` indexes.
        keeping: Returns the candidate with further nodes in FP32; None if a rule forbids that.
        accumulate: Format of running sums inside low ops.
        runtime: Where to run.

    Returns:
        The fate of each tensor in `inside`; limits that the data refute count as harmful readers.
    """
    own = {node_name(n): n for n in network.nodes()}
    masked = _masked(network, roles, observations, MASK_SHARE * fmt.max)
    found = fates(
        candidate.graph, inside, own=own, gates=saturating_activations(network), masked=masked
    )
    ends = list(dict.fromkeys(e for f in found.values() if f.is_harmless for e in f.ends))
    if not ends:
        return found
    with_some = dict.fromkeys(i for e in ends for i in inside[e.tensor].samples[:LOOKED_AT])
    chosen = samples.select(list(with_some)[:LOOKED_AT])
    emulated = partial(emulate_typed, accumulate=accumulate)
    low = ElementProbe(emulated(candidate), runtime=runtime)
    check = _Check({e.reader: own[e.reader] for e in ends}, fmt)
    check.run(ends, low, ElementProbe(network.model, runtime=runtime), chosen)
    infinite = _infinite(candidate, own, found, check.refuted)
    refuted, kept = check.refuted, _kept_too(infinite, check.refuted, keeping)
    if kept is not None:
        left = emulate(kept, chosen, accumulate=accumulate, runtime=runtime).nonfinite
        if not any(v.name in left for v in infinite):
            refuted = check.again(low, ElementProbe(emulated(kept), runtime=runtime), chosen)
    for fate in found.values():
        fate.harmful |= {e.reader: None for e in fate.ends if e in refuted}
        fate.wrong = bool(fate.ends.keys() & check.refuted.keys())
        fate.seen = bool(fate.ends) and fate.ends.keys() <= check.confirmed and not fate.wrong
    return found


def _masked(
    network: Network, roles: Roles, observations: Observations, least: float
) -> Callable[[ir.Value], bool]:
    """Return whether a value of a mixed model is masked by constants of that size."""
    seen = {o.tensor: o for o in observations.tensors}
    own = {node_name(n): n for n in network.nodes()}
    computed = (v for n in own.values() for v in n.outputs)
    values = {v.name: v for v in (*network.graph.inputs, *computed)}

    def masked(value: ir.Value) -> bool:
        root = values.get(original(value, own).name)
        return root is not None and masked_by_constants(root, roles, seen, least)

    return masked


def _infinite(
    candidate: ir.Model,
    own: Mapping[NodeName, ir.Node],
    found: Mapping[TensorName, Fate],
    refuted: Collection[End],
) -> set[ir.Value]:
    """Return the network's values that are infinite before the ends that the data refute."""
    ends = {tensor for tensor, fate in found.items() if fate.ends.keys() & {*refuted}}
    computed = (v for n in candidate.graph for v in n.outputs)
    return {original(v, own) for v in computed if v.name in ends}


def _kept_too(
    infinite: Set[ir.Value],
    refuted: Collection[End],
    keeping: Callable[[frozenset[NodeName]], ir.Model | None],
) -> ir.Model | None:
    """Return the candidate with infinite values and readers at other limits in FP32, if allowed."""
    nodes = {node_name(n) for v in infinite if (n := v.producer()) is not None}
    return keeping(frozenset(nodes.union(e.reader for e in refuted))) if nodes else None


class _Check:
    """Compares the reference with the limits of a few readers, sample by sample."""

    def __init__(self, readers: Mapping[NodeName, ir.Node], fmt: Format) -> None:
        """Take the readers in the reference, and the low format."""
        self._readers, self._fmt = readers, fmt
        self._names = {name: tensor_name(node.outputs[0]) for name, node in readers.items()}
        self._bounds = {name: _constants(node) for name, node in readers.items()}
        self.refuted: dict[End, None] = {}
        self.confirmed: set[End] = set()
        self._limits: dict[tuple[End, int], tuple[NDArray[np.bool_], NDArray[np.generic]]] = {}

    def run(
        self, ends: Sequence[End], low: ElementProbe, reference: ElementProbe, samples: Samples
    ) -> None:
        """Run the low side first, then the reference, for a few ends at a time."""
        for start in range(0, len(ends), AT_ONCE):
            few = ends[start : start + AT_ONCE]
            low.run(samples, [View((e.tensor, e.result), partial(self._limit, e)) for e in few], {})
            names = {e: (self._names[e.reader],) for e in few}
            reference.run(
                samples, [View(n, partial(self._compare, e)) for e, n in names.items()], {}
            )
            self._limits.clear()

    def again(
        self, low: ElementProbe, reference: ElementProbe, samples: Samples
    ) -> dict[End, None]:
        """Return which of the ends that are refuted so far another reference refutes too."""
        other = _Check(self._readers, self._fmt)
        other.run([*self.refuted], low, reference, samples)
        return other.refuted

    def _limit(
        self, end: End, sample: int, read: NDArray[np.float32], result: NDArray[np.generic]
    ) -> None:
        if np.isnan(read).any():
            self.refuted[end] = None
            return
        with suppress(ValueError):  # a maximum along an axis has no element of its own
            there = np.broadcast_to(np.isinf(read), result.shape)
            self._limits[end, sample] = there, result[there]

    def _compare(self, end: End, sample: int, result: NDArray[np.generic]) -> None:
        there, limit = self._limits.get((end, sample), (None, None))
        if there is None or limit is None:
            return
        bounds = self._bounds[end.reader]
        if there.shape != result.shape or not self._equal(result[there], limit, bounds):
            self.refuted[end] = None
        elif limit.size:
            self.confirmed.add(end)

    def _equal(
        self,
        expected: NDArray[np.generic],
        actual: NDArray[np.generic],
        bounds: NDArray[np.float64],
    ) -> bool:
        if expected.dtype.kind != "f":
            return bool((expected == actual).all())
        true = expected.astype(np.float64)
        # A clamp at -3.4e38, say, is stored as the last value in range.
        true = np.where(np.isin(true, bounds), np.clip(true, -self._fmt.max, self._fmt.max), true)
        apart = np.abs(true - actual.astype(np.float64))
        return bool((apart <= SATURATED * np.maximum(1.0, np.abs(true))).all())


def _constants(node: ir.Node) -> NDArray[np.float64]:
    """Return the elements of the float constants that a node reads: f64[n]."""
    read = (v for v in node.inputs if v is not None and v.const_value is not None and is_float(v))
    return np.concatenate([[], *(np.ravel(constant_array(v)).astype(np.float64) for v in read)])
