"""Fixes models for TensorRT on a GPU and writes `gpu_<name>.json` each, and a table.

    python -m bench.gpu.figures --trt-python PYTHON --work DIR NAME …

Run it from the repository's root with halfwise installed; `run.sh` needs no installation. Names are
in `bench/gpu/jobs.py`. Exits with 1 if a figure is not reached. bench/gpu/README.md says how to
prepare a host.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from bench.figures import Figure, Result, equal, machine, reported, table
from bench.gpu import engines as seen
from bench.gpu import race
from bench.gpu.autocast import FILE as AUTOCAST
from bench.gpu.jobs import JOBS, Host, Job, add_host, host_of
from bench.gpu.polygraphy_bisect import Bisected, bisect
from bench.gpu.typed import beside
from bench.runs import ROOT
from halfwise import report
from halfwise.records import Run, WorkerInfo, replace

RESULTS = ROOT / "bench" / "results"
FILES = ("model.onnx", "inputs.npz", "heldout.npz", AUTOCAST)
BISECT_SECONDS = 420.0


def fix(
    job: Job, host: Host, folder: Path, end: float, look: Callable[[], None] = lambda: None
) -> tuple[Run | None, float, int | None]:
    """Run `halfwise fix` as a user would; return its record, wall time and exit code.

    `folder` has the model and its inputs. It gets the run in `run`, and `fix.log`, each line with
    the seconds since the start. The exit code is None if it was stopped at `end`, by the
    monotonic clock, or at the job's time limit.
    """
    heldout = folder / "heldout.npz"
    words = [
        *(sys.executable, "-u", "-m", "halfwise", "fix", str(folder / "model.onnx")),
        *("--inputs", str(folder / "inputs.npz")),
        *(("--heldout", str(heldout)) if heldout.exists() else ()),
        *host.options(),
        *job.judging,
        *job.options,
        *("-o", str(folder / "run")),
    ]
    seconds = min(job.seconds, end - time.monotonic())
    code, wall = _logged(words, folder / "fix.log", seconds, look)
    record = folder / "run" / "run.json"
    return (report(folder / "run") if record.exists() else None), wall, code


def _logged(
    words: list[str], log: Path, seconds: float, look: Callable[[], None] = lambda: None
) -> tuple[int | None, float]:
    """Run a command, logging the time before each line of output; None: it took too long.

    `look` is called repeatedly meanwhile.
    """
    started = time.monotonic()
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
        ) as child,
    ):
        file.write(f"$ {' '.join(words)}\n")
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        rest, ended = b"", False
        while not ended:
            ended = child.poll() is not None
            if time.monotonic() - started > seconds:
                child.terminate()
                child.wait(20)
                return None, time.monotonic() - started
            *lines, rest = (rest + (child.stdout.read() or b"")).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                file.write(f"{time.monotonic() - started:7.1f} {text}\n")
                file.flush()
            look()
            time.sleep(0.05)
        file.write(rest.decode(errors="replace"))
        return child.returncode, time.monotonic() - started


def measure(
    name: str, host: Host, work: Path, end: float = math.inf, options: Sequence[str] = ()
) -> Result:
    """Return the result of one job, without what is not done by `end`, by the monotonic clock.

    `options` are further options of `halfwise fix`.
    """
    job, folder = JOBS[name], work / name
    job = replace(job, options=(*job.options, *options))
    lacking = _provide(name, job, host, folder)
    if lacking:
        return Result(f"gpu_{name}", _command(name), [], lacking)
    kept = race.Kept(folder / "kept")
    run, wall, code = fix(job, host, folder, end, kept.look)
    log = (folder / "fix.log").read_text(encoding="utf-8")
    details: dict[str, Any] = {"command": log.partition("\n")[0], "exit_code": code}
    figures: list[Figure] = [reported(f"{name}: whole command (s)", wall)]
    if run is None or run.engines is None or run.engines.delivered is None:
        ended = "took too long" if code is None else f"exit code {code}"
        figures.append(equal(f"{name}: an engine was delivered", ended, "yes"))
        details["log"] = log.splitlines()[-40:]
    worker = run.engines.worker if run is not None and run.engines is not None else None
    if run is not None and run.engines is not None:
        details["stages"] = run.cost.stage_seconds
        details["rounds"] = seen.rounds(run.engines)
        details["notes"] = run.engines.notes
        details["engines"] = seen.table(run.engines)
        _keep(folder)
        if run.engines.delivered is not None:
            checked = _check(run, host, folder)
            figures += seen.figures(name, job, run, checked)
            figures += _raced(name, run, kept, host, folder, end, details) if job.race else []
    if job.bisect:
        other, judged = _bisected(job, host, folder, end)
        details["polygraphy"] = other.told()
        if run is not None and run.engines is not None:
            figures += seen.comparison(name, run.engines, log, other, judged)
    figures += beside(name, folder)
    found = Result(f"gpu_{name}", _command(name), figures, None, details=details)
    found.machine.update(_gpu(worker, host))
    return found


def _command(name: str) -> str:
    return f"python -m bench.gpu.figures --trt-python PYTHON --work DIR {name}"


def _provide(name: str, job: Job, host: Host, folder: Path) -> str | None:
    """Link the model and its inputs, or make them; return what is missing."""
    known = None if host.models is None else host.models / (job.published or name)
    if known is None or not (known / "model.onnx").exists():
        if job.make is None:
            return f"{job.published or name}: not in the models folder"
        job.make().save(folder)
        return None
    folder.mkdir(parents=True)
    for file in FILES:
        if (known / file).exists():
            (folder / file).symlink_to((known / file).resolve())
    return None


def _raced(
    name: str,
    run: Run,
    kept: race.Kept,
    host: Host,
    folder: Path,
    end: float,
    details: dict[str, Any],
) -> list[Figure]:
    """Return how the delivered engine compares with others; `details` gets all of them."""
    racers = race.race(run, kept, host, folder, end)
    details["race"] = [racer.told() for racer in racers]
    text = json.dumps(details["race"], ensure_ascii=False, allow_nan=False)
    (folder / race.FILE).write_text(text + "\n", encoding="utf-8")
    return list(race.figures(name, racers))


def _keep(folder: Path) -> None:
    data = (folder / "run" / "run.json").read_bytes()
    (folder / "run.json.gz").write_bytes(gzip.compress(data))


def _check(run: Run, host: Host, folder: Path) -> seen.Checked | None:
    """Return how the delivered engine does on held-out samples; None if it is missing."""
    assert run.engines is not None
    assert run.engines.delivered is not None
    engine = folder / "run" / run.engines.delivered.path
    if not engine.exists():
        return None
    held = folder / "heldout.npz"
    # Without a file of their own, every fourth sample is held out.
    samples = seen.samples_of(held if held.exists() else folder / "inputs.npz")
    samples = samples if held.exists() else samples[3::4]
    return seen.check(host, engine.read_bytes(), folder / "model.onnx", samples)


def _bisected(
    job: Job, host: Host, folder: Path, end: float
) -> tuple[Bisected, seen.Checked | None]:
    """Return what Polygraphy found on calibration samples, and its judgement on held-out ones."""
    assert job.tolerance is not None
    model = folder / "model.onnx"
    samples = seen.samples_of(folder / "inputs.npz")
    inputs = {name: np.concatenate([s[name] for s in samples]) for name in samples[0]}
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, inputs), strict=True))
    seconds = max(1.0, min(BISECT_SECONDS, end - time.monotonic()))
    found = bisect(host, model, (inputs, outputs), job.tolerance, folder / "polygraphy", seconds)
    if found.engine is None:
        return found, None
    heldout = seen.samples_of(folder / "heldout.npz")
    return found, seen.check(host, found.engine.read_bytes(), model, heldout)


def _gpu(worker: WorkerInfo | None, host: Host) -> dict[str, Any]:
    """Return where engines were built."""
    told = {"tactic_sources": host.tactic_sources or "default"}
    if worker is None:
        return told
    return {
        **told,
        "gpu": worker.gpu,
        "compute_capability": worker.compute_capability,
        "driver": worker.driver,
        "tensorrt": worker.tensorrt,
        "worker_python": worker.python,
    }


def main() -> int:
    """Run the jobs that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="+", choices=list(JOBS), metavar="NAME")
    add_host(parser)
    parser.add_argument("--work", type=Path, required=True, help="takes models and runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="takes gpu_<name>.json")
    parser.add_argument("--minutes", type=float, default=math.inf, help="give up after these")
    parser.add_argument("--options", default="", help="of `halfwise fix`, beside the job's own")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    host = host_of(given)
    results = []
    for name in given.names:
        print(f"{name} …", flush=True)
        results.append(measure(name, host, given.work.resolve(), end, given.options.split()))
        results[-1].save(given.results)
        print(table(results[-1:]), flush=True)
    print(f"machine: {machine()['cpu']}")
    return 0 if all(result.reached for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
