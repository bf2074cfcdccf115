"""Non-finite values inside a candidate that the reference does not have, by the user's names."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.bodies import observed_bodies
from halfwise.emulation.probe import TENSORS_AT_ONCE
from halfwise.emulation.runner import ModelRunner, Nonfinite, inspect_samples
from halfwise.emulation.typed import emulate_typed
from halfwise.formats import Format
from halfwise.graph.casts import converted
from halfwise.graph.model import Network, constant_array, node_name, tensor_name
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
from halfwise.metrics.kinds import LOOKED_AT
from halfwise.records import IntermediateNonfinite, NodeName, Observations, TensorName


class Emulated(Struct, frozen=True):
    """Results of a candidate's typed emulation on samples.

    Attributes:
        results: Outputs of each sample, or why it could not be run.
        nonfinite: Non-finite tensors of the candidate, as far as they were searched for.
    """

    results: list[Computed]
    nonfinite: Mapping[TensorName, Nonfinite]


def emulate(
    candidate: ir.Model,
    samples: Samples,
    *,
    accumulate: str = "fp32",
    exact: bool = False,
    runtime: Runtime = CPU,
) -> Emulated:
    """Run the typed emulation of `candidate` on every sample.

    Args:
        candidate: A typed model.
        samples: Samples to run.
        accumulate: Format of running sums inside low ops.
        exact: Whether there probably are some; see `ExtremaProbe`.
        runtime: Where to run.
    """
    # A GPU widens weights in no time, and half as much goes there.
    late = runtime.device == "cuda"
    emulation = emulate_typed(candidate, accumulate=accumulate, late=late)
    computed = (v for n in candidate.graph.all_nodes() for v in n.outputs)
    tensors = [tensor_name(v) for v in computed if _is_observed(v)]
    return Emulated(*inspect_samples(emulation, tensors, samples, exact=exact, runtime=runtime))


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
        tensor: one
        for tensor, one in nonfinite.items()
        if tensor not in reference and names.get(tensor, tensor) not in reference
    }


def nonfinite_records(
    candidate: ir.Model,
    nonfinite: Mapping[TensorName, Nonfinite],
    judged: Mapping[TensorName, Fate] = MappingProxyType({}),
) -> tuple[IntermediateNonfinite, ...]:
    """Return a record for each non-finite tensor, once for all its types, with its fates if any."""
    names, graph = converted(candidate.graph), candidate.graph
    start = (*graph.inputs, *graph.initializers.values())
    producers: dict[str | None, NodeName | None] = {v.name: None for v in start}
    for node in graph.all_nodes():
        for value in node.outputs:
            # Casts come behind the node whose output they convert.
            name = TensorName(value.name or "")
            producers.setdefault(names.get(name, name), node_name(node))
    types: dict[TensorName, list[TensorName]] = {}
    for tensor in nonfinite:
        types.setdefault(names.get(tensor, tensor), []).append(tensor)
    return tuple(
        IntermediateNonfinite(
            tensor=name,
            producer=producers.get(name),
            elements=max(nonfinite[tensor].elements for tensor in tensors),
            **_fate([judged[tensor] for tensor in tensors if tensor in judged]),
        )
        for name, tensors in types.items()
    )


def _fate(fates: Sequence[Fate]) -> dict[str, Any]:
    """Return the record of one tensor, from its fates in each of its types."""
    if not fates or not all(f.is_harmless for f in fates):
        return {"harmless": False} if fates else {}
    ending = [f for f in fates if f.ends]
    ends = "limit" if all(f.seen for f in ending) else "unseen"
    return {"harmless": True, "ends": ends if ending else "unread"}


def _is_observed(value: ir.Value) -> bool:
    is_tensor = isinstance(value.type, ir.TensorType)
    return bool(value.name) and is_tensor and (is_float(value) or value.dtype in LOW_TYPES)


AT_ONCE = TENSORS_AT_ONCE // 4
"""Readers whose inputs and outputs are held at once."""
SATURATED = 2.0**-10
"""The reference counts as at its limit within this: FP16's spacing at 1 (IEEE 754-2019)."""


def judge_infinities(
    candidate: ir.Model,
    network: Network,
    roles: Roles,
    observations: Observations,
    fmt: Format,
    inside: Mapping[TensorName, Nonfinite],
    samples: Samples,
    *,
    accumulate: str = "fp32",
    runtime: Runtime = CPU,
) -> dict[TensorName, Fate]:
    """Return the fate of each tensor that is infinite inside `candidate` and not in FP32.

    An infinity is harmless under two conditions. Every reader, directly or through data movement,
    has a finite limit that larger inputs keep (tanh, a clip, a comparison with a constant, a
    reciprocal that nothing multiplies) or is a Softmax that reads masks. And the reference is at
    that limit at those very elements (`SATURATED`), on the samples checked. A NaN is never
    harmless.

    Args:
        candidate: The mixed model made from `network`.
        network: The FP32 model.
        roles: Roles of its nodes.
        observations: Of its tensors, with details.
        fmt: The low format.
        inside: Tensors of the candidate with new NaN or infinities.
        samples: The samples that `inside` indexes.
        accumulate: Format of running sums inside low ops.
        runtime: Where to run.

    Returns:
        The fate of each tensor in `inside`; limits that the data refute count as harmful readers.
    """
    nodes = {node_name(n): n for n in network.all_nodes()}
    masked = _masked(network, roles, observations, MASK_SHARE * fmt.max)
    by_tensor = fates(
        candidate.graph, inside, own=nodes, gates=saturating_activations(network), masked=masked
    )
    ends = list(dict.fromkeys(e for f in by_tensor.values() if f.is_harmless for e in f.ends))
    if not ends:
        return by_tensor
    with_some = dict.fromkeys(i for e in ends for i in inside[e.tensor].samples[:LOOKED_AT])
    chosen = samples.select(list(with_some)[:LOOKED_AT])
    refuted, confirmed = _compared(
        ends,
        emulate_typed(candidate, accumulate=accumulate),
        network.model,
        nodes=nodes,
        fmt=fmt,
        samples=chosen,
        runtime=runtime,
    )
    for fate in by_tensor.values():
        fate.harmful |= {e.reader: None for e in fate.ends if e in refuted}
        fate.seen = bool(fate.ends) and fate.ends.keys() <= confirmed
    return by_tensor


def _masked(
    network: Network, roles: Roles, observations: Observations, least: float
) -> Callable[[ir.Value], bool]:
    """Return whether a value of a mixed model is masked by constants of that size."""
    observed = {o.tensor: o for o in observations.tensors}
    nodes = {node_name(n): n for n in network.all_nodes()}
    computed = (v for n in nodes.values() for v in n.outputs)
    values = {v.name: v for v in (*network.graph.inputs, *computed)}

    def masked(value: ir.Value) -> bool:
        root = values.get(original(value, nodes).name)
        return root is not None and masked_by_constants(root, roles, observed, least)

    return masked


_Found = tuple[dict[End, None], set[End]]
"""The ends at which a reference is not at the limit, and those where it was seen to be."""


def _compared(
    ends: Sequence[End],
    low: ir.Model,
    reference: ir.Model,
    *,
    nodes: Mapping[NodeName, ir.Node],
    fmt: Format,
    samples: Samples,
    runtime: Runtime,
) -> _Found:
    """Compare a candidate with a reference at some ends.

    An end in a body is compared in the runs that `observed_bodies` gives; one that is in none of
    them counts as refuted, and so does one in a body that the two do not run as often.
    """
    main = {node_name(n) for n in low.graph}
    inner = not main.issuperset(e.reader for e in ends)
    lows, rights = (_scopes(model, samples, runtime, bodies=inner) for model in (low, reference))
    results = {e: tensor_name(nodes[e.reader].outputs[0]) for e in ends}
    refuted, confirmed = dict.fromkeys(ends), set[End]()
    for one, other in product(lows, rights):
        there = {e: r for e, r in results.items() if e.result in one.names and r in other.names}
        if len(one.samples) == len(other.samples):
            wrong, right = _compared_in(one, other, there, nodes, fmt)
            refuted = {e: None for e in refuted if e in wrong or e not in there}
            confirmed |= right
    return refuted, confirmed


def _scopes(
    model: ir.Model, samples: Samples, runtime: Runtime, *, bodies: bool
) -> list[ModelRunner]:
    """Return a model, and its bodies if asked, each with what it reads."""
    inner = observed_bodies(Network(model, None, "", {}), samples, runtime) if bodies else ()
    every = [(model, samples), *((body.network.model, body.runs) for body in inner)]
    return [ModelRunner(one, reads, runtime=runtime) for one, reads in every]


def _compared_in(
    low: ModelRunner,
    reference: ModelRunner,
    results: Mapping[End, TensorName],
    nodes: Mapping[NodeName, ir.Node],
    fmt: Format,
) -> _Found:
    """Compare in one scope. A few ends at a time: their tensors are held for a sample.

    Args:
        low: The candidate.
        reference: What it is compared with, on as many samples.
        results: For each end, what the reference has for its result.
        nodes: The network's.
        fmt: The low format.
    """
    refuted, confirmed = dict[End, None](), set[End]()
    for start in range(0, len(results), AT_ONCE):
        some = [*results.items()][start : start + AT_ONCE]
        lows = low.get([tensor for end, _ in some for tensor in (end.tensor, end.result)])
        rights = reference.get([result for _, result in some])
        for sample, actual, right in zip(low.samples, lows, rights, strict=True):
            for end, name in some:
                # A body reads what it captures.
                infinite = np.asarray({**sample, **actual}[end.tensor])
                limit, expected = actual[end.result], right[name]
                try:
                    there = np.broadcast_to(np.isinf(infinite), limit.shape)
                except ValueError:  # a maximum along an axis has no element of its own
                    there = np.zeros(limit.shape, np.bool_)
                bounds = _constants(nodes[end.reader])
                is_there = limit.shape == expected.shape and _equal(
                    expected[there], limit[there], bounds, fmt
                )
                if np.isnan(infinite).any() or not is_there:
                    refuted[end] = None
                elif there.any():
                    confirmed.add(end)
    return refuted, confirmed


def _equal(
    expected: NDArray[np.generic],
    actual: NDArray[np.generic],
    bounds: NDArray[np.float64],
    fmt: Format,
) -> bool:
    if expected.dtype.kind != "f":
        return bool((expected == actual).all())
    true = expected.astype(np.float64)
    # A clamp at -3.4e38, say, is stored as the last value in range.
    true = np.where(np.isin(true, bounds), np.clip(true, -fmt.max, fmt.max), true)
    with np.errstate(invalid="ignore"):
        apart = np.abs(true - actual.astype(np.float64))
    near = apart <= SATURATED * np.maximum(1.0, np.abs(true))
    return bool((near | (true == actual)).all())


def _constants(node: ir.Node) -> NDArray[np.float64]:
    """Return the elements of the float constants that a node reads: f64[n]."""
    read = (v for v in node.inputs if v is not None and v.const_value is not None and is_float(v))
    return np.concatenate([[], *(np.ravel(constant_array(v)).astype(np.float64) for v in read)])
