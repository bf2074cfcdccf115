"""Plans that are built beside those of the search: without repairs, and with INT8.

Whether a repaired model is the faster one is seen in engines alone.
"""

from collections.abc import Callable, Iterator

from halfwise.fixing.engines.attempts import (
    Assignment,
    Attempts,
    Candidate,
    Chosen,
    Step,
    is_steady,
)
from halfwise.fixing.engines.search import EngineSearch
from halfwise.fixing.engines.speed import NEAR, near
from halfwise.fixing.engines.terms import FREE_INT8, INT8, UNREPAIRED, Terms
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


Attempt = Callable[[Assignment, Step, Terms], Candidate]

SMALLER = 0.7
"""Of the error of the last one, what the next may have as predicted."""
_WAYS = {INT8: "the plan with INT8", FREE_INT8: "the plan with INT8, nothing constrained"}
INT8_PLANS = 3
"""Plans with INT8 that are built at most, each leaving more out of it."""


def build_int8(fixed: Fixed, attempt: Attempt, search: EngineSearch) -> None:
    """Build the plan with INT8, as often as others; where it fails, those that leave more out.

    It goes on from what the plan below keeps, and takes nothing of the search's budget. After
    Ctrl-C nothing is built. Where constraints keep nodes in FP32 and no rule of the user does, it
    is then built without them: TensorRT 8.6 refuses some networks for constraints beside INT8
    (docs/int8.md). The error decides.
    """
    lowest = fixed.rungs[-1] if fixed.rungs else None
    if lowest is None or not (lowest.plan.int8 and lowest.verdict.passed):
        return
    ruled = fixed.planner.forced.kept
    for keep in _leaving_more_out(lowest):
        for terms, step in _WAYS.items():
            builds = _built(keep, step, terms, attempt, search)
            if builds is None or all(c.passed for c in builds):
                return
            if ruled or not builds[-1].build.config.keep:
                break


def _built(
    keep: Assignment, step: str, terms: Terms, attempt: Attempt, search: EngineSearch
) -> list[Candidate] | None:
    """Return the builds of a plan with INT8 up to the first that fails; None where time is up."""
    builds: list[Candidate] = []
    told = step
    while len(builds) < search.builds and all(c.passed for c in builds):
        if search.budget.over():
            return None
        builds.append(attempt(keep, told, terms))
        search.int8[keep, terms] = builds
        told = f"build {len(builds) + 1} of {search.builds} of {step}"
    return builds


def with_int8(search: EngineSearch) -> tuple[list[Candidate], list[Candidate]]:
    """Return what rows of plans with INT8 are of, and those of them that may be delivered."""
    groups = list(search.int8.values())
    passed = [[c for c in group if c.passed] for group in groups if is_steady(group)]
    fastest = [min(group, key=lambda c: c.milliseconds) for group in passed]
    return fastest or [group[-1] for group in groups[-1:]], fastest


def _leaving_more_out(lowest: Fixed) -> Iterator[Assignment]:
    """Yield what the plan leaves out, then larger sets with smaller errors, that were tried."""
    curve, kept = lowest.curve, lowest.found.kept
    yield kept
    error, given = lowest.planner.trials.excess(kept), 1
    for point in sorted(curve.points, key=lambda point: point.count):
        more = curve.kept(point)
        if point.is_bound or not kept < more or point.error > SMALLER * error:
            continue
        yield more
        error, given = point.error, given + 1
        if given == INT8_PLANS:
            return
