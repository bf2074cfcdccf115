"""Words on what a plan is worth."""

from halfwise.records import NearPlan, Run, Worth
from halfwise.render.wording import count, number


def nothing_gained(run: Run) -> str:
    """Return the end of the title of a run that gains nothing, and what would; else nothing."""
    worth = run.worth
    if worth is None or worth.gains or not run.verdict.passed:
        return ""
    low = "the low format" if run.plan is None else run.plan.low.upper()
    is_predicted = worth.measured is None
    told = ", but it gains nothing: "
    if worth.fp32_ratio <= 1:
        costs = "is predicted to cost" if is_predicted else "takes"
        return f"{told}FP32 {costs} {worth.fp32_ratio:.2f} × as much as everything in {low}"
    saves = "is predicted to save" if is_predicted else "saves"
    told += f"it {saves} {_percent(worth.saved)} of what everything in {low} would"
    if worth.nearest is not None:
        told += f"; {_near(worth.nearest)}"
    if worth.metric is not None:
        told += f"; if its task is what counts, --metric {worth.metric} fits the output"
    return told


def _near(near: NearPlan) -> str:
    margin = ", which --margin 1 accepts" if near.error <= 1 else ""
    return (
        f"the nearest plan worth having keeps {count(near.kept, 'node')}, costs "
        f"{near.cost:.2f} × as much as all low, and its error is {number(near.error)} × what is "
        f"allowed{margin}"
    )


def cost_line(worth: Worth) -> str:
    """Return what a plan costs, as a sentence."""
    told = (
        f"Predicted cost: {worth.cost:.2f} × that of everything low, everything in FP32 "
        f"{worth.fp32:.2f} ×."
    )
    if worth.measured is None:
        return told
    return f"{told} Measured: {worth.measured:.2f} × the time of the engine with everything low."


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
