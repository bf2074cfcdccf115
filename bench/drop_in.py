"""halfwise's `convert_float_to_float16` with inputs, beside onnxconverter-common's, which has none.

    python bench/run.py drop_in
    python -m bench.drop_in NAME …        some models, a line each

Each call is a process of its own; each result is judged by `halfwise verify` on held-out samples.
Nothing is needed where onnxconverter-common's plain conversion passes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from bench.figures import Figure, at_most, equal, reported
from bench.peers.attempts import Attempt, attempt
from bench.peers.environments import Environment, environment
from bench.peers.tasks import tasks_of
from bench.peers.tools import TOOLS, Tool
from bench.runs import Workbench, models_folder
from halfwise.records import replace

OURS = Tool("drop-in", "drop-in call", "drop_in.py", "here")
PLAIN = next(tool for tool in TOOLS if tool.name == "converter-float16")
RATIO = 2.0
"""Of the processes' processor times; both load their libraries."""
Attempts = Mapping[str, Attempt]
"""By tool."""


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Convert every available model by each call; return figures, and what was not run."""
    theirs = environment("onnxconverter-common")
    if theirs.missing:
        return [], f"onnxconverter-common: {theirs.missing}"
    found = dict(attempts(bench, theirs))
    bench.details["drop_in"] = {
        name: {tool: _told(end) for tool, end in ends.items()} for name, ends in found.items()
    }
    return list(figures(found)), bench.missing()


def attempts(
    bench: Workbench, theirs: Environment, names: Sequence[str] = ()
) -> Iterator[tuple[str, Attempts]]:
    """Yield each task's name with its attempts; without names, all tasks."""
    here = Environment(Path(sys.prefix), {})
    for task in tasks_of(bench):
        if not names or task.name in names:
            ours = replace(OURS, settings=task.options)
            pairs = ((ours, here), (PLAIN, theirs))
            yield task.name, {t.name: attempt(t, task, place, resume=False) for t, place in pairs}


def figures(found: Mapping[str, Attempts]) -> Iterator[Figure]:
    """Yield how many pass, and how long each call takes where nothing is needed."""
    failed = [name for name, ends in found.items() if not ends[OURS.name].passed]
    what = f"models, of {len(found)}, that the drop-in call does not get right"
    yield equal(what, len(failed), 0, ", ".join(failed))
    needless = [ends for ends in found.values() if ends[PLAIN.name].passed]
    yield reported("models that need nothing: the plain conversion passes", len(needless))
    ratio, note = _ratio(needless, "processor_seconds")
    yield at_most("process over theirs where nothing is needed, median", ratio, RATIO, note)
    ratio, note = _ratio(needless, "convert_seconds")
    yield reported("call over theirs where nothing is needed, wall time, median", ratio, note)


def _told(end: Attempt) -> list[float | str | bool | None]:
    """Return how an attempt ended, whether it passes, and the seconds of process and call."""
    times = (end.processor_seconds, end.convert_seconds)
    return [end.end, end.passed, *(None if t is None else round(t, 2) for t in times)]


def _ratio(found: Sequence[Attempts], part: str) -> tuple[float, str]:
    """Return the median ratio of a time to theirs, and the medians of both."""
    pairs = [(getattr(ends[OURS.name], part), getattr(ends[PLAIN.name], part)) for ends in found]
    ours, its = (median(times) for times in zip(*pairs, strict=True))
    return median(a / b for a, b in pairs), f"{ours:.2f} s over {its:.2f} s"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="halfwise-bench-") as folder:
        bench = Workbench(Path(folder), models_folder())
        for name, ends in attempts(bench, environment("onnxconverter-common"), given.names):
            for tool, end in ends.items():
                print(f"{name}, {tool}: {end.told()}", flush=True)


if __name__ == "__main__":
    main()
