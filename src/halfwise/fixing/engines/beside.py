"""The plan that is known without repairs, built beside those of the repaired model.

Whether a repaired model is the faster one is seen in engines alone.
"""

from halfwise.fixing.engines.attempts import Assignment, Attempts, Candidate, Chosen
from halfwise.fixing.engines.search import EngineSearch
from halfwise.fixing.engines.speed import NEAR, near
from halfwise.fixing.engines.terms import UNREPAIRED
from halfwise.fixing.fixed import Fixed


def known_unrepaired(fixed: Fixed) -> Assignment | None:
    """Return what the cheapest plan keeps that passed without repairs; None where none is known.

    Everything in FP32 is no such plan.
    """
    curve = fixed.curve.unrepaired
    if curve is None or fixed.planner.original is None:
        return None
    some = [point for point in curve.points if point.count < len(curve.nodes)]
    passed = [point for point in some if not point.is_bound and point.error <= 1]
    best = min(passed, key=lambda point: point.price, default=None)
    return None if best is None else curve.kept(best)


def build_beside(fixed: Fixed, attempts: Attempts, search: EngineSearch, chosen: Chosen) -> None:
    """Build the plan that is known without repairs; where it may be delivered, as often as others.

    It is told as those of the search, whose budget it takes nothing of: it is a row of the table.
    That the repaired model is slower than FP32 with nothing kept says nothing of it: it has other
    nodes. Nothing is built after Ctrl-C.
    """
    keep = known_unrepaired(fixed)
    if keep is None or search.budget.over():
        return
    builds = search.tried.setdefault((keep, UNREPAIRED), [])
    step = "the plan that is known without repairs"
    while len(builds) < search.builds and all(c.passed for c in builds):
        builds.append(attempts.attempt(keep, step, UNREPAIRED))
        step = f"build {len(builds) + 1} of {search.builds} of the same plan"
        if search.budget.over() or not _may_be_fastest(builds[0], search, chosen):
            break
    number = builds[0].build.number
    search.spared = [spared.model_copy(update={"beside": number}) for spared in search.spared]


def _may_be_fastest(built: Candidate, search: EngineSearch, chosen: Chosen) -> bool:
    full = None if search.full is None else search.full.median_ms
    if full is not None and built.milliseconds >= NEAR * full:
        return False
    return chosen.best is None or near(built, chosen.best)
