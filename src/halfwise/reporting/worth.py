"""Words on a plan's worth: what it gains or costs, and what would gain more."""

from collections.abc import Iterator

from halfwise.records import NearPlan, Run, Worth
from halfwise.reporting.ending import allow_more
from halfwise.wording import count, percent, ratio


def nothing_gained(run: Run) -> str:
    """Return the end of the title of a run that gains too little, and what would; else nothing."""
    worth, required = run.worth, run.verdict.required_worth
    low = "the low format" if run.plan is None else run.plan.low.upper()
    if required is not None:
        return f" on cost alone: the outputs pass, but {_cost(worth, required, low)}"
    if worth is None or worth.gains or not run.verdict.passed:
        return ""
    is_predicted = worth.measured is None
    costs = "is predicted to cost" if is_predicted else "takes"
    told = f", but it gains {'little' if worth.saved >= 1e-4 else 'nothing'}: "
    if worth.is_dearer and worth.ratio != 1:  # 1 is everything low, which the next line covers
        told = f", but it {costs} {ratio(worth.times_fp32)} FP32"
        if run.engines is None and _offers(run):  # one advice: the plan to take is the next step
            return told
        ended = run.search is not None and run.search.exhausted
        more = f", or {allow_more(run.search)}" if run.search and ended else ""
        return f"{told}: use the FP32 model{more}{_instead(worth, run)}"
    if worth.fp32_ratio <= 1:
        return f"{told}FP32 {costs} {ratio(worth.fp32_ratio)} everything in {low}"
    saves = "is predicted to save" if is_predicted else "saves"
    told += f"it {saves} {percent(worth.saved)} of what everything in {low} would"
    return f"{told}{_instead(worth, run)}"


def _instead(worth: Worth, run: Run) -> str:
    """Return what would gain more, as the rest of a sentence; no metric if a plan is offered."""
    told = ""
    if worth.nearest is not None:
        told += f"; the nearest plan that gains {_near(worth.nearest)}"
    if worth.metric is not None and not _offers(run):
        told += f"; to judge the task instead, use --metric {worth.metric}"
    return told


def _offers(run: Run) -> bool:
    return run.curve is not None and run.curve.offered(passed=run.verdict.passed) is not None


def cheaper(worth: Worth | None, required: float) -> Iterator[str]:
    """Yield what to do about a plan that fails only for its cost, as far as known."""
    if worth is None:
        return
    if worth.nearest is not None:
        yield (
            f"Among the plans tried that are predicted to cost at most {ratio(required)}, the "
            f"nearest {_near(worth.nearest)}."
        )
    else:
        yield (
            f"No plan that was tried is known to cost at most {ratio(required)} with a finite "
            "error."
        )
    if worth.metric is not None:
        yield f"To judge the task instead, use --metric {worth.metric}."


def unless_faster(worth: Worth | None) -> tuple[str, ...]:
    """Return what to do if FP32 costs no more than a plan that passed; else nothing."""
    if worth is None or worth.times_fp32 < 1:
        return ()
    return ("Unless an engine shows a gain, use the FP32 model.",)


def _cost(worth: Worth | None, required: float, low: str) -> str:
    if worth is None:
        return f"its cost is unknown, and at most {ratio(required)} everything in {low} is required"
    does = "is predicted to cost" if worth.measured is None else "takes"
    told = f"it {does} {ratio(worth.ratio)} everything in {low}"
    return f"{told}, and at most {ratio(required)} is required"


def _near(near: NearPlan) -> str:
    margin = ", which --margin 1 accepts" if near.error <= 1 else ""
    return (
        f"keeps {count(near.kept, 'node')}, costs "
        f"{ratio(near.cost)} everything low, and has {ratio(near.error)} the error allowed{margin}"
    )


def cost_line(worth: Worth, low: str) -> str:
    """Return a plan's cost, as a sentence; `low` is the name for everything low."""
    told = f"Predicted cost: {ratio(worth.cost)} {low}, where FP32 costs {ratio(worth.fp32)}."
    if worth.measured is None:
        return told
    return f"{told} Measured: {ratio(worth.measured)} the time of the engine with {low}."
