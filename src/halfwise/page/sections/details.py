"""The parts of the report, as the terminal shows them."""

from halfwise.page.section import Section
from halfwise.page.stored import Stored
from halfwise.reporting.parts import Lines


def details(stored: Stored) -> Section | None:
    """Return the section of all parts that no other section shows."""
    parts = [p for p in stored.report.parts if not (isinstance(p, Lines) and p.whole)]
    shown = [
        {"title": p.title, "lines": p.lines}
        if isinstance(p, Lines)
        else {
            "title": p.title,
            "columns": [{"title": c.title, "align": c.align} for c in p.columns],
            "rows": p.rows,
        }
        for p in parts
    ]
    return (
        Section("details", "The report in full", template="details.html", facts=shown)
        if parts
        else None
    )
