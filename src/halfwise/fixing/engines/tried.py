"""Which of the plans that were built the search goes on from."""

from collections.abc import Collection

from halfwise.fixing.engines.attempts import Assignment, Candidate


def restart(plans: Collection[list[Candidate]], start: Assignment) -> Candidate:
    """Return the build to go on from, one that does not pass where there is one of its plan.

    Args:
        plans: All builds of each plan, at least one.
        start: Kept nodes of the plan to go on from, where that passes; else it is the smallest that
            does. Where none does it is that one, as an engine before one that could not be built,
            or the largest where no plan keeps just this.
    """
    passing = [plan for plan in plans if all(c.passed for c in plan)]
    own = [plan for plan in plans if plan[0].keep == start]
    own.sort(key=lambda plan: (plan not in passing, plan[0].excess is None))
    known = next((plan for plan in own if plan in passing), None)
    known = known or min(passing, key=lambda plan: len(plan[0].keep), default=None)
    known = known or next(iter(own), max(plans, key=lambda plan: len(plan[0].keep)))
    return min(known, key=lambda c: c.passed)
