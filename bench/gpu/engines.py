"""Figures from a run's record of its engines, and from running the delivered engine once more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from bench.figures import Figure, at_least, at_most, equal, reported
from bench.gpu.jobs import Host, Job
from bench.gpu.pipe import Pipe
from bench.gpu.polygraphy_bisect import Bisected
from halfwise.records import EngineResult, Engines, Latency, Run

MOST_BUILDS = 3
FASTER = 4.5
OF_FP16, OF_TF32 = 1.10, 0.75
_LAYERS = 25

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Checked:
    """An engine run independently of halfwise, on held-out samples.

    Attributes:
        error: Largest absolute error of any float output; NaN or inf if it has such values.
        same_top1: Share of rows of the first output whose largest element is where FP32 has it.
        samples: Number of samples.
    """

    error: float
    same_top1: float
    samples: int


def check(host: Host, engine: bytes, model: Path, samples: Sequence[Arrays]) -> Checked:
    """Return how an engine compares with ONNX Runtime in FP32."""
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    errors, same = [0.0], []
    with Pipe([host.trt_python], host.sources()) as pipe:
        sha256 = pipe.put(engine)
        for sample in samples:
            wanted = dict(zip(names, session.run(names, dict(sample)), strict=True))
            found = pipe.run(sha256, sample)
            errors += [_error(wanted[n], found[n]) for n in names]
            rows = (wanted[names[0]].argmax(-1), found[names[0]].argmax(-1))
            same.append(float((rows[0] == rows[1]).mean()))
    return Checked(float(np.max(errors)), float(np.mean(same)), len(samples))


def _error(wanted: np.ndarray, found: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):
        return float(np.abs(wanted.astype(np.float64) - found.astype(np.float64)).max())


def samples_of(path: Path) -> list[dict[str, np.ndarray]]:
    """Return the samples of a file of arrays [samples, *input shape]."""
    arrays = dict(np.load(path))
    count = len(next(iter(arrays.values())))
    return [{name: array[i] for name, array in arrays.items()} for i in range(count)]


def figures(name: str, job: Job, run: Run, checked: Checked | None) -> list[Figure]:
    """Return the figures of a run with engines."""
    engines = run.engines
    if engines is None or engines.delivered is None:
        why = "no engines" if engines is None else "; ".join(engines.notes)
        return [equal(f"{name}: an engine was delivered", why, "yes")]
    first, proven = first_build(engines), proving_build(engines)
    found = [
        equal(f"{name}: verdict in the engine passed", run.verdict.passed, wanted=True),
        at_most(f"{name}: builds until an engine was proven", first, MOST_BUILDS)
        if job.bisect
        else reported(f"{name}: builds until an engine was proven", first),
        reported(f"{name}: builds until a low engine passed", proven),
        reported(f"{name}: builds in all", len(engines.builds), _outcomes(engines)),
        reported(f"{name}: nodes kept by the emulation", len(engines.rounds[0].keep)),
        reported(f"{name}: nodes kept in the engine", len(engines.keep)),
        reported(
            f"{name}: kept nodes that no failed engine shows to be needed", len(unproven(engines))
        ),
        reported(
            f"{name}: builds of the plan that passed",
            engines.confirmed,
            f"of {len(engines.spread)}",
        ),
        *predictions(name, engines),
    ]
    if checked is not None:
        found += _of_check(name, job, checked)
    if job.fast:
        found += latencies(name, engines)
    if job.as_tf32:
        found += against_tf32(name, run)
    return found


def against_tf32(name: str, run: Run) -> Iterable[Figure]:
    """Return the delivered rung, and its time against TF32's in the same run."""
    engines = run.engines
    assert engines is not None
    assert engines.delivered is not None
    sha256 = engines.delivered.sha256
    built = [r for r in engines.results if r.build.engine is not None]
    own = next(r for r in built if r.build.engine and r.build.engine.sha256 == sha256)
    tf32 = next((r for r in built if r.rung == "tf32"), None)
    ends = ", ".join(f"{tried.rung}: {tried.end}" for tried in engines.rungs)
    error = max((o.rel_max for o in run.verdict.outputs.values()), default=float("nan"))
    yield reported(f"{name}: rung", str(engines.rung), ends)
    yield reported(f"{name}: largest error over the largest value", error, "on held-out windows")
    for what, row in (("the delivered engine", own), ("TF32", tf32)):
        times = "" if row is None or row.latency is None else _round_times(row.latency)
        yield reported(f"{name}: median latency of {what} (ms)", _milliseconds(row), times)
    ratio = _milliseconds(own) / _milliseconds(tf32)
    what = f"{name}: latency of the delivered engine / TF32"
    if tf32 is not None and tf32.verdict is not None and not tf32.verdict.passed:
        yield reported(what, ratio, "TF32 is out of tolerance, so it may not be delivered")
    else:
        yield at_most(what, ratio, 1.0)


def _milliseconds(row: EngineResult | None) -> float:
    return float("nan") if row is None or row.latency is None else row.latency.median_ms


def _round_times(latency: Latency) -> str:
    return "rounds: " + ", ".join(f"{m:.4g}" for m in latency.medians)


def _of_check(name: str, job: Job, checked: Checked) -> list[Figure]:
    note = f"{checked.samples} held-out samples, by a client of its own"
    what = f"{name}: largest error of the delivered engine"
    agreement = f"{name}: same top-1 as FP32"
    if job.tolerance is None:
        return [reported(what, checked.error, note), reported(agreement, checked.same_top1, note)]
    return [
        at_most(what, checked.error, job.tolerance, note),
        equal(agreement, checked.same_top1, 1.0, note),
    ]


def _outcomes(engines: Engines) -> str:
    return ", ".join(f"{b.purpose}: {b.status} {b.seconds:.0f} s" for b in engines.builds)


def first_build(engines: Engines) -> float:
    """Return the number of the first build whose engine passed; inf without one."""
    passed = (r.build.number for r in engines.results if r.verdict and r.verdict.passed)
    return min(passed, default=float("inf"))


def proving_build(engines: Engines) -> float:
    """Return the number of the first low build whose engine passed; inf without one."""
    return min((r.build for r in engines.rounds if r.passed), default=float("inf"))


def seconds_until(build: float, what: str, log: str) -> float:
    """Return the seconds from the start of the command until something was reported about a build.

    Args:
        build: Its number.
        what: How the line goes on: "keeps" once it was measured, "is proven" once it can be used.
        log: Output of the command, each line after the seconds since its start; NaN is returned
            if it has no such line.
    """
    found = re.search(rf"^ *([\d.]+) +build {build} {what} ", log, re.MULTILINE)
    return float(found[1]) if found else float("nan")


def unproven(engines: Engines) -> list[str]:
    """Return kept nodes that no engine was seen to need.

    A node is needed if an engine failed that kept all other nodes of the plan. If wider
    islands were kept for speed, the plan is the smallest part of them that always passed.
    """
    passed = [frozenset(r.keep) for r in engines.rounds if r.passed]
    failed = [frozenset(r.keep) for r in engines.rounds if not r.passed]
    whole = frozenset(engines.keep)
    steady = [keep for keep in passed if keep <= whole and keep not in failed]
    plan = min([whole, *steady], key=len)
    return sorted(n for n in plan if not any(plan - {n} <= f and n not in f for f in failed))


def predictions(name: str, engines: Engines) -> list[Figure]:
    """Return predicted and measured error of every round, relative to the tolerance."""
    found = []
    for step in engines.rounds:
        what = f"{name}: build {step.build}, {len(step.keep)} kept: measured error / tolerance"
        predicted = [] if step.predicted is None else [f"predicted {step.predicted:.3g}"]
        measured = "no engine" if step.measured is None else step.measured
        found.append(reported(what, measured, "; ".join([step.step, *predicted])))
    return found


def rounds(engines: Engines) -> list[dict[str, Any]]:
    """Return every round for JSON; errors are relative to the tolerance, as text."""
    return [
        {
            "build": r.build,
            "step": r.step,
            "kept": len(r.keep),
            "predicted": _text(r.predicted),
            "measured": _text(r.measured),
            "passed": r.passed,
            "median_ms": _text(r.median_ms),
        }
        for r in engines.rounds
    ]


def _text(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def results_by_kind(engines: Engines) -> dict[str, EngineResult]:
    """Return the table's engines by kind: fp32, tf32, fp16 and mixed, if available."""
    found: dict[str, EngineResult] = {}
    for result in engines.results:
        config = result.build.config
        if config.typing == "weak" and config.low is None:
            kind = "tf32" if config.tf32 else "fp32"
        else:
            kind = "mixed" if config.keep else "fp16"
        found.setdefault(kind, result)
    if not engines.keep and not engines.full and "fp16" in found:
        found["mixed"] = found["fp16"]
    return found


def latencies(name: str, engines: Engines) -> list[Figure]:
    """Return the ratios of median latencies that are judged, and the medians."""
    results = results_by_kind(engines)
    medians = {k: r.latency.median_ms for k, r in results.items() if r.latency is not None}
    found = [
        reported(f"{name}: median latency of {kind} (ms)", median, _shapes(results[kind]))
        for kind, median in medians.items()
    ]
    for other, limit in (("fp16", OF_FP16), ("tf32", OF_TF32)):
        ratio = medians.get("mixed", float("nan")) / medians.get(other, float("nan"))
        found.append(at_most(f"{name}: latency of mixed / {other}", ratio, limit))
    return found


def _shapes(result: EngineResult) -> str:
    assert result.latency is not None
    shapes = "; ".join(f"{n} {'×'.join(map(str, s))}" for n, s in result.latency.shapes.items())
    return f"{shapes}, p99 {result.latency.p99_ms:.3g} ms"


def table(engines: Engines) -> dict[str, dict[str, Any]]:
    """Return errors, speed, precisions and first layers of every engine of the final table."""
    return {kind: _row(result) for kind, result in results_by_kind(engines).items()}


def _row(result: EngineResult) -> dict[str, Any]:
    row: dict[str, Any] = {"failure": result.failure, "build_seconds": result.build.seconds}
    if result.build.engine is not None:
        row["engine_bytes"] = result.build.engine.bytes
    if result.verdict is not None:
        row["passed"] = result.verdict.passed
        row["errors"] = {
            name: {
                "max": _text(o.max_abs),
                "mean": _text(o.mean_abs),
                "snr_db": _text(o.snr_db),
                "nonfinite": o.nonfinite,
            }
            for name, o in result.verdict.outputs.items()
        }
    if result.latency is not None:
        row["latency"] = result.latency.to_dict()
    if result.proof is not None:
        row["node_share"] = result.proof.node_share
        row["findings"], row["remarks"] = result.proof.findings, result.proof.remarks
        row["layers"] = [
            [layer.precision, layer.type, layer.name[:120], layer.tactic]
            for layer in result.proof.layers[:_LAYERS]
        ]
    return row


def comparison(
    name: str, engines: Engines, log: str, other: Bisected, judged: Checked | None
) -> Iterable[Figure]:
    """Return how long Polygraphy took for the same model, and how good its answer is.

    Args:
        name: Of the job.
        engines: What halfwise's run found.
        log: See `seconds_until`.
        other: Polygraphy's run.
        judged: Its engine, judged on held-out samples.
    """
    if other.ended == "failed":
        yield equal(f"{name}: Polygraphy", "failed", "ran")
        return
    note = f"{other.ended}, first {other.layers} layers, builds tried {list(other.tried)}"
    yield reported(f"{name}: Polygraphy, seconds", other.seconds, note)
    yield reported(f"{name}: Polygraphy, builds", other.builds, f"{other.failed_builds} failed")
    if judged is not None:
        note = f"its last good engine; same top-1 {judged.same_top1:.3g}"
        yield reported(f"{name}: Polygraphy, largest error", judged.error, note)
    low = seconds_until(proving_build(engines), "keeps", log)
    what = f"{name}: Polygraphy's time / time until the first low engine that passed"
    yield reported(what, other.seconds / low, f"{low:.1f} s since the start")
    first = first_build(engines)
    seconds = seconds_until(first, "is proven", log)
    purpose = next((b.purpose for b in engines.builds if b.number == first), "none")
    what = f"{name}: Polygraphy's time / time until the first proven engine"
    note = f"{seconds:.1f} s since the start, {purpose}"
    yield at_least(what, other.seconds / seconds, FASTER, note)
