"""More than a hundred runs with engines, each with a planted fault.

TensorRT and libcuda are those of `tests/fake_tensorrt`; the command, worker and client are real.
Each fault must be reported for what it is: builds by status and signal, the cause as engines show
it, and no faulty kernel put down to precision. If the FP32 engine is right, an engine must be
delivered, and it must be the file that was judged.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import halfwise
from bench.figures import Figure, equal, reported
from bench.runs import Workbench
from halfwise.errors import HalfwiseError
from halfwise.fixing.engines import measure as timing
from halfwise.records import FULL_RUNGS, CauseKind, EngineRung, Engines, Run, RungEnd
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.start import build_cuda_library, once_only, worker_command
from tests.models import Factory

KEPT = ("square", "variance", "eps", "root")
"""What the model's LayerNorm needs in FP32."""
TIMEOUT = 12
"""Seconds for what hangs: a fresh process imports the fake in two on an idle machine."""
JUDGED = 2 + 6 + 2
"""Runs until the FP32 engine is judged: held-out samples by 60 dB, the others, held-out samples by
the criterion."""
AT_ONCE = 2
"""Parallel runs; each has its own worker, folder and GPU lock."""
STATUS = {
    "segv": ("crashed", "SIGSEGV"),
    "kill": ("crashed", "SIGKILL"),
    "abort": ("crashed", "SIGABRT"),
    "exit": ("crashed", None),
    "hang": ("timeout", None),
    "disconnect": ("lost", None),
    "memory": ("failed", None),
    "raise": ("failed", None),
}
LOW, MIXED = {"low": "fp16"}, {"low": "fp16", "kept": KEPT}
TF32, EXACT = {"low": None, "tf32": True}, {"low": None, "tf32": False}
_SLOW_FP32 = {"fp32": 2.0, "tf32": 1.5, "low": 1.0, "border": 0.0}


@dataclass(frozen=True)
class Trial:
    """One fault, and what must be reported of it.

    Attributes:
        name: What goes wrong, where.
        knobs: Settings of the stand-in.
        rung: What must be delivered: a rung, None for nothing, "any" for whatever passes.
        causes: Kinds of causes, or how the low rung ended, that must be reported.
        kernel: Whether a kernel really is at fault.
        status: Status and signal of builds that must be on record; None for none.
        error: Exit code if the command ends early; None if it reaches a verdict.
        max_builds: Builds that the search may use.
        model: The model.
        gone: Whether the worker stays lost once it is lost.
    """

    name: str
    knobs: Mapping[str, Any] = field(default_factory=dict)
    rung: EngineRung | str | None = "any"
    causes: frozenset[CauseKind | RungEnd] = frozenset()
    kernel: bool = False
    status: tuple[str, str | None] | None = None
    error: int | None = None
    max_builds: int = 2
    model: Factory = models.layer_norm
    gone: bool = False


def _faults(*faults: Fault, **more: Any) -> dict[str, Any]:
    return {"faults": list(faults), **more}


def _builds() -> Iterator[Trial]:
    """Yield faults of builds, of one configuration always or of a single build."""
    for do, status in STATUS.items():
        for name, when in (("TF32", TF32), ("mixed", MIXED)):
            knobs = _faults(Fault("build", do, when=when))
            yield Trial(f"{do} in every {name} build", knobs, status=status)
        knobs = _faults(Fault("build", do, when=LOW), pace=_SLOW_FP32)
        name = f"{do} in every FP16 build"
        none = frozenset[CauseKind | RungEnd]({"lost" if status[0] == "lost" else "unbuildable"})
        yield Trial(name, knobs, "fp32", none, status=status)
        for number in (3, 4) if do != "hang" else ():
            # Build 3 is of the plan of the emulation, which is not tried again where it died.
            rung = "fp16" if number == 4 or status[0] == "lost" else "any"
            fault = Fault("build", do, on=(number,))
            yield Trial(f"{do} in build {number}", _faults(fault), rung, status=status)
        fault = Fault("save", do, when=LOW)
        if do in ("segv", "memory", "disconnect"):
            name = f"{do} when FP16 engines are saved"
            yield Trial(name, _faults(fault), "fp32", none, status=status)
    for do in ("segv", "kill", "abort", "memory"):
        fault = Fault("build", do, when=EXACT)
        yield Trial(f"{do} in every FP32 build", _faults(fault), None, error=5)
    once = Fault("build", "disconnect", on=(1,))
    yield Trial("disconnect in the first build", _faults(once), "fp16", status=("lost", None))
    for fails in ("some", "any"):
        fault = Fault("build", "foreign", nodes=(*KEPT, "divide"), fails=fails)
        status = ("failed", None)
        yield Trial(f"no kernel where {fails} of a block is kept", _faults(fault), status=status)
    for fault in (Fault("parse", "segv", on=(3,)), Fault("parse", "abort", on=(4,))):
        yield Trial(f"{fault.do} in parse {fault.on[0]}", _faults(fault), status=STATUS[fault.do])


def _runs() -> Iterator[Trial]:
    """Yield faults of engines that were built."""
    for do in ("segv", "abort", "kill", "exit", "memory", "address"):
        fault = Fault("run", do, when=LOW)
        yield Trial(f"{do} in FP16 runs", _faults(fault), "fp32", frozenset({"not-run"}))
        fault = Fault("run", do, when=TF32)
        yield Trial(f"{do} in TF32 runs", _faults(fault), "fp16")
    for do in ("segv", "device", "disconnect"):
        fault = Fault("deserialise", do, when=LOW)
        name = f"{do} when FP16 engines are read"
        kind: RungEnd = "lost" if do == "disconnect" else "not-run"
        yield Trial(name, _faults(fault), "fp32", frozenset({kind}))
        fault = Fault("deserialise", do, when=TF32)
        yield Trial(f"{do} when TF32 engines are read", _faults(fault), "fp16")
    for place in ("run", "deserialise"):
        for number in (1, 4):
            fault = Fault(place, "disconnect", on=(number,))
            yield Trial(f"disconnect at {place} {number}", _faults(fault), "fp16")


def _engines() -> Iterator[Trial]:
    """Yield engines that compute in unrequested types, or wrongly."""
    ignored = frozenset[CauseKind | RungEnd]({"ignored"})
    for nodes in (*((n,) for n in KEPT), KEPT):
        knobs = _faults(ignored=nodes)
        yield Trial(f"constraints on {', '.join(nodes)} ignored", knobs, "fp32", ignored)
    for node in ("gamma", "divide", "mean"):
        for factor in (1.5, 1.1, 0.0):
            knobs = _faults(lossy={node: factor})
            name = f"FP16 kernel of {node} × {factor:g}"
            # No engine that is right without that kernel alone is built then.
            unknown = frozenset[CauseKind | RungEnd]({"unknown"})
            few = f"{name}, no builds left"
            yield Trial(few, knobs, "fp32", unknown, kernel=True, max_builds=1)
            yield Trial(name, knobs, "any", kernel=True, max_builds=6)
    for node in (*KEPT, "gamma"):
        knobs = _faults(broken={node: 1.5})
        yield Trial(f"kernel of {node} wrong in all precisions", knobs, None)
    for seed in (1, 4, 7):
        yield Trial(f"FP32 by chance, {seed}", {"vary": (0.5, seed)})


def _combined() -> Iterator[Trial]:
    """Yield faults at the same time."""
    crash = Fault("build", "segv", when=TF32)
    none = frozenset[CauseKind | RungEnd]({"unbuildable"})
    lost = Fault("build", "disconnect", on=(3,))
    knobs = _faults(crash, Fault("build", "memory", when=LOW))
    yield Trial("no TF32 and no FP16 engine", knobs, "fp32", none, status=STATUS["segv"])
    knobs = _faults(lost, ignored=KEPT)
    ignored = frozenset[CauseKind | RungEnd]({"ignored"})
    yield Trial("a lost build, constraints ignored", knobs, "fp32", ignored, status=("lost", None))
    knobs = _faults(lost, lossy={"gamma": 1.5})
    yield Trial("a lost build, a wrong kernel", knobs, kernel=True, status=("lost", None))
    knobs = _faults(Fault("build", "segv", when=MIXED), ignored=KEPT)
    yield Trial("mixed crash, constraints ignored", knobs, status=STATUS["segv"])
    knobs = _faults(Fault("run", "segv", when=TF32), Fault("build", "kill", when=LOW))
    yield Trial("TF32 crashes, FP16 is killed", knobs, "fp32", none, status=STATUS["kill"])
    pace = {"fp32": 2.0, "tf32": 0.5, "low": 1.0}
    knobs = {"ignored": sorted(models.conv_chain().kept), "pace": pace}
    yield Trial("ignored, TF32 fast", knobs, "tf32", ignored, model=models.conv_chain)


def _left() -> Iterator[Trial]:
    """Yield faults that leave a right FP32 engine and little else."""
    lost = frozenset[CauseKind | RungEnd]({"lost"})
    for place, number in (("again", 1), ("run", JUDGED + 1), ("build", 2)):
        knobs = _faults(Fault(place, "disconnect", on=(number,)))
        yield Trial(f"gone for good at {place} {number}", knobs, "fp32", lost, gone=True)
    for place, error in (("run", 6), ("deserialise", 6), ("build", 5)):
        knobs = _faults(Fault(place, "disconnect", on=(1,)))
        yield Trial(f"gone for good at {place} 1", knobs, None, error=error, gone=True)
    low = [Fault("build", "memory", when=when) for when in (TF32, LOW)]
    for do in ("segv", "abort", "memory", "address", "disconnect"):
        fault, none = (
            Fault("again", do, when=EXACT),
            frozenset[CauseKind | RungEnd]({"unbuildable"}),
        )
        yield Trial(f"{do} when FP32 is timed", _faults(fault), "fp16")
        yield Trial(f"{do} when FP32, alone, is timed", _faults(fault, *low), "fp32", none)


def trials() -> list[Trial]:
    """Return all faults."""
    return [*_left(), *_builds(), *_runs(), *_engines(), *_combined()]


@dataclass(frozen=True)
class Ended:
    """How a run ended: with a record, or with an exit code of its own."""

    run: Run | None
    folder: Path
    error: int | None = None


def fixed(trial: Trial, folder: Path, library: Path) -> Ended:
    """Fix the model of a trial with engines of the stand-in; `folder` is created."""
    folder.mkdir()
    ill = trial.model()
    command = worker_command(folder, library, **trial.knobs)
    if trial.gone:
        command = once_only(command, folder / "started")
    hangs = any(f.do == "hang" for f in trial.knobs.get("faults", ()))
    try:
        found = halfwise.fix(
            ill.proto,
            dict(ill.inputs),
            out=folder / "run",
            target="tensorrt",
            trt_command=shlex.join(command),
            builds=1,
            max_builds=trial.max_builds,
            no_repair=True,  # faults are recognised by what is kept
            build_timeout=TIMEOUT if hangs else 300,
        )
    except HalfwiseError as error:
        return Ended(None, folder, error.exit_code)
    return Ended(found.run, folder / "run")


def wrong(trial: Trial, ended: Ended) -> list[str]:
    """Return what was reported wrongly; nothing if all was right."""
    if ended.run is None or trial.error is not None:
        return [] if ended.error == trial.error else [f"exit code {ended.error}"]
    engines = ended.run.engines
    assert engines is not None
    return [*_delivery(trial, ended, engines), *_told(trial, ended.run, engines)]


def _delivery(trial: Trial, ended: Ended, engines: Engines) -> Iterator[str]:
    assert ended.run is not None
    if (engines.rung is None) != (trial.rung is None) or trial.rung not in ("any", engines.rung):
        yield f"rung {engines.rung}, not {trial.rung}"
    if ended.run.verdict.passed != (trial.rung is not None):
        yield f"passed: {ended.run.verdict.passed}"
    if engines.delivered is None:
        return
    rows = [r for r in engines.results if r.build.engine is not None]
    own = [r for r in rows if r.build.engine and r.build.engine.sha256 == engines.delivered.sha256]
    data = (ended.folder / engines.delivered.path).read_bytes()
    if hashlib.sha256(data).hexdigest() != engines.delivered.sha256:
        yield "another file than the one that was judged"
    if not any(r.verdict is not None and r.verdict.passed for r in own):
        yield "what is delivered did not pass"


def _told(trial: Trial, run: Run, engines: Engines) -> Iterator[str]:
    kinds = {cause.kind for cause in engines.causes} | {rung.end for rung in engines.rungs[-1:]}
    if missing := trial.causes - kinds:
        yield f"not told: {', '.join(sorted(missing))}"
    if "precision" in kinds and trial.kernel:
        yield "a kernel is put down to precision"
    if engines.rung in FULL_RUNGS and engines.rungs[-1].end == "delivered":
        yield "an FP16 engine is said to be delivered"
    if trial.status is not None:
        seen = {(b.status, b.signal) for b in engines.builds}
        if trial.status not in seen:
            yield f"builds {sorted(map(str, seen))}, none {trial.status}"
    if trial.rung is None and not any(step.kind == "diagnose" for step in run.next_step):
        yield "diagnose is not named"


@contextlib.contextmanager
def quick_times() -> Iterator[None]:
    """Time engines as briefly as possible: the stand-in's times are made up, not measured."""
    names = ("QUICK_SECONDS", "ROUND_SECONDS", "WARM_SECONDS")
    brief = dict.fromkeys(names, 1e-3) | {"TIMED_RUNS": 10}
    usual = {name: getattr(timing, name) for name in brief}
    for name, value in brief.items():
        setattr(timing, name, value)
    try:
        yield
    finally:
        for name, value in usual.items():
            setattr(timing, name, value)


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Run all faults; nothing is skipped if there is a C compiler."""
    folder = bench.folder / "engine_faults"
    folder.mkdir()
    try:
        library = build_cuda_library(folder)
    except RuntimeError as error:
        return [], str(error)
    planned, started = trials(), time.monotonic()

    def tried(number: int) -> tuple[Ended, list[str]]:
        trial = planned[number]
        ended = fixed(trial, folder / str(number), library)
        problems = wrong(trial, ended)
        print(f"{number + 1} {trial.name}: {problems or 'right'}", file=sys.stderr, flush=True)
        return ended, problems

    with quick_times(), ThreadPoolExecutor(AT_ONCE) as pool:
        seen = list(pool.map(tried, range(len(planned))))
    count = len(planned)
    found = {t.name: problems for t, (_, problems) in zip(planned, seen, strict=True) if problems}
    right = [t for t in planned if t.rung is not None]
    delivered = [
        e.run.engines.delivered
        for t, (e, _) in zip(planned, seen, strict=True)
        if t.rung is not None and e.run is not None and e.run.engines is not None
    ]
    bench.details["engine_faults"] = {"faults": [t.name for t in planned], "wrong": found}
    return [
        equal("faults named correctly", count - len(found), count),
        equal(
            "engines delivered where FP32 is right",
            sum(engine is not None for engine in delivered),
            len(right),
        ),
        reported("seconds for each fault", (time.monotonic() - started) / count),
    ], None
