"""Words on what a plan is worth."""

from collections.abc import Iterator

from halfwise.records import NearPlan, Run, Worth
from halfwise.wording import count, number


def nothing_gained(run: Run) -> str:
    """Return the end of the title of a run that gains too little, and what would; else nothing."""
    worth, required = run.worth, run.verdict.required_worth
    low = "the low format" if run.plan is None else run.plan.low.upper()
    if required is not None:
        return f" for its cost alone: the outputs pass, but {_cost(worth, required, low)}"
    if worth is None or worth.gains or not run.verdict.passed:
        return ""
    is_predicted = worth.measured is None
    told = f", but it gains {'nothing' if _percent(worth.saved) == _percent(0) else 'little'}: "
    if worth.fp32_ratio <= 1:
        costs = "is predicted to cost" if is_predicted else "takes"
        return f"{told}FP32 {costs} {worth.fp32_ratio:.2f} × as much as everything in {low}"
    saves = "is predicted to save" if is_predicted else "saves"
    told += f"it {saves} {_percent(worth.saved)} of what everything in {low} would"
    if worth.nearest is not None:
        told += f"; the nearest plan worth having {_near(worth.nearest)}"
    if worth.metric is not None:
        told += f"; if its task is what counts, --metric {worth.metric} fits the output"
    return told


def cheaper(worth: Worth | None, required: float) -> Iterator[str]:
    """Yield what to do about a plan that fails for its cost alone, as far as it is known."""
    if worth is None:
        return
    if worth.nearest is not None:
        yield (
            f"Of the plans that the search evaluated and that are predicted to cost at most "
            f"{required:g} ×, the nearest {_near(worth.nearest)}."
        )
    else:
        yield (
            f"No plan that the search evaluated is known to cost at most {required:g} × with a "
            "finite error."
        )
    if worth.metric is not None:
        yield f"If its task is what counts, --metric {worth.metric} fits the output."


def _cost(worth: Worth | None, required: float, low: str) -> str:
    if worth is None:
        return f"what it costs is not known, at most {required:g} × everything in {low} is required"
    does = "is predicted to cost" if worth.measured is None else "takes"
    return (
        f"it {does} {worth.ratio:.3g} × as much as everything in {low}, at most {required:g} × is "
        "required"
    )


def _near(near: NearPlan) -> str:
    margin = ", which --margin 1 accepts" if near.error <= 1 else ""
    return (
        f"keeps {count(near.kept, 'node')}, costs "
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
