"""Plans built in addition to those of the search: without repairs, and with INT8.

Only engines show whether a repaired model is faster.
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
    """Return what the cheapest plan without repairs that passed keeps; None if there is none.

    Everything in FP32 does not count.
    """
    curve = fixed.curve.unrepaired
    if curve is None or fixed.planner.original is None:
        return None
    some = [point for point in curve.points if point.count < len(curve.nodes)]
    passed = [point for point in some if not point.is_bound and point.error <= 1]
    best = min(passed, key=lambda point: point.price, default=None)
    return None if best is None else curve.kept(best)


def build_beside(fixed: Fixed, attempts: Attempts, search: EngineSearch, chosen: Chosen) -> None:
    """Build the known plan without repairs, as often as others if it may be delivered.

    It is reported like the plans of the search but uses none of its budget: it is a row of the
    table. A repaired model slower than FP32 with nothing kept does not rule it out: it has other
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
"""Maximum predicted error of the next one, as a share of the last one's error."""
_WAYS = {INT8: "the plan with INT8", FREE_INT8: "the plan with INT8, nothing constrained"}
INT8_PLANS = 3
"""Maximum number of plans built with INT8, each leaving more out of it."""


def build_int8(fixed: Fixed, attempt: Attempt, search: EngineSearch) -> None:
    """Build the plan with INT8, as often as others; if it fails, build ones that leave out more.

    It continues from what the plan below keeps, and uses none of the search's budget. After Ctrl-C
    nothing is built. If constraints keep nodes in FP32 and no user rule does, it is then built
    without them: TensorRT 8.6 refuses some networks with constraints in addition to INT8
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
    """Return the builds of a plan with INT8 up to the first that fails; None if time is up."""
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
    """Return the builds behind rows of plans with INT8, and those that may be delivered."""
    groups = list(search.int8.values())
    passed = [[c for c in group if c.passed] for group in groups if is_steady(group)]
    fastest = [min(group, key=lambda c: c.milliseconds) for group in passed]
    return fastest or [group[-1] for group in groups[-1:]], fastest


def _leaving_more_out(lowest: Fixed) -> Iterator[Assignment]:
    """Yield what the plan leaves out, then larger sets with smaller errors that were tried."""
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
