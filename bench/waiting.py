"""How long a terminal goes without a time left, and how far that time is off.

    python bench/waiting.py MODEL INPUTS     runs the commands below, and prints a row for each
    python bench/waiting.py -- COMMAND …     runs one command

A command runs in a pseudo-terminal of 80 columns. Every frame of its bar is read with the time at
which it came; what is shown stays until the next. `first` is when the bar appears, which is what
Python and rich take to start; `dark` the longest stretch without a time left from then to the end
of the process; the rest compares each time shown with how long the
stage, or the part that is named, went on: the median ratio and the share within a factor of 3, by
the word in front of it.
"""

from __future__ import annotations

import os
import pty
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

FRAME = re.compile(
    r"(?P<label>[a-zA-Z][^\r\n]*?)\s{2,}.*?(?P<took>\d+:\d\d:\d\d)"
    r"(?: (?P<how>about|at most|perhaps) (?P<left>\d+:\d\d:\d\d) left)?"
)
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
NEAR = 3.0


@dataclass(frozen=True)
class Frame:
    """What a terminal shows from `at` on, in seconds since the start of the process.

    Attributes:
        at: Seconds.
        label: The stage, or the part of it.
        how: The word before the time left; "" if none is shown.
        left: That time, in seconds.
    """

    at: float
    label: str
    how: str = ""
    left: float = 0.0


def frames(command: Sequence[str | Path]) -> tuple[list[Frame], int]:
    """Run a command in a pseudo-terminal; return its frames, the last at its end, and its code."""
    main, other = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    started, seen = time.monotonic(), [Frame(0.0, "")]
    process = subprocess.Popen(
        [*map(str, command)], stdout=subprocess.DEVNULL, stderr=other, stdin=other, env=env
    )
    os.close(other)
    for text in _chunks(main):
        found = list(FRAME.finditer(CONTROL.sub("\r", text)))
        at = time.monotonic() - started
        if found:
            last = found[-1]
            left = _seconds(last["left"]) if last["left"] else 0.0
            seen.append(Frame(at, last["label"].strip(), last["how"] or "", left))
    code = process.wait()
    os.close(main)
    return [*seen, Frame(time.monotonic() - started, "end")], code


def _chunks(terminal: int) -> Iterator[str]:
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # its last writer has gone
            return
        if not data:
            return
        yield data.decode("utf-8", "replace")


def _seconds(clock: str) -> float:
    hours, minutes, seconds = map(int, clock.split(":"))
    return 3600.0 * hours + 60.0 * minutes + seconds


def dark(seen: Sequence[Frame]) -> tuple[float, str]:
    """Return the longest stretch without a time left, in seconds, and what was shown at its end."""
    longest, since, where = 0.0, seen[1].at, ""
    for before, now in pairwise(seen[1:]):
        if before.how:
            since = now.at
        elif now.at - since > longest:
            longest, where = now.at - since, before.label
    return longest, where


def ratios(seen: Sequence[Frame]) -> dict[str, list[float]]:
    """Return, for each word, the times shown over the true ones; those under a second left out."""
    found: dict[str, list[float]] = {}
    for number, frame in enumerate(seen):
        later = (f.at for f in seen[number:] if f.label != frame.label)
        true = next(later, frame.at) - frame.at
        if frame.how and true >= 1:
            found.setdefault(frame.how, []).append(frame.left / true)
    return found


def row(name: str, command: Sequence[str | Path]) -> str:
    """Run a command; return what its bar showed."""
    seen, code = frames(command)
    longest, where = dark(seen)
    off = "; ".join(
        f"{how} ×{statistics.median(some):.2g}, "
        f"{sum(1 / NEAR <= r <= NEAR for r in some) / len(some):.0%} of {len(some)} near"
        for how, some in ratios(seen).items()
    )
    times = f"{seen[-1].at:6.1f} s, first {seen[1].at:4.1f} s, dark {longest:4.1f} s"
    return f"{name:10} exit {code:2} {times} {where}  {off}"


def commands(model: Path, inputs: Path, folder: Path) -> dict[str, list[str | Path]]:
    """Return the commands that are tried, by name, in an order in which each finds its files."""
    halfwise = [sys.executable, "-m", "halfwise"]
    given: list[str | Path] = [model, "--inputs", inputs]
    run = folder / "fix"
    return {
        "lint": [*halfwise, "lint", model],
        "observe": [*halfwise, "observe", *given],
        "fix": [*halfwise, "fix", *given, "-o", run],
        "choose": [*halfwise, "choose", run, "--worth", "1.5", "-o", folder / "chosen"],
        "report": [*halfwise, "report", run, "--html", "--out", folder / "page.html"],
        "verify": [*halfwise, "verify", model, run / "model.onnx", "--inputs", inputs],
        "compare": [*halfwise, "compare", *given, "--b", "emulation:fp16"],
        "diagnose": [*halfwise, "diagnose", *given, "-o", folder / "diagnosis"],
        "modernize": [*halfwise, "modernize", model, "-o", folder / "m.onnx", "--inputs", inputs],
        "ladder": [*halfwise, "ladder", *given, "-o", folder / "ladder"],
    }


def main() -> None:
    """Print a row for each command."""
    if sys.argv[1] == "--":
        print(row(sys.argv[2], sys.argv[2:]))
        return
    model, inputs, *names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for name, command in commands(Path(model), Path(inputs), Path(folder)).items():
            if not names or name in names:
                print(row(name, command), flush=True)


if __name__ == "__main__":
    main()
