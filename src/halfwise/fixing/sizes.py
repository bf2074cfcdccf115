"""Judge a model at a second batch size; report which dynamic axes had only one size."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from halfwise.case import Case, Samples, Settings
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import RunFailed
from halfwise.judging.batches import Batches, plan_batches
from halfwise.judging.batching import Apart, Batching, batch_axes, dynamic_inputs, try_batching
from halfwise.judging.judge import judge_outputs
from halfwise.metrics import Excess, Outputs, totals
from halfwise.records import (
    DynamicAxis,
    Failure,
    JudgedBatch,
    NotBatched,
    Profile,
    ShapeRange,
    TensorName,
    Verdict,
)
from halfwise.reporting.remarks import under, with_failures

_JUDGED = 4
"""Samples joined in pairs: what breaks at another size breaks for most."""
_JUDGED_BY_METRIC = 64
"""The same for a metric, which says little about four samples."""

_Shapes = dict[TensorName, tuple[int, ...]]


@dataclass(frozen=True)
class _Tried:
    """The batch axis of each input; results of batches, or why there are none."""

    inputs: Mapping[TensorName, int]
    batch: JudgedBatch | None = None
    why: NotBatched | None = None
    detail: str = ""


def judge_sizes(
    verdict: Verdict,
    case: Case,
    candidate: ir.Model | None,
    samples: Samples,
    references: Sequence[Outputs],
    settings: Settings,
) -> Verdict:
    """Add to `verdict` the result of batches, and the judged sizes of the dynamic axes.

    If all samples have one size along the batch axis, a few are joined in pairs. These fail the
    verdict if they are out of tolerance, relative to the reference values of all samples. A model
    without dynamic axes keeps its verdict unchanged.

    Args:
        verdict: On `samples`.
        case: The reference, the criterion and the metric.
        candidate: The judged typed model; None for recorded outputs.
        samples: The judged samples; each is loaded once for its shapes.
        references: Reference outputs of each.
        settings: Where to run, and the format of sums.
    """
    dynamic = dynamic_inputs(case.network)
    if not dynamic or not samples:
        return verdict
    shapes = [{name: sample[name].shape for name in dynamic} for sample in samples]
    tried = _Tried(next(batch_axes(case.network), {}))
    sizes = [{shape[name][axis] for shape in shapes} for name, axis in tried.inputs.items()]
    if tried.inputs and all(len(each) == 1 for each in sizes):
        few = samples.select(_alike(shapes, _JUDGED_BY_METRIC if case.metric else _JUDGED))
        if candidate is None:
            tried = replace(tried, why="recorded")
        else:
            tried = _in_batches(case, candidate, few, references, settings)
    verdict = verdict.model_copy(
        update={"batch": tried.batch, "axes": _axes(dynamic, shapes, tried)}
    )
    if tried.batch is None or tried.batch.passed:
        return verdict
    return with_failures(verdict, under("batch", tried.batch.size, tried.batch.failures))


def _alike(shapes: Sequence[_Shapes], limit: int) -> list[int]:
    """Return indices of the first samples with the most frequent shapes."""
    keys = [tuple(shape.items()) for shape in shapes]
    ((common, _),) = Counter(keys).most_common(1)
    return [index for index, key in enumerate(keys) if key == common][:limit]


def _in_batches(
    case: Case,
    candidate: ir.Model,
    samples: Samples,
    references: Sequence[Outputs],
    settings: Settings,
) -> _Tried:
    session = Session(case.network.model, runtime=settings.runtime)
    found = try_batching(case.network, session, samples)
    tried = _Tried(found.inputs)
    whole = isinstance(found, Apart)
    if isinstance(found, Apart):
        if any(found.inputs.values()):
            return _Tried({})  # an axis such as a width: only real samples count there
        if found.why != "whole":
            why = None if found.why == "axis" else found.why
            return replace(tried, why=why, detail=found.reason)
        if case.metric is not None:
            return replace(tried, why="metric", detail=found.reason)
        found = Batching(found.inputs, {}, {})
    batches, size = _by_twos(found, samples)
    assert batches.samples is not None
    assert batches.judged is not None
    try:
        wanted: list[Outputs] = [session.run(batch) for batch in batches.samples]
    except RunFailed as error:
        return replace(tried, why="fails", detail=error.message)
    judged = batches.samples if whole else batches.judged
    record = JudgedBatch(
        size=size,
        shapes=batches.shapes,
        samples=judged.ids,
        whole=whole,
        passed=False,
        rel_max={},
    )
    session = Session(
        emulate_typed(candidate, accumulate=settings.accumulate), runtime=settings.runtime
    )
    try:
        results: list[Outputs] = [session.run(batch) for batch in batches.samples]
    except RunFailed as error:
        told = (Failure(kind="batch", names={"why": error.message}),)
        return replace(tried, batch=with_failures(record, told))
    if not whole:
        wanted, results = batches.take_apart(wanted), batches.take_apart(results)
    verdict = judge_outputs(results, judged, wanted, case.criterion, case.metric).verdict
    excess = Excess(case.criterion, totals([*references, *wanted]))
    for reference, result in zip(wanted, results, strict=True):
        excess.update(reference, result)
    # A few samples may have smaller values than the whole set, which sets the tolerance.
    passed = verdict.passed or (case.metric is None and excess.value <= 1)
    update = {
        "passed": passed,
        "rel_max": {name: error.rel_max for name, error in verdict.outputs.items()},
    }
    record = record.model_copy(update=update)
    return replace(tried, batch=record if passed else with_failures(record, verdict.failures))


def _by_twos(batching: Batching, samples: Samples) -> tuple[Batches, int]:
    """Return batches of two samples each, and their size; all samples have the same shapes."""
    first = samples[0]
    size = 2 * (batching.size(first) or 0)
    shapes = {}
    for name, axis in batching.inputs.items():
        shape = (*first[name].shape[:axis], size, *first[name].shape[axis + 1 :])
        shapes[name] = ShapeRange(min=shape, opt=shape, max=shape)
    (batches,) = plan_batches(batching, "", [Profile(shapes=shapes)], samples)
    return batches, size


def _axes(
    dynamic: Mapping[TensorName, Sequence[int | str | None]],
    shapes: Sequence[_Shapes],
    tried: _Tried,
) -> tuple[DynamicAxis, ...]:
    """Return the dynamic axes; axes of several inputs are one if symbol and all samples agree.

    Exporters label what they do not know: '?' on height and width, which no sample has equal.
    """
    groups: dict[object, list[tuple[TensorName, int]]] = {}
    for name, axes in dynamic.items():
        found_here: Counter[object] = Counter()
        for axis, symbol in enumerate(axes):
            if not isinstance(symbol, int):
                is_batch = tried.inputs.get(name) == axis
                key: object = "" if is_batch else symbol or (name, axis)
                key = key, tuple(shape[name][axis] for shape in shapes)
                groups.setdefault((key, found_here[key]), []).append((name, axis))
                found_here[key] += 1
    found = []
    for places in groups.values():
        name, axis = places[0]
        is_batch = tried.inputs.get(name) == axis
        sizes = {shape[name][axis] for shape in shapes}
        if is_batch and tried.batch is not None:
            sizes.add(tried.batch.size)
        symbol = dynamic[name][axis]
        found.append(
            DynamicAxis(
                inputs=dict(places),
                symbol=symbol if isinstance(symbol, str) else None,
                sizes=tuple(sorted(sizes)),
                why=tried.why if is_batch else None,
                detail=tried.detail if is_batch else "",
            )
        )
    return tuple(found)
