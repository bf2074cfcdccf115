"""Words on what ended a search early."""

from typing import Literal

from halfwise.records import Search
from halfwise.wording import number, seconds


def spent(search: Search) -> str:
    """Return what was spent when the budget ended a stage, as a clause."""
    if "interrupt" in search.ended_by:
        return "the run was interrupted"
    if search.budget is not None and "seconds" not in search.ended_by:
        return f"the budget of {number(search.budget)} inferences over the data was spent"
    by_clock = search.ended_by and search.seconds_budget > 0
    again = ", so another run may give another plan" if by_clock else ""
    return f"the time budget of {seconds(search.seconds_budget)} was spent{again}"


def allow_more(search: Search) -> str:
    """Return what lets an ended search go on, as a clause."""
    return MORE[lacking(search)]


def lacking(search: Search) -> Literal["interrupt", "work", "time"]:
    """Return what ended a search: the user, or the limit that ran out."""
    if "interrupt" in search.ended_by:
        return "interrupt"
    by_work = search.budget is not None and "seconds" not in search.ended_by
    return "work" if by_work else "time"


MORE = {
    "interrupt": "let the interrupted search finish",
    "work": "give the search more work (--budget N)",
    "time": "give the search more time (--time-budget SECONDS)",
}
"""What lets a search go on, by what it lacks."""
