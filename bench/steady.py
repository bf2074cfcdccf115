"""The same command twice, once next to four processes that burn CPU: every point is the same."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, equal, reported
from bench.runs import FINISHED, ROOT, CommandFailed, Subject, Workbench, digits
from halfwise import report
from halfwise.records import Run

BUSY = 4
BUDGETS = {"digits": "40", "magika": "40", "ppocr_v3_det": "100", "yolox_nano": "100"}
"""Work at which each search ends although it could go on, at a tolerance that asks for more."""
STRICT = ("--rel-max", "0.001")


@dataclass(frozen=True)
class Pair:
    """One command, run alone and next to busy processes."""

    quiet: Run
    busy: Run


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Run each pair; searches that end by themselves, and searches that the budget ends."""
    figures = []
    whole = [digits()]
    cut = [digits(), *filter(None, map(bench.real, list(BUDGETS)[1:]))]
    for subject, options, name in [
        *((s, s.options, s.name) for s in whole),
        *((s, _cut(s), f"{s.name}, ended by the budget") for s in cut),
    ]:
        figures += list(_figures(name, _pair(bench.folder, name, subject, options)))
    return figures, bench.missing(list(BUDGETS)[1:])


def _cut(subject: Subject) -> tuple[str, ...]:
    data = subject.options[:2] if subject.name == "digits" else ()
    return (*data, *STRICT, "--budget", f"inferences={BUDGETS[subject.name]}")


def _pair(folder: Path, name: str, subject: Subject, options: tuple[str, ...]) -> Pair:
    quiet, busy = (
        _run(folder / f"{name}, {len(beside)}", subject, options, beside)
        for beside in ((), (str(ROOT / "tools" / "beside-busy"), str(BUSY)))
    )
    return Pair(quiet, busy)


def _run(out: Path, subject: Subject, options: tuple[str, ...], beside: tuple[str, ...]) -> Run:
    fix = ("-m", "halfwise", "fix", str(subject.model), "--inputs", str(subject.inputs))
    command = [*beside, sys.executable, *fix, *options, "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode not in FINISHED:
        raise CommandFailed(f"{out.name} ended with {done.returncode}: {done.stderr[-500:]}")
    return report(out)


def _figures(name: str, pair: Pair) -> list[Figure]:
    quiet, busy = pair.quiet, pair.busy
    assert quiet.search is not None
    assert busy.search is not None
    assert quiet.curve is not None
    slower = busy.cost.seconds / quiet.cost.seconds
    told = f"{len(quiet.curve.points)} points, ended by {quiet.search.ended_by or 'nothing'}"
    return [
        equal(f"{name}: the same plan", quiet.plan == busy.plan, wanted=True),
        equal(f"{name}: the same points", quiet.curve == busy.curve, wanted=True, note=told),
        equal(f"{name}: the same search", quiet.search == busy.search, wanted=True),
        equal(
            f"{name}: evaluations next to {BUSY} busy processes",
            busy.cost.evaluations,
            wanted=quiet.cost.evaluations,
        ),
        reported(f"{name}: times as long next to them", round(slower, 2)),
    ]
