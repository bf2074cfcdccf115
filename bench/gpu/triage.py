"""Runs `halfwise diagnose` and `compare` with real engines, and measures FP32, TF32 and FP16 apart.

    python -m bench.gpu.triage --trt-python PYTHON [--models DIR] --work DIR NAME …

NAME is `digits` or a folder of DIR with model.onnx and inputs.npz. Per model: the SNR of engines in
FP32 without and with TF32 and in FP16 against ONNX Runtime, by a separate client; the answers of
`diagnose` on each rung; where `compare` says that the FP16 engine's error is born.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from bench.figures import Figure, Result, at_most, equal, reported, table
from bench.gpu.engines import samples_of
from bench.gpu.jobs import Host, add_host, host_of
from bench.gpu.pipe import Pipe, Refused
from bench.runs import ROOT
from halfwise import report
from halfwise.emulation.ort import Session
from halfwise.graph.loading import load_network
from halfwise.graph.model import Network
from halfwise.metrics.difference import relative_rms

RESULTS = ROOT / "bench" / "results"
SAME_DB = 60.0
"""SNR of an FP32 engine that computes the same function; `diagnose` asks for it on rung 4."""
MOST_SAMPLES = 4
SECONDS = 400.0
KEEPING = 60.0
"""Seconds for a command to write its findings."""
PARTS = ("snr", "diagnose", "compare")
WRONG = {"gtcrn": ("--engine", "optimization-level=2")}
"""Models whose FP32 engines of TensorRT 8.6.0 were seen to be wrong, and options of `diagnose`: at
level 3 one engine took four minutes to build, and was wrong by the same 12.1 dB as at level 0."""
MOST_BUILDS, PLACE = 16, 5
_FORMATS: Mapping[str, dict[str, Any]] = {
    "FP32": {},
    "TF32": {"tf32": True},
    "FP16": {"low": "fp16", "tf32": True},
}

Arrays = Mapping[str, np.ndarray]


def snrs(network: Network, samples: Sequence[Arrays], pipe: Pipe) -> dict[str, float | str]:
    """Return the worst output's SNR in dB of engines in each format, or why there is none."""
    model = network.model.clone()
    for value in model.graph.inputs:
        if str(value.name) in samples[0]:
            value.shape = ir.Shape(samples[0][str(value.name)].shape)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        ir.save(model, path)
        data = path.read_bytes()
    session = Session(network.model)
    right = [session.run(sample) for sample in samples]
    found: dict[str, float | str] = {}
    for name, config in _FORMATS.items():
        try:
            engine = pipe.build(data, **config).header["engine"]["sha256"]
            given = [pipe.run(engine, sample) for sample in samples]
        except Refused as refused:
            found[name] = str(refused)[:200]
            continue
        errors = [relative_rms(r[n], g[n]) for r, g in zip(right, given, strict=True) for n in r]
        worst = max(errors)
        found[name] = float(-20 * np.log10(worst)) if worst > 0 else float("inf")
    return found


def diagnosed(
    host: Host,
    model: Path,
    inputs: Path,
    work: Path,
    seconds: float = SECONDS,
    options: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return every rung of `halfwise diagnose` as in `run.json`; empty if it has none."""
    words = ["diagnose", str(model), "--inputs", str(inputs), *host.options(), *options]
    _command([*words, "-o", str(work / "run")], work / "diagnose.log", seconds)
    if not (work / "run" / "run.json").exists():
        return []
    return [r.to_dict() for r in report(work / "run").diagnosis]


def compared(host: Host, model: Path, inputs: Path, work: Path) -> tuple[int | None, str]:
    """Return exit code and output of `halfwise compare`, ONNX Runtime against an FP16 engine."""
    words = ["compare", str(model), "--inputs", str(inputs), "--a", "ort", "--b", "engine:fp16"]
    options = [o for o in host.options() if o not in ("--target", "tensorrt")]
    return _command([*words, *options], work / "compare.log")


def _command(words: Sequence[str], log: Path, seconds: float = SECONDS) -> tuple[int | None, str]:
    line = [sys.executable, "-m", "halfwise", *words]
    late = False
    pipe = subprocess.PIPE
    with subprocess.Popen(line, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        # Ctrl-C first, so that it writes its findings so far.
        for wait, end in ((seconds, signal.SIGINT), (KEEPING, signal.SIGKILL)):
            try:
                out, err = process.communicate(timeout=wait)
                break
            except subprocess.TimeoutExpired:
                late = True
                process.send_signal(end)
        else:
            out, err = process.communicate()
    log.write_text(f"{err}\n{out}", encoding="utf-8")
    return (None, "took too long") if late else (process.returncode, out)


def figures(
    name: str, decibels: Mapping[str, float | str], rungs: Sequence[Mapping[str, Any]]
) -> list[Figure]:
    """Return the measurements, and whether rung 4 is right about the FP32 engine."""
    found = []
    fp32 = decibels.get("FP32")
    fourth = next((r for r in rungs if r["rung"] == 4), None)
    if fourth is not None and isinstance(fp32, float):
        what = f"{name}: rung 4 calls the FP32 engine"
        said = "right" if fourth["passed"] else "wrong"
        found.append(equal(what, said, "right" if fp32 >= SAME_DB else "wrong", fourth["cause"]))
    for rung in rungs:
        found += _located(name, rung.get("engine") or {})
    last = rungs[-1] if rungs else None
    if last is not None:
        outcome = "all rungs passed" if last["passed"] is not False else last["cause"]
        found.append(reported(f"{name}: diagnosis ends at rung", last["rung"], outcome))
    return found


def _located(name: str, told: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield where an engine is wrong, and how many builds finding that took."""
    if not told:
        return
    yield reported(f"{name}: nodes named", ", ".join(told["region"]))
    if name in WRONG:
        what = f"{name}: with their true outputs fed in the engine is right"
        yield equal(what, told["explained"], wanted=True)
        yield at_most(f"{name}: builds until they are", told["builds"], MOST_BUILDS)
        yield at_most(f"{name}: largest place (nodes)", len(told["region"]) or inf, PLACE)
    else:
        yield reported(f"{name}: builds until they are", told["builds"])


def measure(
    name: str,
    host: Host,
    pipe: Pipe,
    work: Path,
    parts: Collection[str] = PARTS,
    limit: float = SECONDS,
) -> Iterator[tuple[list[Figure], dict[str, Any]]]:
    """Yield figures and details of one model, step by step."""
    model, inputs = host.subject(name)
    work.mkdir(parents=True)
    decibels: dict[str, float | str] = {}
    if "snr" in parts:
        decibels = snrs(load_network(model), samples_of(inputs)[:MOST_SAMPLES], pipe)
        yield [reported(f"{name}: SNR of the {n} engine (dB)", v) for n, v in decibels.items()], {}
    if "diagnose" in parts:
        started = time.monotonic()
        rungs = diagnosed(host, model, inputs, work, limit, WRONG.get(name, ()))
        seconds = time.monotonic() - started
        found = figures(name, decibels, rungs)
        found.append(reported(f"{name}: diagnose (s)", seconds))
        yield found, {"diagnosis": rungs}
    if "compare" not in parts:
        return
    code, told = compared(host, model, inputs, work)
    first = re.search(r"[Ff]irst divergence.*", told)
    what = f"{name}: compare ONNX Runtime with the FP16 engine, exit code"
    figure = reported(what, str(code), first[0] if first else "")
    yield [figure], {"compare": told.splitlines()}


def main() -> int:
    """Measure the models that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="NAME")
    add_host(parser)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for diagnose")
    parser.add_argument("--work", type=Path, required=True, help="takes runs and logs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    host = host_of(given)
    command = f"python -m bench.gpu.triage --trt-python PYTHON --work DIR {' '.join(given.names)}"
    result = Result("gpu_triage", command, [], None)
    result.details = {}
    with Pipe([host.trt_python], host.sources()) as pipe:
        result.machine |= pipe.told()
        for name in given.names:
            result.details[name] = {}
            for found, details in measure(
                name, host, pipe, given.work / name, given.parts, given.seconds
            ):
                result.figures += found
                result.details[name] |= details
                result.save(given.results)
            print(table([result]), flush=True)
    return 0 if result.reached else 1


if __name__ == "__main__":
    sys.exit(main())
