"""Words on a plan's worth: what it gains or costs, and what would gain more."""

from halfwise.records import NearPlan, Run, Worth
from halfwise.reporting.notes import quantised_note
from halfwise.reporting.remarks import MORE, lacking
from halfwise.wording import count, listed, percent, ratio


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
        if run.engines is None and (offer := _offer(run)):  # one advice
            return f"{told}{offer}"
        ended = run.search is not None and run.search.exhausted
        more = f", or {MORE[lacking(run.search)]}" if run.search and ended else ""
        return f"{told}: use the FP32 model{more}{_instead(worth, run)}"
    if worth.fp32_ratio <= 1:
        return f"{told}FP32 {costs} {ratio(worth.fp32_ratio)} everything in {low}"
    saves = "is predicted to save" if is_predicted else "saves"
    told += f"it {saves} {percent(worth.saved)} of what everything in {low} would"
    return f"{told}{_instead(worth, run)}"


def _instead(worth: Worth, run: Run) -> str:
    """Return what would gain more, as the rest of a sentence: the offered plan, if there is one."""
    if offer := _offer(run):
        return offer
    told = ""
    if (found := worth.nearest) is not None:
        told += f"; the nearest plan that gains {_nearest(found)}"
    if worth.metric is not None:
        told += f"; to judge the task instead, use --metric {worth.metric}"
    return told


def _offer(run: Run) -> str:
    """Return that a plan is offered, as the rest of a sentence; empty if none is."""
    point = None if run.curve is None else run.curve.offered(passed=run.verdict.passed)
    if point is None:
        return ""
    metrics = tuple(dict.fromkeys(score.metric for score in point.scores))
    kept = count(point.count, "node")
    return f"; a plan with {kept} in FP32 keeps {listed(metrics, 2)} (see Next)"


def _cost(worth: Worth | None, required: float, low: str) -> str:
    if worth is None:
        return f"its cost is unknown, and at most {ratio(required)} everything in {low} is required"
    does = "is predicted to cost" if worth.measured is None else "takes"
    told = f"it {does} {ratio(worth.ratio)} everything in {low}"
    return f"{told}, and at most {ratio(required)} is required"


def _nearest(found: NearPlan) -> str:
    if found.passes:
        kept, cost = count(found.kept, "node"), ratio(found.cost)
        return f"keeps {kept}, costs {cost} everything low, and passes"
    return near(found.kept, found.cost, found.error)


def near(kept: int, cost: float, error: float) -> str:
    """Return how many nodes a plan keeps, its cost and its error, as the rest of a sentence."""
    margin = ", which --require margin=1 accepts" if error <= 1 else ""
    return (
        f"keeps {count(kept, 'node')}, costs "
        f"{ratio(cost)} everything low, and has {ratio(error)} the error allowed{margin}"
    )


UNCERTAIN = "INT8 took 1.3 to 2.3 × its predicted cost on the one GPU measured"
"""`bench/gpu/int8.py` on an H200; no single rule explains the four engines (docs/int8.md)."""


def has_int8(run: Run) -> bool:
    """Return whether the judged model has INT8: that of a plan, or a candidate's."""
    planned = run.plan is not None and run.plan.has_int8
    return planned or quantised_note(run, candidate=True) is not None


def cost_line(worth: Worth, low: str, *, int8: bool = False) -> str:
    """Return a plan's cost, as a sentence.

    Args:
        worth: The plan's.
        low: Name for everything low.
        int8: Whether the plan has INT8, whose cost is uncertain until it is measured.
    """
    told = f"Predicted cost: {ratio(worth.cost)} {low}, where FP32 costs {ratio(worth.fp32)}."
    if worth.measured is None:
        return f"{told} Uncertain: {UNCERTAIN}." if int8 else told
    return f"{told} Measured: {ratio(worth.measured)} the time of the engine with {low}."
