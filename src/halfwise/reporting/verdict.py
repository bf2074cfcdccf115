"""What a verdict rests on: what is allowed, what was judged, and what the samples can show."""

from collections.abc import Iterator, Mapping
from math import floor, isfinite
from typing import Literal

from halfwise.metrics import AUTO, by_outputs, effective, rises, usual
from halfwise.metrics.recognised import KINDS, REL_MAX, SEEN
from halfwise.metrics.slices import place
from halfwise.metrics.untested import FEWEST_ROWS
from halfwise.records import (
    OF_METRIC,
    Criterion,
    FileRun,
    MetricResult,
    Run,
    TaskScore,
    Unjudged,
    Verdict,
)
from halfwise.reporting.parts import WORDS, Lines, first_of, lines_of, say
from halfwise.wording import FEW, MOST_ROWS, listed, number, percent, ratio, sentence, shorten, verb


def allowed_together(criterion: Criterion) -> str:
    """Return what is allowed of outputs that are judged by what they are, as a clause."""
    each = (
        f"{one.metric} of {listed(one.outputs)} {_limit(one.metric, one.required)}"
        for one in criterion.recognised
    )
    return sentence(f"{', '.join(each)}, default tolerance for other outputs")


def part_lines(models: Mapping[str, MetricResult]) -> Iterator[str]:
    """Yield a sentence for each metric of several: its value in each model, by name, and limit."""
    for parts in zip(*(result.scores for result in models.values()), strict=True):
        part, on = parts[0], rests_on(parts[-1])
        values = [f"{n} {_value(one, 6)}" for n, one in zip(models, parts, strict=True)]
        values += [on] if on and part.metric != REL_MAX else []
        yield f"{_of(part)}: {', '.join(values)}; {_limit(part.metric, part.required)}."


def figures(result: MetricResult) -> str:
    """Return the value of each metric."""
    return ", ".join(f"{_of(score)} {_value(score)}" for score in result.scores)


def rests_on(score: TaskScore) -> str:
    """Return how much a score rests on, such as `on 3 boxes`; "" if that is unknown."""
    if score.evidence is None or score.unit is None:
        return ""
    one = "box" if score.unit == "boxes" else score.unit.removesuffix("s")
    return f"on {score.evidence} {verb(score.evidence, one, score.unit)}"


def _of(part: TaskScore) -> str:
    what = "largest error" if part.metric == REL_MAX else sentence(part.metric)
    return f"{what} of {listed(part.outputs)}" if part.outputs else what


def _value(part: TaskScore, digits: int = 3) -> str:
    return number(usual(part.metric, part.value), digits)


def _limit(metric: str, required: float) -> str:
    limit = usual(metric, required)
    return f"{'≤' if rises(metric) else '≥'} {number(limit, 6 if 0.9995 <= limit < 1 else 3)}"


def allowed(criterion: Criterion) -> str:
    """Return what is allowed, as a clause."""
    holds = effective(criterion)
    if holds.metric == AUTO:
        return allowed_together(holds)
    if holds.metric is not None:
        metric = {"metric": sentence(holds.metric), "rises": rises(holds.metric)}
        return say("allowed", "metric", holds, metric)
    limits = (f"{name} {sign} {number(limit)}" for _, name, sign, limit in thresholds(criterion))
    return ", ".join(limits)


def asked(criterion: Criterion, verdict: Verdict, *, heldout: bool) -> Iterator[str]:
    """Yield which question was asked of the outputs and why, and what the strict one gives.

    `heldout`: whether held-out samples judge.
    """
    if criterion.failing is not None:
        yield f"at most {percent(criterion.failing)} of inputs may fail"
    unknown = Criterion(failing=criterion.failing, untested=criterion.untested)
    untested = "; ".join(
        f"{listed(one.outputs)} would be judged as {KINDS[one.kind]}, but no sample shows any"
        for one in criterion.untested
    )
    if not criterion.recognised:
        why = f" ({untested or 'outputs not recognised'})" * (criterion == unknown)
        yield f"allowed: {allowed(criterion)}{why}"
        return
    parts = () if verdict.metric is None else verdict.metric.parts
    required = {(part.metric, part.outputs): part.required for part in parts}
    judged = by_outputs(criterion.recognised)
    for outputs, alike in judged.items():
        limits = (
            f"{one.metric} {_limit(one.metric, required.get((one.metric, outputs), one.required))}"
            for one in alike
        )
        yield say(
            "allowed",
            "recognised",
            outputs=outputs,
            kind=KINDS[alike[0].kind],
            why=", ".join(SEEN[each] for each in alike[0].evidence),
            limits=", ".join(limits) if criterion.metric == AUTO else allowed(criterion),
        )
    others = verdict.outputs.keys() - {name for outputs in judged for name in outputs}
    if others and criterion.metric == AUTO:
        yield f"other outputs: {allowed(Criterion())}{untested and f' ({untested})'}"
    if (worst := verdict.strict) is not None:
        facts = {"fails": worst > 1, "passed": verdict.passed, "heldout": heldout and worst <= 1}
        # Targets are not asked it.
        facts["elsewhere"] = len(verdict.as_file) > 1
        yield say("allowed", "strict", facts, worst=worst if isfinite(worst) else None)


_THRESHOLDS: Mapping[str, tuple[str, Literal["≤", "≥"]]] = {
    "max_abs": ("max abs", "≤"),
    "rel_max": ("rel max", "≤"),
    "snr_db": ("SNR dB", "≥"),
    "cosine": ("cosine", "≥"),
}


def thresholds(criterion: Criterion) -> Iterator[tuple[str, str, Literal["≤", "≥"], float]]:
    """Yield each limit on errors: its field, name, direction and value."""
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
    bound = run.verdict.failure_bound
    if bound is None:
        return None
    facts = {"several": bound.failing > 1, "failing": bound.failing or None}
    upper = share(bound.upper) if bound.upper < 1 else None
    told = say("shown", "bound", bound, facts, joined=bound.joined or None, share=upper)
    return Lines("What the samples can show", (sentence(told),))


def share(upper: float) -> str:
    """Return a share in %, rounded up, so that it stays a bound."""
    digits = 0 if upper > 0.1 else 1 if upper > 0.01 else 2
    step = 10.0**digits
    return f"{-(-upper * 100 * step // 1) / step:.{digits}f} %"


def sums_wide(verdict: Verdict) -> bool:
    """Return whether the model is only known to pass where sums are in FP32."""
    return verdict.passed and verdict.sums == "fp32"


def doubt(verdict: Verdict) -> str:
    """Return the end of a title: what is in doubt, or how little so few samples show."""
    bound, result = verdict.failure_bound, verdict.metric
    untested = () if verdict.judged else verdict.unjudged
    doubts = [f"no sample tests {listed([*map(_named, untested)])}"] if untested else []
    if not verdict.on_real_data:
        doubts.append("the inputs are random or made up")
    if doubts:
        return f": {', and '.join(doubts)}"
    if not verdict.passed or not verdict.unseen:
        return ""
    scores = () if result is None else result.scores
    few = [s for s in scores if s.evidence is not None and s.evidence < FEWEST_ROWS]
    weak = min(few, key=lambda score: score.evidence or 0, default=None)
    return say(
        "shown",
        "doubt",
        name=weak and sentence(weak.metric),
        on=weak and rests_on(weak),
        share=None if bound is None or bound.upper <= WEAK else floor(100 * (1 - bound.upper)),
    )


def _named(unjudged: Unjudged) -> str:
    if unjudged.kind in OF_METRIC:
        return unjudged.name
    what = f"{unjudged.body} of node" if unjudged.body else "output"
    return f"{what} {unjudged.name}"


ANY_SAMPLE = WORDS["shown"]["any sample"]


def not_judged(unjudged: Unjudged, *, heldout: bool) -> str:
    """Return what is not judged and why, as a clause; `heldout`: whether held-out samples judge."""
    facts: dict[str, object] = {"largest": unjudged.reference or None}
    if unjudged.kind in OF_METRIC:
        facts = {at: usual(unjudged.name, getattr(unjudged, at)) for at in ("reference", "other")}
        facts["way"] = "rise" if rises(unjudged.name) else "drop"
    return f"not judged: {say('unjudged', unjudged.kind, unjudged, facts, heldout=heldout)}"


def size_lines(verdict: Verdict) -> Iterator[str]:
    """Yield at which sizes of each dynamic axis the outputs were judged, and why at no other."""
    for axis in verdict.axes:
        batch, sizes, inputs = verdict.batch, axis.sizes, dict.fromkeys(axis.inputs.values())
        facts: dict[str, object] = {
            "at": next(iter(inputs)) if len(inputs) == 1 else None,
            "symbol": axis.symbol and shorten(axis.symbol, 20),
            "inputs": tuple(axis.inputs),
            "sizes": ", ".join(map(str, sizes)),
            "several": len(sizes) > 1,
            "many": len(sizes) if len(sizes) > FEW else None,
            "least": min(sizes, default=0),
            "most": max(sizes, default=0),
            "why": axis.why and say("sizes", axis.why, axis),
        }
        if batch is not None and sizes and batch.size == sizes[-1]:
            facts |= {"batch": batch.size, "whole": batch.whole, "failed": not batch.passed}
            facts["combined"] = len(batch.samples)
        yield say("shown", "size", facts)


def scale_lines(verdict: Verdict) -> Lines | None:
    """Return the errors of slices and samples that have a scale of their own; None if none has."""
    groups = [(name, group) for name, error in verdict.outputs.items() for group in error.groups]
    groups.sort(key=lambda one: one[1].passed)
    lines = [
        say(
            "shown",
            "scale",
            group,
            output=shorten(name, 28),
            place=sentence(place(group, verdict.samples)),
            room=group.room if group.room > 1 else None,
        )
        for name, group in groups
    ]
    return lines_of("Scales within outputs", first_of(lines, most=MOST_ROWS))


def inside(verdict: Verdict) -> Lines | None:
    """Return what is not finite in FP32's outputs, and inside the judged model; None if nothing."""
    sides = {n: e.reference for n, e in verdict.outputs.items() if e.reference.nonfinite}
    some = sum(side.nonfinite for side in sides.values())
    of = sum(side.elements for side in sides.values())
    own = say("inside", "reference", outputs=tuple(sides), some=some, elements=of)
    return lines_of("Non-finite values", (*([own] if sides else ()), *non_finite(verdict)))


def non_finite(verdict: Verdict) -> Iterator[str]:
    """Yield which tensors inside are not finite where FP32's are, and whether that does harm."""
    tensors = verdict.intermediate_nonfinite
    if not tensors:
        return
    first = next((t for t in tensors if not t.harmless), tensors[0])
    which = "first" if first is tensors[0] else "first of those that may do harm"
    where = {"first": shorten(first.tensor), "node": first.producer and shorten(first.producer)}
    yield say("inside", "tensors", where, tensors=tensors, which=which)
    if some := sum(t.harmless is True for t in tensors):
        who = f"{some} of them {verb(some, 'does', 'do')}" if some < len(tensors) else "They do"
        yield f"{who} no harm{WORDS['inside']['harmless']}."


def file_lines(verdict: Verdict) -> Iterator[str]:
    """Yield how the written file did where it was run or built, next to the emulation."""
    for run in verdict.as_file:
        yield say("shown", "file", run, own=_figure(run), emulated=_figure(verdict))


def failing_runners(verdict: Verdict) -> tuple[str, ...]:
    """Return what runs or builds a file that fails nowhere else; none if it fails elsewhere too."""
    said = [f.under.get("file", f.names.get("runner", "")) for f in verdict.failures]
    return tuple(dict.fromkeys(str(name).partition(" (")[0] for name in said)) if all(said) else ()


def places(verdict: Verdict) -> str:
    """Return where a file that passed ran besides ONNX Runtime here, and where it was built.

    Of one that only fails where it runs or is built: where.
    """
    if failing := failing_runners(verdict):
        return f" on {listed(failing)}"
    targets = verdict.as_file[1:] if verdict.passed else ()
    # Without what a runner is set to.
    names = {run.runner.partition(" (")[0]: run.built for run in targets}
    ran = "".join(f" and on {name}" for name, built in names.items() if not built)
    return ran + "".join(f", built by {name}" for name, built in names.items() if built)


def _figure(side: Verdict | FileRun) -> str:
    if side.metric is not None:
        return figures(side.metric)
    return f"rel max {number(max((o.rel_max for o in side.outputs.values()), default=0.0))}"
