"""Non-finite values inside a candidate that the reference does not have, by the user's names."""

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.bodies import observed_bodies
from halfwise.emulation.probe import TENSORS_AT_ONCE
from halfwise.emulation.runner import ModelRunner, Nonfinite, inspect_samples
from halfwise.emulation.typed import emulate_typed
from halfwise.formats import Format
from halfwise.graph.casts import converted
from halfwise.graph.model import Network, constant_array, is_standard, node_name, tensor_name
from halfwise.graph.roles import is_float
from halfwise.graph.sensitivity import PICKING, End, Fate, fates, products_of
from halfwise.graph.weights import LOW_TYPES
from halfwise.metrics import Computed
from halfwise.metrics.kinds import LOOKED_AT
from halfwise.records import IntermediateNonfinite, NodeName, TensorName


def emulate(
    candidate: ir.Model,
    samples: Samples,
    *,
    accumulate: str = "fp32",
    exact: bool = False,
    runtime: Runtime = CPU,
) -> tuple[list[Computed], dict[TensorName, Nonfinite]]:
    """Run the typed emulation of `candidate` on every sample; see `inspect_samples`.

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
    return inspect_samples(emulation, tensors, samples, exact=exact, runtime=runtime)


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
    """Return a record for each non-finite tensor, once for all its types; `judged`: their fates."""
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
            harmless=all(judged[t].is_harmless for t in tensors) if judged else None,
        )
        for name, tensors in types.items()
    )


def _is_observed(value: ir.Value) -> bool:
    is_tensor = isinstance(value.type, ir.TensorType)
    return bool(value.name) and is_tensor and (is_float(value) or value.dtype in LOW_TYPES)


SATURATED = 2.0**-10
"""The reference counts as at its limit within this: FP16's spacing at 1 (IEEE 754-2019)."""


def judge_infinities(
    candidate: ir.Model,
    network: Network,
    fmt: Format,
    inside: Mapping[TensorName, Nonfinite],
    samples: Samples,
    *,
    accumulate: str = "fp32",
    runtime: Runtime = CPU,
) -> dict[TensorName, Fate]:
    """Return the fate of each tensor that is infinite inside `candidate` and not in FP32.

    An infinity is harmless if, wherever it ends, the reference has the same result at those very
    elements (`SATURATED`): 1 for the tanh of a large value, 0 for the softmax of a mask. A result
    of zero may be a factor, such as one over an infinity: what is computed from it element by
    element and is zero, too, has to be zero in the reference, beside its largest element. A NaN
    that a node computes with is never harmless.

    Args:
        candidate: The mixed model made from `network`.
        network: The FP32 model.
        fmt: The low format.
        inside: Tensors of the candidate with new NaN or infinities.
        samples: The samples that `inside` indexes.
        accumulate: Format of running sums inside low ops.
        runtime: Where to run.

    Returns:
        The fate of each tensor in `inside`, as seen on one sample for each end, and more if there
        are few.
    """
    nodes = {node_name(n): n for n in network.all_nodes()}
    found = fates(candidate.graph, inside, nodes)
    ends = list(dict.fromkeys(e for f in found.values() if f.is_harmless for e in f.ends))
    if not ends:
        return found
    where = [inside[tensor_name(end.value)].samples for end in ends]
    more = (i for some in where for i in some[:LOOKED_AT])
    firsts = {some[0] for some in where}
    chosen = list(dict.fromkeys((*firsts, *more)))[: max(LOOKED_AT, len(firsts))]
    low = emulate_typed(candidate, accumulate=accumulate)
    right = _right(ends, low, network.model, nodes, fmt, samples.select(chosen), runtime)
    return fates(candidate.graph, inside, nodes, set(ends) - right)


def _right(
    ends: Sequence[End],
    low: ir.Model,
    reference: ir.Model,
    nodes: Mapping[NodeName, ir.Node],
    fmt: Format,
    samples: Samples,
    runtime: Runtime,
) -> set[End]:
    """Return the ends at which a reference has the same result; `nodes` are its own.

    An end in a body is compared in the runs that `observed_bodies` gives. It is not the same if it
    is in none of them, or if the two do not run its body as often.
    """
    main = {node_name(n) for n in low.graph}
    inner = not main.issuperset(node_name(end.node) for end in ends)
    lows, rights = (_scopes(model, samples, runtime, bodies=inner) for model in (low, reference))
    right = set[End]()
    for one, other in product(lows, rights):
        there = [end for end in ends if _name(end.node) in one.names]
        there = [end for end in there if _name(nodes[node_name(end.node)]) in other.names]
        if len(one.samples) == len(other.samples):
            for start in range(0, len(there), TENSORS_AT_ONCE):
                right |= _right_in(there[start : start + TENSORS_AT_ONCE], one, other, nodes, fmt)
    return right


def _right_in(
    ends: Sequence[End],
    low: ModelRunner,
    reference: ModelRunner,
    nodes: Mapping[NodeName, ir.Node],
    fmt: Format,
) -> set[End]:
    """Return the ends at which a reference has the same result in all runs of one scope."""
    read = {node for end in ends for node in (end.node, *products_of(end))}
    lows = low.get([*map(_name, read), *(tensor_name(end.value) for end in ends)])
    rights = reference.get([_name(nodes[node_name(node)]) for node in read])
    right = set(ends)
    for sample, actual, expected in zip(low.samples, lows, rights, strict=True):
        # A body reads what it captures.
        held = {**sample, **actual}
        right = {end for end in right if _is_right(end, held, expected, nodes, fmt)}
    return right


def _name(node: ir.Node) -> TensorName:
    return tensor_name(node.outputs[0])


def _is_right(
    end: End,
    actual: Mapping[str, Any],
    expected: Mapping[str, Any],
    nodes: Mapping[NodeName, ir.Node],
    fmt: Format,
) -> bool:
    """Return whether a reference has the same result where a tensor is infinite in one run."""
    own = nodes[node_name(end.node)]
    infinite = np.asarray(actual[tensor_name(end.value)])
    result, true = actual[_name(end.node)], expected[_name(own)]
    if np.isnan(infinite).any() or result.shape != true.shape:
        return False
    there = _at(np.isinf(infinite), result)
    if there is None:  # a maximum along an axis has no element of its own
        return end.hands_on or is_standard(own, *PICKING)
    if end.hands_on:
        there = there & np.isfinite(result)
    if not _equal(true[there], result[there], _constants(own), fmt):
        return False
    zero = there & (result == 0)
    pairs = ((_name(n), _name(nodes[node_name(n)])) for n in products_of(end) if zero.any())
    return all(
        _is_zero(zero, actual[one], expected[other])
        for one, other in pairs
        if one in actual and other in expected  # else it is in another scope
    )


def _at(flags: NDArray[np.bool_], array: NDArray[np.generic]) -> NDArray[np.bool_] | None:
    """Return flags for the elements of an array; None if these are others."""
    try:
        return np.broadcast_to(flags, array.shape)
    except ValueError:
        return None


def _is_zero(
    factor: NDArray[np.bool_], product: NDArray[np.generic], true: NDArray[np.generic]
) -> bool:
    """Return whether the true product is about zero, too, where a factor makes it so."""
    zero, there = product == 0, _at(factor, product)
    if there is not None:
        zero &= there
    sizes = np.abs(true.astype(np.float64))
    most = SATURATED * sizes[np.isfinite(sizes)].max(initial=0.0)
    return product.shape == true.shape and bool((sizes[zero] <= most).all())


def _scopes(
    model: ir.Model, samples: Samples, runtime: Runtime, *, bodies: bool
) -> list[ModelRunner]:
    """Return a model, and its bodies if asked, each with what it reads."""
    inner = observed_bodies(Network(model, None, "", {}), samples, runtime) if bodies else ()
    every = [(model, samples), *((body.network.model, body.runs) for body in inner)]
    return [ModelRunner(one, reads, runtime=runtime) for one, reads in every]


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
