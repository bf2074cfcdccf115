"""What an attack is, its outcome, and when halfwise has withstood it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from halfwise.errors import PASSED, VERDICT_FAILED, HalfwiseError

INTERRUPTED = 130
ENDED = (129, 143)
"""After SIGHUP and SIGTERM."""
DOCUMENTED = frozenset(
    {PASSED, VERDICT_FAILED, INTERRUPTED, *ENDED}
    | {kind.exit_code for kind in HalfwiseError.__subclasses__()}
)
"""Exit codes that the docs and `halfwise --help` list."""
REFUSED = (2, 3)
"""Exit codes for models, inputs or runs that cannot be used."""
MESSAGE_BYTES = 2048
"""Longest standard error, in bytes."""
SECONDS = 60.0
MEMORY = 1 << 30
_TRACEBACKS = ("Traceback (most recent call last)", "Fatal Python error", "Exception ignored in")
_WARNING = re.compile(r".*[a-z]Warning: .*")
"""Python's, which the server makes visible."""


@dataclass(frozen=True)
class Command:
    """A command line and its surroundings.

    Attributes:
        arguments: The words after `halfwise`, as the operating system gives them
            (`os.fsdecode`).
        folder: The working directory; None for the attack's own folder.
        environment: Variables to set, or to remove if None. HOME and TMPDIR are folders of the
            attack's own.
        before: Runs in the attacked process just before the command: sets limits, schedules
            signals, closes streams, removes a folder.
        fresh: Whether to start a new interpreter, which takes seconds, instead of a fork that has
            loaded the library: for attacks on the start of Python or on imports.
    """

    arguments: Sequence[str]
    folder: Path | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    before: Callable[[], None] | None = None
    fresh: bool = False


@dataclass(frozen=True)
class Attack:
    """One case.

    Attributes:
        name: Its name, unique in its family.
        make: Writes its files into an empty folder and returns the command.
        codes: The allowed exit codes.
        broken: Whether "passed" would be a lie.
        sound: Whether "failed" would be a false alarm.
        says: Texts that standard output or error must contain.
        quick: Whether tests run it.
        seconds: Time limit.
        memory: Limit of resident memory in bytes; the library alone takes 150 MB.
        noise: Bytes on standard error from the user's functions, not from halfwise.
    """

    name: str
    make: Callable[[Path], Command]
    codes: tuple[int, ...]
    broken: bool = False
    sound: bool = False
    says: tuple[str, ...] = ()
    quick: bool = True
    seconds: float = SECONDS
    memory: int = MEMORY
    noise: int = 0

    def __post_init__(self) -> None:
        unknown = set(self.codes) - DOCUMENTED
        assert not unknown, f"{self.name}: exit codes {unknown} are not documented"


@dataclass(frozen=True)
class Outcome:
    """The outcome of an attack.

    Attributes:
        code: Exit code; None if a signal ended it.
        signal: The signal, also if the harness sent it at a limit.
        over: The limit that it exceeded: "time", "memory" or None.
        seconds: Wall time.
        memory: Peak resident memory in bytes, of itself or a process that it started.
        out: Standard output, its beginning and end.
        err: Standard error, likewise.
        out_bytes: Size of all standard output.
        err_bytes: Size of all standard error.
        left: What it left behind: files in TMPDIR, and processes.
        json: Whether `--json` was given; then `out_json` says whether standard output is JSON.
        out_json: See `json`.
    """

    code: int | None
    signal: int | None
    over: str | None
    seconds: float
    memory: int
    out: str
    err: str
    out_bytes: int
    err_bytes: int
    left: tuple[str, ...] = ()
    json: bool = False
    out_json: bool = False


def faults(attack: Attack, outcome: Outcome) -> list[str]:
    """Return what halfwise did wrong; nothing if it withstood."""
    wrong = []
    if outcome.over:
        wrong.append(f"over its limit of {outcome.over}")
    elif outcome.signal is not None:
        wrong.append(f"ended by signal {outcome.signal}")
    said = outcome.err + outcome.out
    wrong += [f"printed '{mark}'" for mark in _TRACEBACKS if mark in said]
    wrong += [f"printed '{line}'" for line in _WARNING.findall(said)[:1]]
    code = outcome.code
    if code == PASSED and attack.broken:
        wrong.append("passed, and is broken")
    elif code is not None and code not in attack.codes:
        wrong.append(f"exit code {code}, expected {' or '.join(map(str, attack.codes))}")
    if outcome.err_bytes > MESSAGE_BYTES + attack.noise:
        wrong.append(f"{outcome.err_bytes} bytes on standard error")
    if code in DOCUMENTED - {PASSED, VERDICT_FAILED} and not outcome.err.strip():
        wrong.append("no word on standard error")
    if outcome.json and code in (PASSED, VERDICT_FAILED) and not outcome.out_json:
        wrong.append("standard output is no JSON")
    wrong += [f"does not say '{text}'" for text in attack.says if text not in said]
    wrong += [f"left {name}" for name in outcome.left]
    return wrong


def is_json(text: str) -> bool:
    """Return whether a text is one JSON document."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
