"""The verdict, and what to do next: commands to copy."""

from typing import TypeGuard

from halfwise.page.section import Section
from halfwise.page.stored import Stored
from halfwise.reporting.parts import Lines, Table
from halfwise.reporting.steps import told


def verdict(stored: Stored) -> Section:
    """Return the section of the first screen, with all commands."""
    facts = {
        "parts": [part for part in stored.screen.parts if not is_commands(part)],
        "steps": [told(step) for step in stored.run.next_step],
    }
    return Section("verdict", "Verdict", template="verdict.html", facts=facts)


def is_commands(part: Lines | Table) -> TypeGuard[Lines]:
    """Return whether a part consists of commands to copy."""
    return isinstance(part, Lines) and part.whole
