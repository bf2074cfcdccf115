"""The lines on slices of an output that are held to scales of their own."""

from halfwise.metrics.slices import extent, place
from halfwise.records import SliceGroup, Verdict
from halfwise.reporting.parts import MOST_ROWS, Lines
from halfwise.wording import number, sentence, shorten


def scale_lines(verdict: Verdict) -> Lines | None:
    """Return a line for each group of slices, those that failed first; None where there is none."""
    groups = [(name, group) for name, error in verdict.outputs.items() for group in error.groups]
    if not groups:
        return None
    groups.sort(key=lambda one: one[1].passed)
    lines = [_line(name, group, verdict) for name, group in groups[:MOST_ROWS]]
    if len(groups) > MOST_ROWS:
        lines.append(f"And {len(groups) - MOST_ROWS} more.")
    return Lines("Scales within outputs", tuple(lines))


def _line(name: str, group: SliceGroup, verdict: Verdict) -> str:
    failed = "" if group.passed else ", too much"
    room = f", {group.room:g} times the tolerance as they are few" if group.room > 1 else ""
    return (
        f"{shorten(name, 28)}, {sentence(place(group, verdict.samples))}: "
        f"{extent(group)}, off by {number(group.max_abs)} of {number(group.allowed)} "
        f"allowed{room}{failed}."
    )
