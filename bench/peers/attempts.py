"""One tool on one model: run in a separate process, counted and judged like all others."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx.checker import ValidationError
from onnx.shape_inference import InferenceError

import halfwise
from bench.peers.counting import counted
from bench.peers.environments import HERE, Environment, cache_folder
from bench.peers.tasks import Task
from bench.peers.tools import Tool
from bench.runs import FINISHED, ROOT
from halfwise.errors import HalfwiseError
from halfwise.records import Run, Verdict, replace

LIMIT_SECONDS = 300
LONGEST_MESSAGE = 200
ATTEMPT = "attempt.json"


@dataclass(frozen=True)
class Attempt:
    """The result of a tool on a model.

    Attributes:
        end: "made", or how it failed: "refused" (an error of its own), "crashed", "timeout",
            "invalid" (the ONNX checker rejects its result), "not installed".
        passed: Whether the result is within tolerance on the held-out samples.
        kept: FP32 nodes of the result, by `counting.RULE`; None without a result.
        fused: Whether the result has fewer nodes that compute than the FP32 model.
        clipped: Whether the largest constant that FP16 could hold became smaller by more than 1 %.
        casts: Casts of the result.
        error: Largest error of an output over its largest reference value (share of differing
            elements in an integer output) on the held-out samples; inf for new non-finite values.
        metric: Value of the task metric, if one decides.
        seconds: Wall time of the whole process, imports included.
        convert_seconds: Wall time of the conversion or search alone.
        processor_seconds: Processor time of the whole process, imports included; None for halfwise.
        peak_bytes: Peak memory of the process.
        builds: Assignments tried, if the tool searches with halfwise's emulation.
        joined: Held-out samples that halfwise took into its search because they failed.
        headroom: Nodes that halfwise keeps for values beyond those observed alone.
        message: The first line of the failure, or another remark.
    """

    end: str
    passed: bool = False
    kept: int | None = None
    fused: bool = False
    clipped: bool = False
    casts: int | None = None
    error: float | None = None
    metric: float | None = None
    seconds: float | None = None
    convert_seconds: float | None = None
    processor_seconds: float | None = None
    peak_bytes: int | None = None
    builds: int | None = None
    joined: int = 0
    headroom: int = 0
    message: str | None = None

    def told(self) -> dict[str, Any]:
        """Return the fields for JSON, infinite errors as text."""
        fields = asdict(self)
        if self.error is not None and not math.isfinite(self.error):
            fields["error"] = str(self.error)
        return fields


def attempt(tool: Tool, task: Task, place: Environment | None, *, resume: bool) -> Attempt:
    """Return the judged result of `tool` on `task`; `resume` reuses a cached conversion."""
    if place is not None and place.missing:
        return Attempt("not installed", message=place.missing)
    known = cache_folder() / "peers" / _key(tool, task, place)
    if resume and (known / ATTEMPT).is_file():
        made = Attempt(**json.loads((known / ATTEMPT).read_text(encoding="utf-8")))
    else:
        shutil.rmtree(known, ignore_errors=True)
        known.mkdir(parents=True)
        made = _made(tool, task, place, known)
        made = replace(made, message=_short(made.message, task.folder, known))
        (known / ATTEMPT).write_text(json.dumps(asdict(made)), encoding="utf-8")
    if made.end != "made":
        return made
    return _judged(made, task, known / ("mixed.onnx" if tool.environment else "run/model.onnx"))


def _key(tool: Tool, task: Task, place: Environment | None) -> str:
    """Return a hash of everything that the tool's work depends on."""
    digest = hashlib.sha256(repr((tool, task.options, place)).encode())
    code = [HERE / "runners" / name for name in ("child.py", "acceptance.py", tool.runner)]
    if tool.uses_halfwise:
        code += sorted((ROOT / "src").rglob("*.py"))
    samples = [task.folder / name for name in ("calibration", "heldout")]
    for file in (*code, task.model, *(f for folder in samples for f in sorted(folder.iterdir()))):
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _made(tool: Tool, task: Task, place: Environment | None, out: Path) -> Attempt:
    """Run the tool and read its own report."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            tool.command(task, out, place),
            env=tool.variables(place),
            cwd=out,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Attempt("timeout", message=f"not done after {LIMIT_SECONDS} s")
    seconds = time.monotonic() - started
    if tool.environment is None:
        return _halfwise(done, out / "run", seconds)
    told = out / "result.json"
    if not told.is_file():
        return _crashed(done, seconds)
    result = json.loads(told.read_text(encoding="utf-8"))
    return Attempt(
        end="refused" if result["failure"] else "made",
        seconds=seconds,
        convert_seconds=result["convert_seconds"],
        processor_seconds=result["processor_seconds"],
        peak_bytes=result["peak_bytes"],
        builds=result.get("builds"),
        message=result["failure"] or result.get("note"),
    )


def _halfwise(done: subprocess.CompletedProcess[str], folder: Path, seconds: float) -> Attempt:
    if done.returncode not in FINISHED:
        return _crashed(done, seconds)
    run: Run = halfwise.report(folder)
    assert run.search is not None
    assert run.plan is not None
    return Attempt(
        end="made",
        seconds=seconds,
        convert_seconds=run.cost.seconds,
        peak_bytes=run.cost.peak_rss_bytes,
        builds=run.cost.evaluations,
        joined=len(run.search.joined),
        headroom=sum(kept.guard == "headroom" for kept in run.plan.keep),
    )


def _crashed(done: subprocess.CompletedProcess[str], seconds: float) -> Attempt:
    last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
    return Attempt("crashed", seconds=seconds, message=f"exit code {done.returncode}: {last}")


def _judged(made: Attempt, task: Task, result: Path) -> Attempt:
    """Check the result, count it and judge it on the held-out samples, by typed emulation."""
    try:
        onnx.checker.check_model(str(result), full_check=True)
        count, original = counted(result), counted(task.model)
        verdict = halfwise.verify(
            task.model, result, str(task.folder / "heldout"), **task.options
        ).run.verdict
    except (HalfwiseError, ValidationError, InferenceError) as error:
        message = _short(str(error).partition("\n")[0], task.folder, result.parent)
        return replace(made, end="invalid", message=message)
    metric = None if verdict.metric is None else verdict.metric.candidate
    return replace(
        made,
        passed=verdict.passed,
        kept=count.fp32,
        fused=count.operations < original.operations,
        clipped=count.largest < 0.99 * original.largest,
        casts=count.casts,
        error=_error(verdict),
        metric=metric,
    )


def _error(verdict: Verdict) -> float:
    return max(
        math.inf if o.nonfinite else o.rel_max if o.agreement is None else 1 - o.agreement
        for o in verdict.outputs.values()
    )


def _short(message: str | None, *folders: Path) -> str | None:
    """Return a message without the folders of this run, cut where it is long."""
    if message is None:
        return None
    for folder in folders:
        message = message.replace(f"{folder}/", "")
    plain = " ".join(message.split())
    return plain if len(plain) <= LONGEST_MESSAGE else f"{plain[:LONGEST_MESSAGE]}…"
