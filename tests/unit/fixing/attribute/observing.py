"""Observations of a sketch, made with onnx's reference evaluator and a little NumPy."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from halfwise.fixing.attribute import Attribution
from halfwise.formats import FP16, Format
from halfwise.graph.casts import low_type
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.roles import Roles, roles_of
from halfwise.records import (
    Detail,
    Guard,
    Histogram,
    InnerObservation,
    NodeName,
    Observation,
    Observations,
    TensorName,
    replace,
)
from tests.unit.graph.sketch import Sketch

Inputs = Mapping[str, np.ndarray]


def detail(array: np.ndarray, fmt: Format) -> Detail:
    magnitudes = np.abs(array.astype(np.float64)).ravel()
    nonzero = magnitudes[magnitudes > 0]
    flushed = nonzero <= fmt.flush_threshold
    below = (nonzero < fmt.smallest_normal) & ~flushed
    return Detail(
        smallest_nonzero=float(nonzero.min()) if nonzero.size else math.inf,
        overflow=float((magnitudes >= fmt.overflow_threshold).mean()),
        flush=float(flushed.mean()) if nonzero.size else 0.0,
        subnormal=float(below.sum() / magnitudes.size),
        histogram=histogram(nonzero),
        samples=1,
        integers=np.unique(array).size > 2
        and bool((magnitudes == np.rint(magnitudes)).all())
        and bool((fmt.round(array.astype(np.float32)) != array).any()),
    )


def histogram(nonzero: np.ndarray) -> Histogram:
    binades = np.frexp(nonzero[np.isfinite(nonzero)])[1] - 1
    first = int(binades.min(initial=0))
    counts = np.bincount(binades - first) if binades.size else np.zeros(0, int)
    return Histogram(first=first, counts=tuple(counts.tolist()), zeros=0)


def observe(
    network: Network, proto: onnx.ModelProto, inputs: Inputs, fmt: Format, *, details: bool = True
) -> Observations:
    computed: dict[str, Any] = {}
    evaluator = ReferenceEvaluator(proto)
    names = [o for n in proto.graph.node for o in n.output]
    with np.errstate(all="ignore"):
        computed = dict(zip(names, evaluator.run(names, dict(inputs)), strict=True))
    makers = {o.name: n.name for n in network.nodes() for o in n.outputs}
    tensors = [
        Observation(
            tensor=TensorName(name),
            producer=NodeName(makers[name] or "") if name in makers else None,
            absmax=float(np.abs(array[np.isfinite(array)]).max(initial=0)),
            nonfinite=int((~np.isfinite(array)).sum()),
            worst_sample=0,
            detail=detail(array, fmt) if details else None,
        )
        for name, array in {**inputs, **computed}.items()
        if array.dtype == np.float32
    ]
    return Observations(tensors=tuple(tensors), inner=(), samples=("inputs.npz[3]",))


def inner(node: str, op: str, kind: Any, value: float) -> InnerObservation:
    return InnerObservation(node=NodeName(node), op=op, kind=kind, value=value, worst_sample=0)


def guards(
    sketch: Sketch,
    output: str,
    inputs: Inputs,
    *,
    fmt: Format = FP16,
    inside: tuple[InnerObservation, ...] = (),
    details: bool = True,
    samples: tuple[str, ...] = ("inputs.npz[3]",),
    **options: Any,
) -> tuple[Guard, ...]:
    """Return all guards on a sketch run on one sample, the first of `samples`."""
    proto = sketch.proto(output)
    network = network_from_proto(proto)
    roles: Roles = roles_of(network, low_type(fmt))
    observations = observe(network, proto, inputs, fmt, details=details)
    observations = replace(observations, inner=inside, samples=samples)
    return Attribution(network, roles, observations, fmt, **options).guards


def only(raised: tuple[Guard, ...], kind: str) -> Guard:
    """Return the one guard of a kind."""
    (guard,) = [g for g in raised if g.kind == kind]
    return guard
