"""How many assignments the search tries before its set is 1-minimal, against trying each node."""

from __future__ import annotations

from bench.figures import Figure, at_most, reported
from bench.runs import Ran, Workbench

MANY = 200
"""Below so many candidates the ratio is only reported."""
RATIO = 0.5


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return a figure for each model that is here."""
    return [cost(s.name, bench.fix(s)) for s in bench.subjects()], bench.missing()


def cost(name: str, ran: Ran) -> Figure:
    """Return evaluations / candidates of one run; infinite where it ended before it was minimal."""
    plan = ran.run.plan
    assert plan is not None
    note = f"{ran.run.cost.evaluations} evaluations, {plan.candidates} candidates, {len(plan.keep)} kept"
    what = f"{name}: evaluations to a 1-minimal set / candidates"
    ratio = ran.run.cost.evaluations / plan.candidates if plan.minimal else float("inf")
    if plan.candidates < MANY:
        return reported(what, ratio, f"{note}; fewer than {MANY} candidates")
    return at_most(what, ratio, RATIO, note)
