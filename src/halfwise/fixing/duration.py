"""How long a search may take, estimated before it begins."""

from halfwise.case import Settings
from halfwise.emulation.budget import WEIGHTS, Budget
from halfwise.fixing.trial import WORST
from halfwise.wording import seconds, typed

EACH = 10
"""Trials on the worst samples that a search takes in addition to one per node, if guards are right;
with three on all samples."""
CONFIRMED = 3


def expected(budget: Budget, settings: Settings, took: float, samples: int, certain: int) -> str:
    """Return a note that estimates how long the search will take.

    Args:
        budget: What is left to spend.
        settings: Its limits, and the low format.
        took: Seconds that the emulation took on all samples.
        samples: Their number.
        certain: Number of nodes that guards are certain about.
    """
    limit, run = settings.time_budget, took / samples
    whole = round((budget.work - budget.spent) / WEIGHTS["trial"] * run)
    most = f"at most about {seconds(whole)}"
    if whole > limit:
        most = (
            f"at most what the time budget of {seconds(limit)} leaves, while all of --budget "
            f"inferences={typed(settings.budget)} may take {seconds(whole)}"
        )
    most += f", besides loading models ({seconds(run)} a run)"
    if not certain:
        return f"repairs and search: quick if {settings.fmt.name.upper()} is fine as it is, {most}"
    runs = certain + EACH * min(WORST, samples) + CONFIRMED * samples
    likely = min(runs * run, whole, limit)
    about = f"about {seconds(round(likely))}" if likely >= 1 else "less than 1 s"
    return f"repairs and search: {most}; the search alone {about} if the suspected nodes are right"
