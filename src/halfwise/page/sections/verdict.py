"""The verdict, and what to do next: commands to copy."""

import re
from typing import TypeGuard

from halfwise.page.section import Section
from halfwise.page.stored import Stored
from halfwise.reporting.parts import Lines, Table

_COMMAND = re.compile(r"(?:^|: )((?:halfwise|trtexec|polygraphy|python3?) .+)$")
"""A command ends its line, quoted for a shell (`fixing/next_steps.py`)."""


def verdict(stored: Stored) -> Section:
    """Return the section of the first screen, with all commands."""
    both = (*stored.report.parts, *stored.screen.parts)
    told = [part for part in both if is_commands(part)][:1]
    facts = {
        "parts": [part for part in stored.screen.parts if not is_commands(part)],
        "title": told[0].title if told else "",
        "steps": [step(line) for part in told for line in part.lines],
    }
    return Section("verdict", "Verdict", template="verdict.html", facts=facts)


def is_commands(part: Lines | Table) -> TypeGuard[Lines]:
    """Return whether a part consists of commands to copy."""
    return isinstance(part, Lines) and part.whole


def step(line: str) -> dict[str, str]:
    """Return a line's `words` and the `command` at its end, "" if there is none."""
    found = _COMMAND.search(line)
    if found is None:
        return {"words": line, "command": ""}
    return {"words": line[: found.start()], "command": found[1]}
