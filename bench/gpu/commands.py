"""Runs the commands of a user with `--target tensorrt` on a GPU, and records how each ends.

    python -m bench.gpu.commands --trt-python PYTHON --work DIR [--models DIR …] [NAME …]

`COMMANDS` names them, the most important first. The models that no bench makes are looked for as
`DIR/NAME/model.onnx` with `inputs.npz`, perhaps `heldout.npz` and `labels.json`. Each command is a
process with its own time limit, and runs in `--work/NAME`. The result, `gpu_commands.json`, is
rewritten after each; exits with 1 unless every command delivers an engine that passes. Run nothing
else on that GPU meanwhile: builds on one GPU wait for one another.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figures import Figure, Result, equal, machine, reported, table
from bench.gpu.engines import rounds
from bench.gpu.figures import RESULTS
from bench.gpu.jobs import Host
from bench.gpu.models import DIGITS
from bench.gpu.networks import NETWORKS
from bench.runs import ROOT
from halfwise import report
from halfwise.records import Run
from halfwise.reporting.remarks import reasons

NAME = "gpu_commands"
GRACE = 20.0
"""Seconds that a command has to end its workers."""
_TOP1 = ("--metric", "top1")
# Where convolutions are compiled at build time, builds of level 3 take minutes.
_QUICK = ("--engine", "optimization-level=2", "--engine", "repeat=2")
# Engines of the FP32 function as drawn: what breaks FP16 is what predictions are scored on.
_AS_DRAWN = ("--no-repair", "--engine", "repeat=2", "--budget", "builds=7")


@dataclass(frozen=True)
class Command:
    """A command, apart from inputs and host.

    Attributes:
        model: Folder of its model.
        words: Its name, and its own options.
        seconds: Its time limit.
    """

    model: str
    words: Sequence[str]
    seconds: float = 150.0


COMMANDS: Mapping[str, Command] = {
    "digits": Command("digits", ("fix",)),
    "magika": Command("magika", ("fix", *_TOP1)),
    "clip14": Command("clip14", ("fix",)),
    "det16": Command("det16", ("fix", *_QUICK)),
    "convs": Command("convs", ("fix", *_QUICK), 120.0),
    "unimatch16": Command("unimatch16", ("fix", *_QUICK), 170.0),
    "digits_int8": Command("digits", ("fix", "--to", "int8", *_TOP1), 220.0),
    "digits_ladder": Command("digits", ("ladder", *_TOP1)),
    **{name: Command(name, ("fix", *_AS_DRAWN), 110.0) for name in NETWORKS},
}


@dataclass
class Ended:
    """How a command ended.

    Attributes:
        words: All of its words.
        code: Its exit code; None if it took too long.
        seconds: How long it took.
        run: Its record; None if it wrote none.
        last: Its last lines.
    """

    words: Sequence[str]
    code: int | None
    seconds: float
    run: Run | None
    last: Sequence[str]

    @property
    def delivered(self) -> str | None:
        """What the delivered engine is, by its row in the table; None if there is none."""
        engines = None if self.run is None else self.run.engines
        if engines is None or engines.delivered is None:
            return None
        made = engines.delivered.sha256
        rows = (r.name for r in engines.results if r.build.engine and r.build.engine.sha256 == made)
        return next(rows, "an engine that is in no table")

    def told(self) -> dict[str, Any]:
        """Return what a reader wants to know."""
        found: dict[str, Any] = {
            "command": " ".join(map(str, self.words)),
            "exit_code": self.code,
            "seconds": round(self.seconds, 1),
            "last": list(self.last),
        }
        run = self.run
        if run is None or run.verdict is None:
            return found
        found |= {
            "passed": run.verdict.passed,
            "reasons": list(reasons(run.verdict.failures)),
            "rungs": {r.rung: r.passed for r in run.rungs},
        }
        if run.worth is not None:
            found["cost"] = {"predicted": run.worth.cost, "measured": run.worth.measured}
            found["cost_fp32"] = {"predicted": run.worth.fp32, "measured": run.worth.measured_fp32}
        if (engines := run.engines) is None:
            return found
        return found | {
            "delivered": self.delivered,
            "builds": [
                {"status": b.status, "seconds": b.seconds, "low": b.config.low}
                for b in engines.builds
            ],
            "rounds": rounds(engines),
            "notes": list(engines.notes),
            "engines": [
                {
                    "name": row.name,
                    "passed": row.verdict.passed if row.verdict is not None else None,
                    "median_ms": row.latency.median_ms if row.latency is not None else None,
                }
                for row in engines.results
            ],
        }


def run(command: Command, host: Host, folder: Path, models: Sequence[Path]) -> Ended | None:
    """Run a command in a folder of its own; None if its model is nowhere."""
    known = (DIGITS, *(models_ / command.model for models_ in models))
    places = known[:1] if command.model == "digits" else known[1:]
    source = next((p for p in places if (p / "model.onnx").exists()), None)
    folder.mkdir(parents=True, exist_ok=True)
    if source is None and command.model not in NETWORKS:
        return None
    if source is None:
        source = folder / command.model
        NETWORKS[command.model]().save(source)
    head, *options = command.words
    words = [*(sys.executable, "-m", "halfwise", head, str(source / "model.onnx"))]
    words += ["--inputs", str(source / "inputs.npz")]
    if (source / "heldout.npz").exists():
        words += ["--heldout", str(source / "heldout.npz")]
    words += [*options, *host.options(), "-o", str(folder / "run")]
    started, log = time.monotonic(), folder / "log.txt"
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            words, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        ) as child,
    ):
        code = _ended(child, command.seconds)
    record = folder / "run" / "run.json"
    last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
    found = report(folder / "run") if record.exists() else None
    return Ended(words, code, time.monotonic() - started, found, last)


def _ended(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return None


def figures(name: str, ended: Ended) -> list[Figure]:
    """Return how a command ended, and what it took."""
    engines = None if ended.run is None else ended.run.engines
    count = 0 if engines is None else len(engines.builds)
    said = "took too long" if ended.code is None else str(ended.code)
    note = f"{ended.delivered or 'no engine'} delivered; {count} builds, {ended.seconds:.0f} s"
    return [equal(f"{name}: exit code", said, "0", note)]


def main() -> int:
    """Run the commands that the command line names, by default all; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"among {', '.join(COMMANDS)}")
    parser.add_argument("--trt-python", required=True, help="interpreter that imports tensorrt")
    parser.add_argument("--tactic-sources", default="", help="comma-separated; default: all")
    parser.add_argument("--models", action="append", type=Path, default=[], metavar="DIR")
    parser.add_argument("--work", type=Path, required=True, help="takes the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"takes {NAME}.json")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begins nothing later")
    given = parser.parse_args()
    if unknown := [n for n in given.names if n not in COMMANDS]:
        parser.error(f"there is no {', '.join(unknown)}, but {', '.join(COMMANDS)}")
    host = Host(given.trt_python, given.tactic_sources, None)
    end = time.monotonic() + given.seconds
    result = Result(NAME, "python -m bench.gpu.commands --trt-python PYTHON --work DIR", [], None)
    result.machine = {**machine(), "tactic_sources": given.tactic_sources or "default"}
    result.details = {}
    for name in given.names or COMMANDS:
        if time.monotonic() > end:
            result.figures.append(reported(f"{name}: exit code", "no time left"))
            continue
        ended = run(COMMANDS[name], host, given.work.resolve() / name, given.models)
        if ended is None:
            result.figures.append(reported(f"{name}: exit code", "its model is not here"))
            continue
        result.figures += figures(name, ended)
        result.details[name] = ended.told()
        if ended.run is not None and ended.run.engines is not None:
            worker = ended.run.engines.worker
            result.machine |= {k: getattr(worker, k) for k in ("gpu", "driver", "tensorrt")}
        result.save(given.results)
        print(table([result]).splitlines()[-1], flush=True)
    result.save(given.results)
    return 0 if result.reached else 1


if __name__ == "__main__":
    sys.exit(main())
