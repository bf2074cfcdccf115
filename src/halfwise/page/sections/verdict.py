"""The verdict, and what to do next: commands to copy."""

import re

from halfwise.page.section import Section
from halfwise.page.stored import Stored
from halfwise.reporting.parts import Lines

_COMMAND = re.compile(r"(?:^|: )((?:halfwise|trtexec|polygraphy|python3?) .+)$")
"""A command stands at the end of its line, quoted for a shell (`fixing/next_steps.py`)."""


def verdict(stored: Stored) -> Section:
    """Return the section that says how the run ended."""
    steps = [
        step(line)
        for part in stored.report.parts
        if isinstance(part, Lines) and part.whole
        for line in part.lines
    ]
    return Section("verdict", "Verdict", template="verdict.html", facts=steps)


def step(line: str) -> dict[str, str]:
    """Return a line of what to do as its `words` and the `command` at its end, "" for none."""
    found = _COMMAND.search(line)
    if found is None:
        return {"words": line, "command": ""}
    return {"words": line[: found.start()], "command": found[1]}
