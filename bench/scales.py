"""Which outputs have slices of several scales, and what holding each to its own changes.

Of every model: the groups of its outputs; where there are some, the plans that are kept with and
without them (where there are none, both are one computation). And of every float tensor inside,
taken for an output, with everything in FP16: how many pass as a whole and fail in a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.figures import Figure, at_most, reported
from bench.runs import Workbench, digits
from halfwise import api
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import HalfwiseError
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.metrics import OutputMeasure, Outputs, totals
from halfwise.metrics.slices import FLOOR, Slices
from halfwise.records import Criterion, OutputError, SliceGroup
from tests.models import CLASSES

SAMPLES = 8
BYTES = 16 << 20
"""Of tensors inside, beyond which no further sample is looked at: one of a detector's."""
SECONDS = 20.0
"""Budget of each search."""
MOVING = ("Constant", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""What these give out has been looked at before them."""


@dataclass(frozen=True)
class Looked:
    """What was found of one model.

    Attributes:
        name: Its name.
        groups: Groups by output: axis, number of slices, scale, times the tolerance, and the span
            of values on an offset.
        kept: Nodes kept in FP32 with the groups and without; None where there are none, so that
            both are one computation.
        inner: Tensors inside that pass as a whole in FP16.
        grouped: Of these, with groups.
        failed: Of these, that fail in one, and by which.
        new: Of these, that fail by a span or a scale below `FLOOR` alone.
    """

    name: str
    groups: dict[str, list[tuple[int | None, int, float, float, float | None]]]
    kept: tuple[list[str], list[str]] | None
    inner: int
    grouped: int
    failed: dict[str, str]
    new: int


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures; the models folder's models are those with inputs.npz beside them."""
    found = [look(name, *each) for name, each in subjects(bench.models)]
    bench.details["scales"] = [asdict(one) for one in found]
    inner, failed = sum(one.inner for one in found), sum(len(one.failed) for one in found)
    some = [one for one in found if one.groups]
    other = [one.name for one in some if one.kept is not None and one.kept[0] != one.kept[1]]
    return [
        reported("models with outputs of several scales", len(some), f"of {len(found)}"),
        reported("of these, with another plan than by the whole", len(other), ", ".join(other)),
        reported("inner tensors with groups", sum(one.grouped for one in found), f"of {inner}"),
        at_most("share of inner tensors that fail in a group only", failed / inner, 0.02),
        reported("of these, by a span or below the floor alone", sum(one.new for one in found)),
    ], None if bench.models else bench.missing()


def subjects(folder: Path | None) -> Iterator[tuple[str, tuple[onnx.ModelProto, list[Outputs]]]]:
    """Yield names, models and samples."""
    for factory in CLASSES:
        ill = factory()
        yield ill.name, (ill.proto, _rows(ill.inputs))
    demo = digits()
    places = [(demo.model, demo.inputs)]
    if folder is not None:
        places += [(p.parent / "model.onnx", p) for p in sorted(folder.glob("*/inputs.npz"))]
    for model, inputs in places:
        with np.load(inputs) as arrays:
            yield model.parent.name, (onnx.load(model), _rows(dict(arrays)))


def _rows(arrays: Mapping[str, Any]) -> list[Outputs]:
    count = min(SAMPLES, *(len(array) for array in arrays.values()))
    return [{name: array[i] for name, array in arrays.items()} for i in range(count)]


def look(name: str, proto: onnx.ModelProto, samples: Sequence[Outputs]) -> Looked:
    """Return what one model shows."""
    reference = Session(network_from_proto(proto).model)
    outputs = totals([reference.run(dict(sample)) for sample in samples])
    groups = {
        output: [(g.axis, g.slices.size, g.scale, g.room, g.span) for g in total.groups]
        for output, total in outputs.items()
        if total.groups
    }
    kept = None
    if groups:
        now = _kept(proto, samples)
        with mock.patch.object(Slices, "groups", return_value=()):
            kept = now, _kept(proto, samples)
    try:
        errors = inner_errors(proto, samples)
    except (HalfwiseError, ValueError):
        errors = {}  # a custom operator, or nothing inside that can be low
    whole = {t: e for t, e in errors.items() if e.rel_max <= 0.01 and not e.nonfinite}
    failed = {t: _worst(e) for t, e in whole.items() if not e.passed}
    grouped = sum(bool(e.groups) for e in whole.values())
    new = sum(all(_is_new(g, whole[t]) for g in whole[t].groups if not g.passed) for t in failed)
    return Looked(name, groups, kept, len(whole), grouped, failed, new)


def _is_new(group: SliceGroup, error: OutputError) -> bool:
    floor = FLOOR * error.max_abs / error.rel_max
    return group.span is not None or group.scale < floor


def _worst(error: OutputError) -> str:
    worst = max(error.groups, key=lambda g: g.max_abs / g.allowed)
    times = worst.max_abs / worst.allowed
    return f"axis {worst.axis}, {worst.slices} at {worst.scale:.3g}: {times:.2f} times"


def _kept(proto: onnx.ModelProto, samples: Sequence[Outputs]) -> list[str]:
    given = [dict(sample) for sample in samples]
    plan = api.fix(proto, given, time_budget=SECONDS, allow_random=True).run.plan
    assert plan is not None
    return sorted(kept.node for kept in plan.keep)


def inner_errors(proto: onnx.ModelProto, samples: Sequence[Outputs]) -> dict[str, OutputError]:
    """Return how far every float tensor inside is off with everything in FP16."""
    opened = onnx.shape_inference.infer_shapes(proto)
    outputs = {value.name for value in opened.graph.output}
    floats = {
        value.name
        for value in opened.graph.value_info
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    for node in opened.graph.node:
        for name in node.output:
            if name in floats - outputs and node.op_type not in MOVING:
                opened.graph.output.append(
                    helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
                )
    network = network_from_proto(opened)
    low = rewrite(network, roles_of(network), frozenset(), FP16, low_io=frozenset()).model
    sides = [Session(model) for model in (network.model, emulate_typed(low))]
    references: list[Outputs] = []
    candidates: list[Outputs] = []
    for sample in samples:
        if sum(array.nbytes for one in references for array in one.values()) > BYTES:
            break
        for side, found in zip(sides, (references, candidates), strict=True):
            found.append(side.run(dict(sample)))
    errors = {}
    for name, total in totals(references).items():
        measure = OutputMeasure(total)
        for reference, candidate in zip(references, candidates, strict=True):
            measure.update(reference[name], candidate[name], "")
        errors[name] = measure.result(Criterion())
    return errors
