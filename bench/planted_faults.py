"""24 faults planted in the stand-in for TensorRT: does `diagnose` find where they are?

    python bench/run.py planted_faults            all
    python -m bench.planted_faults [PART …]       those whose name holds a part; prints what is told
    python -m bench.planted_faults SEED           24 others, drawn

Operators and fusions of 2 to 4 nodes that compute something else, in all builds, only where nothing
of them is marked, or at one batch size; NaN; builders that crash at a pattern or refuse it. The
networks (`planted_networks.py`) have 50 to 500 nodes and are right in FP16. A fault is localised
where `diagnose` names at most four nodes and one of them is planted, or planted nodes alone.
TensorRT and libcuda are those of `tests/fake_tensorrt`, the command and its worker the real ones.
"""

from __future__ import annotations

import math
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import halfwise
from bench.engine_faults import quick_times
from bench.figures import Figure, at_least, equal, reported
from bench.planted_draws import drawn_trials
from bench.planted_networks import Drawn
from bench.planted_trials import Trial, low_trials, trials
from bench.runs import Workbench
from halfwise.errors import HalfwiseError
from halfwise.fixing.result import Result
from halfwise.records import Run
from tests.fake_tensorrt.start import build_cuda_library, worker_command

WANTED = 20
NAMED = 4
"""Nodes that may be named."""
AT_ONCE = 2
_PRECISION = ("tf32", "precision")


def builds_allowed(nodes: int) -> float:
    """Return how many builds may be used on a graph of so many nodes."""
    return 4 + 4 * math.log2(nodes)


@dataclass(frozen=True)
class Found:
    """What was told of one fault.

    Attributes:
        nodes: Of the network.
        planted: Nodes of the fault.
        named: Nodes that the diagnosis names.
        builds: How many builds it used.
        rung: The rung that failed; None where none did.
        seconds: What it took.
        error: Why there is no diagnosis; empty where there is one.
        told: What the rung says.
    """

    nodes: int
    planted: Sequence[str]
    named: Sequence[str]
    builds: int
    rung: str | None
    seconds: float
    error: str = ""
    told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def localised(self) -> bool:
        """Whether the named nodes are few, and one of them or all of them are planted."""
        named, planted = set(self.named), set(self.planted)
        few = len(named) <= NAMED and bool(named & planted)
        return few or (bool(named) and named <= planted)

    @property
    def in_time(self) -> bool:
        """Whether the builds are few enough."""
        return self.builds <= builds_allowed(self.nodes)

    @property
    def problems(self) -> list[str]:
        """What is not as it should be."""
        places = f"{len(self.named)} nodes named ({', '.join(self.named[:6])})"
        return [
            *([] if self.localised else [places]),
            *([] if self.in_time else [f"{self.builds} builds"]),
            *([f"blamed on {self.rung}"] if self.rung in _PRECISION else []),
            *([self.error] if self.error else []),
        ]


def diagnosed(
    trial: Trial, folder: Path, library: Path, interpreter: str = sys.executable
) -> Found:
    """Diagnose the network of a trial with engines of the stand-in; `folder` is made."""
    started = time.monotonic()
    drawn = trial.network()
    run, error = _run(halfwise.diagnose, trial, drawn, folder, library, interpreter)
    rungs = () if run is None else run.diagnosis or ()
    rung = next((rung for rung in rungs if rung.passed is False), None)
    builds = folder / "worker-counts" / "build"
    return Found(
        nodes=drawn.nodes,
        planted=sorted(trial.planted(drawn)),
        named=() if rung is None else rung.nodes,
        builds=builds.stat().st_size if builds.exists() else 0,
        rung=None if rung is None else rung.name,
        seconds=time.monotonic() - started,
        error=error,
        told={} if rung is None else rung.to_dict(),
    )


def blamed(trial: Trial, folder: Path, library: Path) -> tuple[str, ...]:
    """Fix the network of a trial; return what is told to be at fault where low engines are wrong.

    Kinds of causes, each with those of its nodes where nothing is planted; "nothing" where no cause
    is told.
    """
    drawn = trial.network()
    run, error = _run(halfwise.fix, trial, drawn, folder, library)
    if run is None or run.engines is None:
        return (error,)
    planted = trial.planted(drawn)
    told = {
        " ".join((cause.kind, *(node for node in cause.nodes if node not in planted)))
        for cause in run.engines.causes
    }
    return tuple(sorted(told)) or ("nothing",)


def _run(
    command: Callable[..., Result],
    trial: Trial,
    drawn: Drawn,
    folder: Path,
    library: Path,
    interpreter: str = sys.executable,
) -> tuple[Run | None, str]:
    """Return what a command makes of a trial, or why it comes to no end; `folder` is made."""
    folder.mkdir()
    knobs = trial.knobs()
    worker = worker_command(folder, library, trial.version, interpreter=interpreter, **knobs)
    try:
        found = command(
            drawn.proto,
            drawn.samples,
            out=folder / "run",
            target="tensorrt",
            trt_command=shlex.join(worker),
            allow_random=True,
        )
    except HalfwiseError as failed:
        return None, f"{type(failed).__name__}: {failed.message}"
    return found.run, ""


def _all(planned: Sequence[Trial], folder: Path, library: Path) -> list[Found]:
    def tried(number: int) -> Found:
        trial = planned[number]
        found = diagnosed(trial, folder / str(number), library)
        said = "; ".join(found.problems) or "right"
        _say(
            f"{number + 1} {trial.name} ({found.nodes} nodes, {found.builds} builds of "
            f"{builds_allowed(found.nodes):.1f}, {found.seconds:.0f} s): {said}"
        )
        return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(tried, range(len(planned))))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Let all faults happen; nothing is skipped where there is a C compiler."""
    folder = bench.folder / "planted_faults"
    folder.mkdir()
    try:
        library = build_cuda_library(folder)
    except RuntimeError as error:
        return [], str(error)
    planned, low = trials(), low_trials()
    found = _all(planned, folder, library)
    (folder / "low").mkdir()
    found_low = _all(low, folder / "low", library)
    with quick_times():
        causes = {t.name: blamed(t, folder / f"fix {t.name}", library) for t in low}
    told = [_told(t, f) for t, f in zip([*planned, *low], [*found, *found_low], strict=True)]
    bench.details["planted_faults"] = {"diagnosed": told, "causes": causes}
    share = [one.builds / builds_allowed(one.nodes) for one in found]
    known = sum({"nothing", "unknown"} >= {*kinds} for kinds in causes.values())
    precise = [kinds for kinds in causes.values() if "precision" in kinds]
    everything = [*found, *found_low]
    return [
        at_least(f"faults localised, of {len(found)}", sum(f.localised for f in found), WANTED),
        equal("within 4 + 4 log2(nodes) builds", sum(f.in_time for f in found), len(found)),
        equal("blamed on precision", sum(f.rung in _PRECISION for f in everything), 0),
        reported("largest share of the builds allowed", max(share)),
        reported("faults of FP16 kernels localised, of 3", sum(f.localised for f in found_low)),
        equal("of 3, `fix` tells no cause, or unknown", known, len(low)),
        equal("of 3, `fix` blames on precision", len(precise), 0),
        reported("seconds for each", sum(one.seconds for one in found) / len(found)),
    ], None


def _told(trial: Trial, found: Found) -> dict[str, Any]:
    return {
        "fault": trial.name,
        "nodes": found.nodes,
        "planted": found.planted,
        "named": found.named,
        "builds": found.builds,
        "problems": found.problems,
    }


def main(parts: Sequence[str]) -> None:
    """Diagnose the faults whose names hold one of the parts, and print what is told."""
    every = [*trials(), *low_trials()]
    chosen = [t for t in every if not parts or any(part in t.name for part in parts)]
    if len(parts) == 1 and parts[0].isdigit():
        chosen = drawn_trials(int(parts[0]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = _all(chosen, folder, build_cuda_library(folder))
        for trial, one in zip(chosen, found, strict=True):
            print(f"\n{trial.name}: planted {', '.join(one.planted)}; rung {one.rung}")
            print(one.told.get("cause", one.error))
            for sign in one.told.get("evidence", ()):
                print(f"  {sign.get('severity')}: {sign.get('text')} {sign.get('nodes', '')}")


if __name__ == "__main__":
    main(sys.argv[1:])
