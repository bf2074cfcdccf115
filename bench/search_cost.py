"""How many assignments the search tries before its set is 1-minimal, against trying each node."""

from __future__ import annotations

from bench.figures import Figure, at_most, reported
from bench.runs import Ran, Subject, Workbench, digits

MANY = 200
"""With fewer candidates than this, the ratio is only reported."""
RATIO = 0.5
RAW = ("ppocr_v3_det", "yolox_nano")
"""Models where rounding everywhere adds up to more than the default tolerance."""


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return a figure for each model that is here, with the metric of its task and without."""
    figures = [cost(s.name, bench.fix(s)) for s in [*bench.subjects(), digits_by_top1()]]
    for subject in map(bench.real, RAW):
        if subject is not None:
            # Only a tolerance that was asked for is searched to the end.
            asked = ("--rel-max", "0.01")
            raw = Subject(f"{subject.name}-raw", subject.model, subject.inputs, asked)
            figures.append(cost_of_many(subject.name, bench.fix(raw)))
    return figures, bench.missing()


def digits_by_top1() -> Subject:
    """Return the bundled example, judged by the classes of its labelled images."""
    subject = digits()
    folder = subject.model.parent
    options = ("--metric", "top1", "--labels", f"{folder}/labels.json")
    heldout = ("--heldout-labels", f"{folder}/heldout_labels.json")
    return Subject(
        "digits-top1", subject.model, subject.inputs, (*subject.options, *options, *heldout)
    )


def cost(name: str, ran: Ran) -> Figure:
    """Return evaluations / candidates of one run, infinite where its set is not minimal.

    Where held-out samples joined, the search found more than one set: that is only reported.
    """
    ratio, candidates, _, note = _ratio(ran)
    what = f"{name}: evaluations to a 1-minimal set / candidates"
    if candidates < MANY:
        return reported(what, ratio, f"{note}; fewer than {MANY} candidates")
    if ran.run.search is not None and ran.run.search.joined:
        return reported(what, ratio, note)
    return at_most(what, ratio, RATIO, note)


def cost_of_many(name: str, ran: Ran) -> Figure:
    """Return the same where many nodes must be kept, since each of these takes an evaluation."""
    ratio, candidates, kept, note = _ratio(ran)
    what = f"{name}, default tolerance: evaluations to a 1-minimal set / candidates"
    return reported(what, ratio, f"{note}; no search can take less than {kept / candidates:.2g}")


def _ratio(ran: Ran) -> tuple[float, int, int, str]:
    """Return evaluations / candidates, candidates, kept nodes, and these numbers as a note."""
    plan, tried = ran.run.plan, ran.run.cost.evaluations
    assert plan is not None
    joined = ran.run.search is not None and ran.run.search.joined
    again = ", searched again after held-out samples joined" if joined else ""
    note = f"{tried} evaluations, {plan.candidates} candidates, {len(plan.keep)} kept{again}"
    ratio = tried / plan.candidates if plan.minimal else float("inf")
    return ratio, plan.candidates, len(plan.keep), note
