"""What the time budget left undone, but for what is told where plans and origins are."""

from halfwise.records import CutStage, Run

_WORDS: dict[CutStage, str] = {
    "observe": "what is inside operators and tensors was not looked at on all samples, so guards "
    "may be missing",
    "emulate": "samples were not ordered by their errors",
    "growth": "where the error comes from that no guard explains was not followed",
    "notes": "what the margin or another tolerance would change was not measured",
    "worth": "not all cheaper plans were measured",
}


def cut_lines(run: Run) -> tuple[str, ...]:
    """Return a sentence on what the time budget ended; none where it ended nothing."""
    if run.search is None:
        return ()
    told = [_WORDS[stage] for stage in run.search.cut if stage in _WORDS]
    if not told:
        return ()
    return (f"The time budget of {run.search.seconds_budget:g} s was spent: {'; '.join(told)}.",)
