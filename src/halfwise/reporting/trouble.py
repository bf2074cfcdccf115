"""Words on what the low format does to a model: what fails, and the causes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from halfwise.metrics import rises, usual
from halfwise.records import Followed, Plan, Run, Verdict
from halfwise.reporting.guards import (
    CAUSES,
    Reason,
    reason_of,
)
from halfwise.reporting.origins import appears, carried, flipped, followed_over
from halfwise.reporting.parts import Lines
from halfwise.reporting.tasks import wrong_parts
from halfwise.reporting.verdict import non_finite
from halfwise.wording import (
    count,
    everything_low,
    listed,
    number,
    ratio,
    sentence,
    shorten,
    verb,
)

_UNGUARDED: Mapping[Reason, str] = {
    "rule": "rules of the user",
    "model": "types in the file itself",
    "engine": "what the engine needs or is faster with",
    "flip": "decisions that change, of {decision}",
    "origin": "error that {verb} at {origin}",
    "channel": "error that channel {index} of {tensor} carries",
    "accumulated error": "accumulated error",
    "spare": "conversions, which would cost more than lowering saves",
    "effect": "unknown, effect measured",
    "unknown": "unknown, not lowered",
}
_UNKNOWN = ("effect", "unknown")
_LAST = ("spare", *_UNKNOWN)

_ASKED = ("margin", "headroom")


def trouble(run: Run, *, brief: bool = False) -> Lines | None:
    """Return what fails with everything low, and why; None if that was not judged.

    Args:
        run: The run.
        brief: Omit non-finite inner values and the usual fixes.
    """
    if run.baseline is None or run.plan is None:
        return None
    title, causes = f"With {_lowest(run.plan)}", tuple(_causes(run, brief=brief))
    beside = () if brief else tuple(non_finite(run.baseline))
    fixes = () if brief else tuple(_usual_fixes(run))
    if wrong := tuple(_wrong(run.baseline)):
        return Lines(title, (*wrong, *beside, *causes, *fixes))
    guards = {kept.guard for kept in run.plan.keep}
    found = any(kept.kept_by == "search" for kept in run.plan.keep)
    but = ", but values inside become infinite" if "infinite" in guards else ""
    if seen := next((r for r in run.plan.remarks if r.kind == "seen-only"), None):
        but = _only_heldout(run, seen.numbers)
    elif "headroom" in guards and not but:
        but = f", but values inside overflow at {ratio(run.headroom)} the ranges seen"
    elif run.plan.repairs and not (but or found):
        but = "; what happened inside was repaired"
        if run.search is not None and any((r.before or 0.0) > 1 for r in run.plan.repairs):
            asked = {"margin": run.search.tolerance_factor, "headroom": run.headroom}
            but = f"{_only_heldout(run, asked)}; that was repaired"
    fine = "The outputs are" if found or but else "Nothing is wrong: the outputs are"
    return Lines(title, (f"{fine} within tolerance{but}.", *causes, *fixes))


def _only_heldout(run: Run, asked: Mapping[str, float]) -> str:
    """Return that outputs pass on held-out samples only: how many are left, and what fails how."""
    joined, filed = (run.search.joined, run.search.filed) if run.search else ((), ())
    left = count(len(run.verdict.samples), "held-out sample")
    where = f"{left} that did not join the search" if joined else "held-out samples"
    only = f", {len(filed)} of which failed only as ONNX Runtime runs the file" if filed else ""
    return f" on the {where}, but not{_with_margin(asked)} on the calibration samples{only}"


def _with_margin(asked: Mapping[str, float]) -> str:
    """Return what the search asks beyond the tolerance, which alone may be met there."""
    asks = [f"{name} of {number(asked[name])}" for name in _ASKED if name in asked]
    return f", with a {' and a '.join(asks)}," if asks else ""


def low_name(run: Run) -> str:
    """Return what costs are relative to: everything low, in the low format if known."""
    told = run.plan or run.worth
    low = told.low if told is not None else None
    return f"everything in {low.upper()}" if low else "everything low"


def _lowest(plan: Plan) -> str:
    told = everything_low(plan.low, len(plan.own), len(plan.unsupported))
    others = f", besides the {count(plan.candidates, 'compute node')} that could be low"
    return f"{told}{others}" if plan.unsupported else told


def _wrong(verdict: Verdict) -> Iterator[str]:
    broken = [name for name, error in verdict.outputs.items() if error.nonfinite]
    if broken:
        yield _some(broken, verdict, ("has", "have"), "NaN or infinite values")
    if verdict.metric is not None and verdict.metric.parts:
        yield from wrong_parts(verdict.metric)
    elif verdict.metric is not None and not verdict.metric.passed:
        name, score = verdict.metric.name, verdict.metric
        before, after = usual(name, score.reference), usual(name, score.candidate)
        changes = "rises" if rises(name) else "falls"
        yield f"{sentence(name)} {changes} from {number(before, 6)} to {number(after, 6)}."
    if verdict.failed_runs:
        nodes = sorted({run.node for run in verdict.failed_runs if run.node})
        where = f", at {listed(nodes)}" if nodes else ""
        failed = len(verdict.failed_runs)
        yield f"It cannot run on {failed} of {count(len(verdict.samples), 'sample')}{where}."
        return
    wrong = [n for n, e in verdict.outputs.items() if not e.passed and not e.nonfinite]
    if wrong and verdict.metric is None:
        yield _some(wrong, verdict, ("is", "are"), "out of tolerance")


def _some(names: Sequence[str], verdict: Verdict, verbs: tuple[str, str], what: str) -> str:
    if len(verdict.outputs) == 1:
        return f"Output {shorten(names[0])} {verbs[0]} {what}."
    some = f"{len(names)} of {len(verdict.outputs)} outputs {verb(len(names), *verbs)}"
    return f"{some} {what}: {listed(names)}."


def _causes(run: Run, *, brief: bool) -> Iterator[str]:
    """Yield a line per reason for kept nodes, causes first, then those of most nodes.

    Merely possible causes say so. Brief ones share a line, lest one be cut.
    """
    assert run.plan is not None
    certain = {g.kind for g in run.guards if g.severity >= 1}
    start = run.followed.origin if run.followed is not None else None
    decided = run.followed.decided if run.followed is not None else None
    channel = run.followed.channel if run.followed is not None else None
    names = {
        "origin": "" if start is None else shorten(start.node),
        "verb": "" if start is None else appears(start),
        "decision": listed([flip.node for flip in decided.flips]) if decided else "",
        "index": "" if channel is None else str(channel.index),
        "tensor": "" if channel is None else shorten(channel.tensor),
    }
    steps = () if run.search is None else run.search.remarks
    chosen = any(step.kind == "chosen" for step in steps)
    kinds: dict[Reason, Counter[str]] = {}
    for kept in run.plan.keep:
        reason = reason_of(kept, run.followed)
        kinds.setdefault(reason, Counter())[shorten(kept.op, 20)] += 1
    told = []
    for reason, ops in sorted(kinds.items(), key=lambda i: (i[0] in _LAST, -i[1].total())):
        most = ", ".join(f"{quantity} {op}" for op, quantity in ops.most_common(4))
        more = " and others" if len(ops) > 4 else ""
        sure = reason in certain or reason in _UNGUARDED
        why = _UNGUARDED[reason].format(**names) if reason in _UNGUARDED else CAUSES[reason]
        if reason == "rule" and chosen:
            why = "the plan that was chosen"
        because = "" if reason in _UNKNOWN else " because of that"
        told.append((sure, why, count(ops.total(), "node"), f"{because} ({most}{more})"))
    if brief and len(told) > 1:
        some = (f"{'' if sure else 'suspected: '}{why} ({n})" for sure, why, n, _ in told)
        yield f"Causes: {'; '.join(some)}."
        return
    for sure, why, nodes, end in told:
        yield f"{'Cause' if sure else 'Suspected cause'}: {why}; {nodes} kept{end}."


def mended(plan: Plan) -> str:
    """Return what a plan's repairs answer, as a sentence; "" without repairs."""
    if not plan.repairs:
        return ""
    rules = ", ".join(dict.fromkeys(repair.rule for repair in plan.repairs))
    guards = dict.fromkeys(guard for repair in plan.repairs for guard in repair.guards)
    kinds = Counter(guard.kind for guard in guards)
    what = ", ".join(
        f"{CAUSES[kind]} at {count(places, 'node')}" for kind, places in kinds.most_common(3)
    )
    if len(kinds) > 3:
        what += " and others"
    nodes = [node for repair in plan.repairs for node in repair.nodes]
    return sentence(f"Repaired ({rules}): {what or listed(nodes, 3, 40)}.")


def _usual_fixes(run: Run) -> Iterator[str]:
    """Yield the usual fixes for the reasons of kept nodes, each once."""
    assert run.plan is not None
    reasons = {(kept.guard, kept.node) for kept in run.plan.keep}
    fixes = (
        g.fix
        for g in run.guards
        if g.fix and not reasons.isdisjoint((g.kind, node) for node in (g.node, *g.nodes))
    )
    for fix in list(dict.fromkeys(fixes))[:3]:
        yield sentence(f"Usual fix: {fix}")


def followed_lines(run: Run) -> Iterator[str]:
    """Yield the sources of errors that no guard or rule explains, as far as trials show them."""
    if run.followed is None or run.plan is None:
        return
    found, keep, own = run.followed, run.plan.keep, len(run.plan.own)
    start = everything_low(run.plan.low, own, len(run.plan.unsupported), len(found.kept) - own)
    lacking = sum(k.guard is None and k.kept_by == "search" and not k.spare for k in keep)
    allowed = followed_over(run.criterion.metric)
    on = "one sample" if found.samples == 1 else f"the worst of {found.samples} samples"
    none = f"No guard explains {lacking} of {count(len(keep), 'kept node')}. " if lacking else ""
    yield (
        f"{none}With {start}, the error is {ratio(found.error)} {allowed} on "
        f"{on}: {_origin(found, run)}."
    )


def _origin(found: Followed, run: Run) -> str:
    if found.decided is not None:
        return flipped(found.decided, allowed=followed_over(run.criterion.metric))
    if (origin := found.origin) is not None:
        rest = [name for name in origin.kept if name != origin.node]
        beside = f" with {listed(rest)}" if rest else ""
        most = " or less on each of them" if found.samples > 1 else ""
        return (
            f"most of it {appears(origin)} at {shorten(origin.node)}, since FP32 there{beside} "
            f"leaves {ratio(origin.error)}{most}"
        )
    if found.channel is not None:
        return carried(found.channel, found.error, followed_over(run.criterion.metric))
    if found.accumulates:
        places = dict.fromkeys(round(i * (len(run.growth) - 1) / 3) for i in range(4))
        path = (f"{number(run.growth[i].error)} at {shorten(run.growth[i].node)}" for i in places)
        return f"it grows with depth (relative RMS: {', '.join(path)})"
    tried = count(len(found.tried), "node")
    ended = " before the budget was spent" if found.out_of_time else ""
    undone = " on all samples that fail, and lets the others pass" if found.samples > 1 else ""
    return (
        f"where it starts is unknown; of {tried} tried in FP32{ended}, each with its neighbours, "
        f"none halves the error{undone}"
    )
