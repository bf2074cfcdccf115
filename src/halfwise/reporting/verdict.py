"""The verdict with its figures, task metrics, and plans on offer."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import floor, isfinite
from typing import Literal

from halfwise.metrics import AUTO, by_outputs, effective, rises, usual
from halfwise.metrics.recognised import KINDS, REL_MAX, SEEN
from halfwise.metrics.slices import extent, place
from halfwise.metrics.untested import FEWEST_ROWS
from halfwise.records import (
    OF_METRIC,
    Criterion,
    DynamicAxis,
    FailureBound,
    FileRun,
    JudgedBatch,
    MetricResult,
    NotBatched,
    Run,
    SliceGroup,
    TaskScore,
    Unjudged,
    UnjudgedKind,
    Verdict,
)
from halfwise.reporting.parts import Lines, first_of
from halfwise.wording import (
    FEW,
    MOST_ROWS,
    count,
    filled,
    listed,
    number,
    percent,
    ratio,
    sentence,
    shorten,
    verb,
)


def allowed_together(criterion: Criterion) -> str:
    """Return what each recognised output, and the others, must meet, in one clause."""
    each = (
        f"{one.metric} of {listed(one.outputs)} {_limit(one.metric, one.required)}"
        for one in criterion.recognised
    )
    return sentence(f"{', '.join(each)}, default tolerance for other outputs")


def part_lines(models: Mapping[str, MetricResult]) -> Iterator[str]:
    """Yield a line for each part of a metric.

    Args:
        models: Results of one metric on the same samples, by model name.
    """
    for parts in zip(*(result.parts for result in models.values()), strict=True):
        values = (f"{_value(part)} {name}" for name, part in zip(models, parts, strict=True))
        limit = _limit(parts[0].metric, parts[0].required)
        tested = "" if parts[0].metric == REL_MAX else rests_on(parts[0])
        text = ", ".join([*values, tested] if tested else values)
        yield f"{_of(parts[0])}: {text}; {limit}."


def metrics_of(result: MetricResult) -> str:
    """Return a result's metrics: `top1 and the largest error of other outputs`, or `top1`."""
    names = {REL_MAX: "the largest error of other outputs"}
    shown = [names.get(name, sentence(name)) for name in result.metrics]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def figures(result: MetricResult) -> str:
    """Return a result's values, such as `top1 0.98`; of several metrics, each with its outputs."""
    if not result.parts:
        value = number(usual(result.name, result.candidate))
        return f"{sentence(result.name)} {value}"
    each = (
        f"{_of(part, start=False)} {number(usual(part.metric, part.value))}"
        for part in result.parts
    )
    return ", ".join(each)


def heading_of(result: MetricResult) -> str:
    """Return the heading of a column of `values_of`."""
    return "; ".join(shorten(part.metric, 16) for part in result.parts) or shorten(result.name, 16)


def values_of(result: MetricResult) -> Iterator[str]:
    """Yield the value of each part of a metric, or its only value."""
    for part in result.parts:
        yield _value(part)
    if not result.parts:
        yield number(usual(result.name, result.candidate), 6)


def rests_on(score: TaskScore | MetricResult) -> str:
    """Return what a score rests on, such as `on 3 boxes`; "" if unknown."""
    return "" if score.evidence is None else counted(score.evidence, score.unit or "")


def counted(evidence: int, unit: str) -> str:
    """Return what a score rests on, given its support; "" for an unknown unit."""
    one = {"boxes": "box"}.get(unit, unit.removesuffix("s"))
    return f"on {evidence} {verb(evidence, one, unit)}" if unit else ""


def weakest(scores: Sequence[TaskScore]) -> TaskScore | None:
    """Return the score that rests on least, if that is fewer than `FEWEST_ROWS`; else None."""
    few = [score for score in scores if score.evidence is not None and score.evidence < FEWEST_ROWS]
    return min(few, key=lambda score: score.evidence or 0, default=None)


def _of(part: TaskScore, *, start: bool = True) -> str:
    error = "Largest error" if start else "largest error"
    what = error if part.metric == REL_MAX else sentence(part.metric)
    return f"{what} of {listed(part.outputs)}"


def _value(part: TaskScore) -> str:
    return number(usual(part.metric, part.value), 6)


def _limit(metric: str, required: float) -> str:
    return f"{'≤' if rises(metric) else '≥'} {_required(metric, required)}"


def _required(metric: str, required: float) -> str:
    """Return what is required, with more digits where three would say 1."""
    limit = usual(metric, required)
    return number(limit, 6 if 0.9995 <= limit < 1 else 3)


def allowed(criterion: Criterion) -> str:
    """Return what makes a result acceptable, in one clause."""
    holds = effective(criterion)
    if holds.metric == AUTO:
        return allowed_together(holds)
    if holds.metric is not None:
        whose = f" by default ({holds.drop_source})" if holds.drop_source else ""
        may = "may rise by" if rises(holds.metric) else "may fall by"
        return f"{sentence(holds.metric)} {may} {number(holds.metric_drop)}{whose}"
    return ", ".join(
        f"{name} {sign} {number(limit)}" for _, name, sign, limit in thresholds(criterion)
    )


def asked(criterion: Criterion, verdict: Verdict) -> Iterator[str]:
    """Yield what a result must meet, why, and what the default tolerance would have said."""
    if criterion.failing is not None:
        yield f"at most {percent(criterion.failing)} of inputs may fail"
    if not criterion.recognised:
        unknown = " (outputs not recognised)" * (criterion == Criterion(failing=criterion.failing))
        yield f"allowed: {allowed(criterion)}{unknown}"
        return
    # With labels, what is required depends on FP32's own value.
    parts = () if verdict.metric is None else verdict.metric.parts
    required = {(part.metric, part.outputs): part.required for part in parts}
    judged = by_outputs(criterion.recognised)
    for outputs, alike in judged.items():
        why = ", ".join(SEEN[each] for each in alike[0].evidence)
        limits = ", ".join(
            f"{one.metric} {_limit(one.metric, required.get((one.metric, outputs), one.required))}"
            for one in alike
        )
        limits = limits if criterion.metric == AUTO else allowed(criterion)
        yield f"{listed(outputs)} judged as {KINDS[alike[0].kind]} ({why}): {limits}"
    others = verdict.outputs.keys() - {name for outputs in judged for name in outputs}
    if others and criterion.metric == AUTO:
        yield f"other outputs: {allowed(Criterion())}"
    if (worst := verdict.strict) is not None:
        by = f", at {ratio(worst)} that" if isfinite(worst) else ""
        would = f"would fail{by}" if worst > 1 else f"would pass{' too' * verdict.passed}"
        yield f"--strict, 1 % of the largest value, {would}"


_THRESHOLDS: Mapping[str, tuple[str, Literal["≤", "≥"]]] = {
    "max_abs": ("max abs", "≤"),
    "rel_max": ("rel max", "≤"),
    "snr_db": ("SNR dB", "≥"),
    "cosine": ("cosine", "≥"),
}


def thresholds(criterion: Criterion) -> Iterator[tuple[str, str, Literal["≤", "≥"], float]]:
    """Yield each threshold that a criterion sets: field, name, direction, limit."""
    holds = effective(criterion)
    for field, (name, sign) in _THRESHOLDS.items():
        if (limit := getattr(holds, field)) is not None:
            yield field, name, sign, limit


def beyond_seen(run: Run, start: str) -> str:
    """Return the ranges at which plans were tried, as a clause after `start`; "" if irrelevant."""
    repaired = run.plan is not None and run.plan.low == "fp16" and run.plan.repairs
    if not (repaired or any(guard.kind == "headroom" for guard in run.guards)):
        return ""
    return f"{start} {ratio(run.headroom)} the ranges seen"


WEAK = 0.1
"""Share of failing inputs that enough samples must exclude: 29 passing ones do."""


def bound_part(run: Run) -> Lines | None:
    """Return what the verdict's samples show about similar inputs; None if unknown."""
    verdict = run.verdict
    if verdict.failure_bound is None:
        return None
    return Lines("What the samples can show", (sentence(_bounded(verdict.failure_bound)),))


def sums_wide(verdict: Verdict) -> bool:
    """Return whether the model is only known to pass where sums are in FP32."""
    return verdict.passed and verdict.sums == "fp32"


def doubt(verdict: Verdict) -> str:
    """Return an addition to a result's title: untested outputs, noise, or few samples."""
    bound = verdict.failure_bound
    doubts = [] if verdict.judged else _untested(verdict.unjudged)
    if not verdict.on_real_data:
        doubts.append("the inputs are random or made up")
    if doubts:
        return f": {', and '.join(doubts)}"
    if not verdict.passed or not verdict.unseen:
        return ""
    rests = "" if verdict.metric is None else _rests(verdict.metric)
    if bound is None or bound.upper <= WEAK:
        return rests
    # `upper_bound(0, 300)` is just below 1 %.
    shown = floor(100 * (1 - bound.upper))
    return f"{rests}. That few show at least {shown} % of inputs; 300 would show 99 %."


def _rests(result: MetricResult) -> str:
    """Return what a result's weakest score rests on, after a semicolon; "" if that is enough."""
    if (part := weakest(result.parts)) is not None:
        return f"; {sentence(part.metric)} rests {rests_on(part)}"
    few = not result.parts and result.evidence is not None and result.evidence < FEWEST_ROWS
    return f"; {sentence(result.name)} rests {rests_on(result)}" if few else ""


def _untested(unjudged: Sequence[Unjudged]) -> list[str]:
    """Return in one clause what no sample tests; empty if all is tested."""
    bodies = [f"{u.body} of node {shorten(u.name)}" for u in unjudged if u.kind == "never-ran"]
    metrics = [shorten(u.name) for u in unjudged if u.kind in OF_METRIC]
    others = [u.name for u in unjudged if u.kind not in ("never-ran", *OF_METRIC)]
    what = [f"{verb(len(others), 'output', 'outputs')} {listed(others, 2)}"] if others else []
    what += [listed(names, 2) for names in (bodies, metrics) if names]
    return [f"no sample tests {', '.join(what)}"] if what else []


def _bounded(bound: FailureBound) -> str:
    failing = f"{bound.failing} of" if bound.failing else "None of"
    fail = "fails" if bound.failing < 2 else "fail"
    joined = f"; counting the {bound.joined} that joined the search as failing," * (
        bound.joined > 0
    )
    clause = f"{failing} {count(bound.judged, 'sample')} {fail} alone"
    if bound.upper >= 1:
        return f"{clause}."
    sure = f"with {percent(bound.confidence)} confidence"
    return (
        f"{clause}{joined or ':'} "
        f"{sure} at most {share(bound.upper)} of all inputs do, if the samples were drawn from "
        "them independently (Clopper-Pearson)."
    )


def share(upper: float) -> str:
    """Return a share in %, rounded up, so that it stays a bound."""
    digits = 0 if upper > 0.1 else 1 if upper > 0.01 else 2
    step = 10.0**digits
    return f"{-(-upper * 100 * step // 1) / step:.{digits}f} %"


ANY_SAMPLE = (
    "The outputs of another sample would pass in place of each: the criterion sees little of them, "
    "or the samples are alike."
)


_LABELS = "[{labelled}. Do the labels fit? Classes count from 0]"
_UNJUDGED: Mapping[UnjudgedKind, str] = {
    "never-ran": "{op} node {name}: {body} never ran, on any sample"
    "[; input {inputs} decides whether it runs]",
    "metric": "{name} would accept near-zero values for all outputs: they score {other}, the FP32 "
    "outputs {reference}, and a {way} of {allowed} is allowed" + _LABELS,
    "guessing": "{name}: the FP32 outputs score {reference}, no better than guessing, {other}"
    + _LABELS,
    "absent": "{name}: FP32 itself finds nothing, on any sample",
    "non-finite": "output {name}: FP32 itself gives no finite value, on any sample",
    "empty": "output {name}: it is empty on every sample",
    "zeros": "output {name}: zeros would pass for its values[, whose largest is {largest}]",
    "flat": "output {name}: a constant would pass for its values, which range from {reference} to "
    "{other}",
    "constant": "output {name}: its target is constant, so psnr has no peak",
}
"""Templates, see `wording.filled`."""


def not_judged(unjudged: Unjudged) -> str:
    """Return what is not judged and why, as a clause with numbers."""
    is_metric = unjudged.kind in OF_METRIC
    reference, other = (
        usual(unjudged.name, value) if is_metric else value
        for value in (unjudged.reference, unjudged.other)
    )
    facts: dict[str, str | float] = {
        "op": unjudged.op,
        "name": unjudged.name,
        "body": unjudged.body,
    }
    facts |= {"reference": reference, "other": other, "allowed": unjudged.allowed}
    facts["way"] = "rise" if is_metric and rises(unjudged.name) else "drop"
    facts |= {"inputs": listed(unjudged.inputs)} if unjudged.inputs else {}
    facts |= {"labelled": ""} if unjudged.labelled else {}
    facts |= {"largest": reference} if reference else {}
    return f"not judged: {filled(_UNJUDGED[unjudged.kind], facts)}"


_WHY: dict[NotBatched, str] = {
    "sizes": "no batches could be formed: {detail}",
    "fails": "no batches were judged: {detail}",
    "metric": "no batches were judged: {detail}, and the metric reads one sample at a time",
    "recorded": "recorded outputs have no other",
}


def size_lines(verdict: Verdict) -> Iterator[str]:
    """Yield a line for each dynamic axis."""
    for axis in verdict.axes:
        if len(axis.sizes) > 1:
            batch = verdict.batch
            if batch is not None and batch.size != axis.sizes[-1]:
                batch = None
            yield f"{_name(axis)} is dynamic: judged at {_sizes(axis.sizes)}{_batches(batch)}."
        else:
            why = "" if axis.why is None else f"; {_WHY[axis.why].format(detail=axis.detail)}"
            size = "".join(map(str, axis.sizes))
            yield (
                f"{_name(axis)} is dynamic, and every sample has size {size}: no other size was "
                f"judged{why}."
            )


def _name(axis: DynamicAxis) -> str:
    inputs = dict.fromkeys(axis.inputs.values())
    where = f"Axis {next(iter(inputs))}" if len(inputs) == 1 else "An axis"
    symbol = "" if axis.symbol is None else f" '{shorten(axis.symbol, 20)}'"
    return f"{where}{symbol} of {listed(list(axis.inputs))}"


def _sizes(sizes: Sequence[int]) -> str:
    if len(sizes) > FEW:
        return f"{len(sizes)} sizes from {sizes[0]} to {sizes[-1]}"
    return f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"


def _batches(batch: JudgedBatch | None) -> str:
    if batch is None:
        return ""
    text = f"{count(len(batch.samples), 'sample')} combined"
    if batch.whole:
        text = f"whole batches of {batch.size}, since not all outputs divide into samples"
    advice = "" if batch.passed else "; give inputs in such batches, so that the search uses them"
    return f" ({text}{advice})"


def scale_lines(verdict: Verdict) -> Lines | None:
    """Return a line for each group of slices, failed ones first; None if there are none."""
    groups = [(name, group) for name, error in verdict.outputs.items() for group in error.groups]
    if not groups:
        return None
    groups.sort(key=lambda one: one[1].passed)
    lines = [_line(name, group, verdict) for name, group in groups]
    return Lines("Scales within outputs", tuple(first_of(lines, most=MOST_ROWS)))


def _line(name: str, group: SliceGroup, verdict: Verdict) -> str:
    failed = "" if group.passed else ": too much"
    room = f", {number(group.room)} times the tolerance as they are few" if group.room > 1 else ""
    return (
        f"{shorten(name, 28)}, {sentence(place(group, verdict.samples))}: "
        f"{extent(group)}, off by {number(group.max_abs)} of {number(group.allowed)} "
        f"allowed{room}{failed}."
    )


def inside(verdict: Verdict) -> Lines | None:
    """Return the paragraph on non-finite values; None if all are finite."""
    lines = (*_of_reference(verdict), *non_finite(verdict))
    return Lines("Non-finite values", lines) if lines else None


def _of_reference(verdict: Verdict) -> Iterator[str]:
    """Yield which outputs are not finite in FP32 either, and so not measured there."""
    sides = {n: e.reference for n, e in verdict.outputs.items() if e.reference.nonfinite}
    if sides:
        some = sum(side.nonfinite for side in sides.values())
        elements = sum(side.elements for side in sides.values())
        yield (
            f"FP32 itself gives NaN or infinite values in {listed(list(sides))}, {some} of "
            f"{count(elements, 'value')}: these must match, and errors are over the others."
        )


def non_finite(verdict: Verdict) -> Iterator[str]:
    """Yield the number of non-finite inner tensors, the first that matters, and harmless ones.

    In many models the first is a mask that becomes infinite before its Softmax: not a cause.
    """
    tensors = verdict.intermediate_nonfinite
    if not tensors:
        return
    harmful = [t for t in tensors if not t.harmless]
    first = (harmful or tensors)[0]
    which = "first" if first is tensors[0] else "first of those that may do harm"
    origin = f" (node {shorten(first.producer)})" if first.producer else ""
    yield (
        f"Inside, {count(len(tensors), 'tensor')} {verb(len(tensors), 'has', 'have')} NaN or "
        f"infinite values where FP32 has none, {which} {shorten(first.tensor)}{origin}."
    )
    ends = Counter(t.ends for t in tensors if t.harmless)
    for end, some in ends.items():
        who = f"{some} of them {verb(some, 'does', 'do')}" if some < len(tensors) else "They do"
        yield f"{who} no harm{_ENDS[end]}."


_ENDS = {
    "limit": ", nor would larger inputs: what reads them has a finite limit there, and FP32 is at "
    "it",
    "unseen": " that was seen: what reads them has a finite limit there, and no sample shows "
    "whether FP32 is at it",
    "wrong": ": the values are wrong before, and give the same results with these nodes in FP32",
    "unread": ": nothing computes with them",
    None: "",
}
"""How harmless infinities end, see `IntermediateNonfinite.ends`."""


def file_lines(verdict: Verdict) -> Iterator[str]:
    """Yield the file's results where it was run or built, next to the emulation's."""
    for run in verdict.as_file:
        if run.folded:
            yield f"{run.runner} builds the file, but with {listed(run.folded)} in low precision."
        elif run.built:
            yield f"{run.runner} builds the file, every kept product in FP32; it was not run there."
        elif run.not_run:
            yield f"{run.runner} did not run the file: {run.not_run}"
        else:
            yield f"When {run.runner} runs the file: {_figure(run)}; emulated: {_figure(verdict)}."


def places(verdict: Verdict) -> str:
    """Return where a file that passed ran besides ONNX Runtime here, and where it was built."""
    targets = verdict.as_file[1:] if verdict.passed else ()
    # Without what a runner is set to.
    names = {run.runner.partition(" (")[0]: run.built for run in targets}
    ran = "".join(f" and on {name}" for name, built in names.items() if not built)
    return ran + "".join(f", built by {name}" for name, built in names.items() if built)


def _figure(side: Verdict | FileRun) -> str:
    if side.metric is not None:
        return figures(side.metric)
    return f"rel max {number(max((o.rel_max for o in side.outputs.values()), default=0.0))}"
