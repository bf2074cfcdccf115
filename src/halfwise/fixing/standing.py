"""Whether a passing plan counts, so that the next rung may be tried."""

from halfwise.fixing.fixed import Fixed
from halfwise.judging.unjudged import find_unjudged


def stands(fixed: Fixed) -> bool:
    """Return whether a plan passed on real data that test it, as strictly as the user demands.

    Args:
        fixed: Result of the search.

    Raises:
        RunFailed: the model does not run on a sample.
    """
    planner, heldout = fixed.planner, fixed.heldout
    case, settings = planner.case, planner.settings
    if not (fixed.found.passed and fixed.verdict.passed and (case.real or settings.allow_random)):
        return False
    judged = heldout.left, heldout.left_references
    found = find_unjudged(case, fixed.rewritten.model, *judged, runtime=settings.runtime)
    return settings.allow_unjudged or not found
