"""The parts of the report, as the terminal shows them with `--full`."""

from halfwise.page.section import Section
from halfwise.page.sections.verdict import is_commands
from halfwise.page.stored import Stored


def details(stored: Stored) -> Section | None:
    """Return the section of all parts except the commands, which are with the verdict."""
    parts = [part for part in stored.report.parts if not is_commands(part)]
    shown = Section("details", "The report in full", template="details.html", facts=parts)
    return shown if parts else None
