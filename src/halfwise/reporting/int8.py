"""Words on INT8 in a plan: which nodes have it, and which are excluded."""

from collections.abc import Iterable, Iterator

from halfwise.records import KeptNode, Run, Verdict
from halfwise.reporting.ending import spent
from halfwise.reporting.parts import MOST_ROWS, Column, Table
from halfwise.reporting.reasons import reasons
from halfwise.wording import capital, count, filled, listed, shorten

_WHY = (
    "[its convolution {beside} is left out, without which there is no INT8 kernel for it"
    "|{nonfinite}with INT8 here alone outputs are NaN or infinite"
    "|with INT8 here alone {metric} falls by {more} more than is allowed"
    "|with INT8 here alone the error is at least {excess} × what the search allows"
    "|INT8 here, or in its group, contributes {contribution} × what the search allows"
    "|not tried alone before the search ended, so nothing is known of it]."
)


def told_left_out(left_out: Iterable[KeptNode], metric: str | None) -> tuple[KeptNode, ...]:
    """Return the nodes excluded from INT8, with the reasons in words.

    Args:
        left_out: The excluded nodes.
        metric: Name of the task metric, if one decides.
    """
    return tuple(
        k.model_copy(update=dict.fromkeys(("why", "reason"), _why(k, metric))) for k in left_out
    )


def _why(kept: KeptNode, metric: str | None) -> str:
    because, excess = kept.because, kept.error_without
    known: dict[str, str | float | None] = {
        "beside": None if because is None else because.beside,
        "nonfinite": "" if because is not None and because.nonfinite else None,
        "metric": metric,
        "more": excess - 1 if excess is not None and metric is not None else None,
        "excess": excess,
        "contribution": None if because is None else because.contribution,
    }
    found = {name: fact for name, fact in known.items() if fact is not None}
    return capital(filled(_WHY, found))


def left_out_table(run: Run) -> Table | None:
    """Return a row for each operator and reason of the nodes excluded from INT8."""
    if run.plan is None or not (left_out := run.plan.left_out or run.without_int8):
        return None
    plan, groups = run.plan, dict[tuple[str, str], list[KeptNode]]()
    for kept in left_out:
        grouped = kept.why if len(left_out) <= MOST_ROWS else ""
        groups.setdefault((kept.op, grouped), []).append(kept)
    rows = [
        (f"{len(some)} × {shorten(op, 20)}: {listed([k.node for k in some], 3, 40)}", some[0].why)
        for (op, _), some in groups.items()
    ]
    of_all = count(len(plan.int8) + len(left_out), "quantisable node")
    title = f"Left out of INT8, in {plan.low.upper()}: {len(left_out)} of {of_all}"
    return Table(title, (Column("node"), Column("why")), tuple(rows), most=MOST_ROWS)


def nothing_in_int8(run: Run) -> str:
    """Return an addition to the plan's title if INT8 was tried and no node has it; else ""."""
    if run.plan is None or not run.without_int8:
        return ""
    told = f"No node is in INT8: this is the {run.plan.low.upper()} plan"
    return f"{told}. {_all(run.all_int8)}" if run.all_int8 else f"{told}."


def _all(verdict: Verdict) -> str:
    if verdict.passed:
        return "With all in INT8, held-out samples pass and samples of the search fail."
    return f"With all in INT8, {'; '.join(reasons(verdict.failures))}."


def int8_lines(run: Run) -> Iterator[str]:
    """Yield how many nodes have INT8, with which ranges, and whether more could."""
    plan = run.plan
    if plan is None or not plan.has_int8:
        return
    by = "" if plan.ranges is None else f", ranges by {plan.ranges}"
    of_all = count(len(plan.int8) + len(plan.left_out), "quantisable node")
    repaired = f"; {count(len(plan.repairs), 'repair')}" if plan.repairs else ""
    yield f"{len(plan.int8)} of {of_all} in INT8{by}, the rest in {plan.low.upper()}{repaired}."
    if plan.left_out and plan.minimal:
        sums = any(k.because is not None and k.because.beside for k in plan.left_out)
        yield (
            "Minimal: on the calibration samples none of those left out can have INT8 alone"
            f"{', apart from sums whose convolution is left out' if sums else ''}."
        )
    elif plan.left_out:
        why = f": {spent(run.search)}" if run.search is not None and run.search.exhausted else ""
        yield f"Not shown to be minimal{why}."
