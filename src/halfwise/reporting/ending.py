"""Words on what ended a search early."""

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
    if "interrupt" in search.ended_by:
        return "let the interrupted search finish"
    by_work = search.budget is not None and "seconds" not in search.ended_by
    more = "more work (--budget N)" if by_work else "more time (--time-budget SECONDS)"
    return f"give the search {more}"
