"""Which built plan the search continues from."""

from collections.abc import Collection

from halfwise.fixing.engines.attempts import Assignment, Candidate


def restart(plans: Collection[list[Candidate]], start: Assignment) -> Candidate:
    """Return the build to continue from: a failing one if its plan has one.

    Args:
        plans: All builds of each plan, at least one.
        start: Kept nodes of the plan to continue from, if it passes; else the smallest passing
            plan. If none passes it is `start` itself, an engine rather than a build that failed, or
            the largest plan if none keeps exactly this.
    """
    passing = [plan for plan in plans if all(c.passed for c in plan)]
    own = [plan for plan in plans if plan[0].keep == start]
    own.sort(key=lambda plan: (plan not in passing, plan[0].excess is None))
    known = next((plan for plan in own if plan in passing), None)
    known = known or min(passing, key=lambda plan: len(plan[0].keep), default=None)
    known = known or next(iter(own), max(plans, key=lambda plan: len(plan[0].keep)))
    return min(known, key=lambda c: c.passed)
