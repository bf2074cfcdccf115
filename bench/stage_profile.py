"""Where the time of one `halfwise fix` goes: per stage, on the host and in ONNX Runtime.

Run ``python bench/stage_profile.py MODEL INPUTS [OPTIONS of fix]``. Each stage gets a line: its
seconds; sessions loaded, runs, and the seconds of both; megabytes that left the sessions. Then
come who loads and runs, and per stage the functions that took longest. "other" is what no stage
counts: loading the model, and writing the results. No part of ``bench/run.py``.

For a model of ViT-B/16's size on a GPU::

    python bench/vit.py --out vit_b --samples 24
    python bench/stage_profile.py vit_b/model.onnx vit_b/inputs --device cuda --strict --no-repair
"""

from __future__ import annotations

import cProfile
import inspect
import pstats
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from halfwise import cli
from halfwise.emulation.ort import Session
from halfwise.fixing.loop import Stages

OTHER, FUNCTIONS = "other", 25
BELOW = ("emulation", "bench", "unittest")
"""Folders whose functions load and run for others."""


def caller() -> str:
    """Return the function that a call is made for: the first one above `BELOW` and the library."""
    frame = inspect.currentframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if "halfwise" in path.parts and path.parent.name not in BELOW:
            return f"{path.parent.name}/{path.name} {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


@dataclass
class Spent:
    """What one stage took: seconds in all, per kind of call, calls, and bytes fetched."""

    seconds: float = 0.0
    took: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    fetched: int = 0
    callers: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    profile: cProfile.Profile = field(default_factory=cProfile.Profile)


class Stopwatch:
    """Attributes profiles and calls of sessions to the innermost stage."""

    def __init__(self) -> None:
        self.stages: dict[str, Spent] = defaultdict(Spent)
        self.open: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Profile a block as a stage; the one around it is interrupted."""
        outer = self.stages[self.open[-1]] if self.open else None
        if outer:
            outer.profile.disable()
        spent, started = self.stages[name], time.perf_counter()
        self.open.append(name)
        spent.profile.enable()
        try:
            yield
        finally:
            spent.profile.disable()
            self.open.pop()
            took = time.perf_counter() - started
            spent.seconds += took
            if outer:
                outer.seconds -= took
                outer.profile.enable()

    def counting(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of `Session` that counts its calls."""

        def counted(*args: Any, **options: Any) -> Any:
            spent, started = self.stages[self.open[-1]], time.perf_counter()
            try:
                result = call(*args, **options)
            finally:
                took = time.perf_counter() - started
                spent.took[kind] += took
                spent.calls[kind] += 1
                spent.callers[kind, caller()].append(took)
            for array in (result or {}).values():
                spent.fetched += getattr(array, "nbytes", 0)
            return result

        return counted

    def staged(self, stage: Callable[..., Any]) -> Callable[..., Any]:
        """Return `Stages.__call__` with each block profiled."""

        @contextmanager
        def begun(stages: Stages, name: str) -> Iterator[None]:
            with self.stage(name), stage(stages, name):
                yield

        return begun


def main() -> None:
    """Run `fix` and print where its time went."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = [
            "halfwise",
            "fix",
            sys.argv[1],
            "--inputs",
            *sys.argv[2:],
            "-o",
            f"{folder}/run",
        ]
        with (
            mock.patch.object(Session, "__init__", watch.counting("load", Session.__init__)),
            mock.patch.object(Session, "run", watch.counting("run", Session.run)),
            mock.patch.object(Stages, "__call__", watch.staged(Stages.__call__)),
            suppress(SystemExit),
            watch.stage(OTHER),
        ):
            cli.main()
    print(f"{'stage':12}{'s':>8}{'loads':>7}{'s':>8}{'runs':>7}{'s':>8}{'rest':>8}{'MB out':>9}")
    for name, spent in watch.stages.items():
        load, run = spent.took["load"], spent.took["run"]
        print(
            f"{name:12}{spent.seconds:8.2f}{spent.calls['load']:7}{load:8.2f}"
            f"{spent.calls['run']:7}{run:8.2f}{spent.seconds - load - run:8.2f}"
            f"{spent.fetched / 1e6:9.1f}"
        )
    print()
    for name, spent in watch.stages.items():
        for (kind, who), times in spent.callers.items():
            print(f"{name:12}{kind:6}{len(times):5}{sum(times):8.2f} s  {who}")
    for name, spent in watch.stages.items():
        print(f"\n=== {name}: {spent.seconds:.2f} s")
        stats = pstats.Stats(spent.profile)
        stats.sort_stats("tottime").print_stats(FUNCTIONS)
        stats.sort_stats("cumulative").print_stats(FUNCTIONS)


if __name__ == "__main__":
    main()
