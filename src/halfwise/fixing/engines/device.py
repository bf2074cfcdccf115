"""One worker of a run, with its FP32 engines, and several of them side by side."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from signal import SIGTERM
from typing import Any, TypeVar

from halfwise.case import Samples
from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.builds import judging
from halfwise.fixing.engines.measure import again_if_lost, is_interrupted, is_lost
from halfwise.fixing.engines.plan import TF32_ENGINE
from halfwise.fixing.engines.workbench import Workbench
from halfwise.fixing.plan.rules import custom_roles
from halfwise.graph.casts import low_type
from halfwise.graph.roles import roles_of
from halfwise.interruption import interruption
from halfwise.metrics import Outputs
from halfwise.records import (
    FP32_ENGINE,
    FP32_SNR_DB,
    FULL_RUNGS,
    BuildOutcome,
    Criterion,
    EngineResult,
    EngineRung,
    PrecisionProof,
    ProvenEngine,
    ShapeVerdict,
    Verdict,
)
from halfwise.reporting.rungs import own_criterion, proven_line
from halfwise.tensorrt.constrain import same_outputs, shown
from halfwise.tensorrt.failures import ENGINE_FAULTS, EngineFailed
from halfwise.tensorrt.refusals import build_failed
from halfwise.tensorrt.versions import has_tf32

_Found = TypeVar("_Found")
_LOOK_AGAIN = 0.2
"""Seconds after which a worker that restarted while being ended is ended again."""


@dataclass(frozen=True)
class Full:
    """An FP32 engine that is judged.

    Attributes:
        row: Its row of the final table.
        calibration: The calibration samples, and its outputs for them.
    """

    row: EngineResult
    calibration: tuple[Samples, Sequence[Outputs]]


class Device:
    """A worker with its FP32 engines.

    Attributes:
        bench: Builds engines and runs them.
        fp32: The FP32 engine without TF32, judged by 60 dB; None before `reference`, and if Ctrl-C
            came.
        full: The FP32 engines without and with TF32, judged like all others.
        proven: The first of them that passed on held-out samples; None if none did.
    """

    def __init__(self, bench: Workbench, started: float) -> None:
        """Take what builds engines, and `time.monotonic()` at the start of the command."""
        self.bench, self._started, self._interruption = bench, started, interruption()
        self.fp32: EngineResult | None = None
        self.full: dict[EngineRung, Full] = {}
        self.proven: ProvenEngine | None = None

    def reference(self) -> None:
        """Build and judge the FP32 engine without TF32; if it is right, Ctrl-C keeps it.

        Its first criterion is a signal-to-noise ratio of 60 dB, or the user's metric.

        Raises:
            BuildFailed: TensorRT cannot build it, and therefore no engine of this model.
            RunFailed: it does not run.
            CaseError: samples, including the calibration, do not fit any engine.
        """
        bench, measure, case = self.bench, self.bench.measure, self.bench.case
        with judging():
            build = bench.builds.build(bench.fp32, FP32_ENGINE)
            if build.status == "interrupted":
                return
            if build.engine is None:
                raise build_failed(build, "no FP32 engine of this model")
            engine = build.engine
            again_if_lost(lambda: measure.check_inputs(engine, case.calibration))
            samples = case.heldout or case.calibration
            own = Criterion(snr_db=FP32_SNR_DB, agreement=case.criterion.agreement)
            criterion = own if case.metric is None else None
            judged = samples, measure.references(samples), criterion
            verdict = again_if_lost(lambda: measure.judge(engine, *judged)).verdict
            self.fp32 = EngineResult(name=FP32_ENGINE, build=build, verdict=verdict)
            bench.notes.append(own_criterion(verdict))
            if verdict.passed:
                self._interruption.offer()
                self._judge("fp32", build)

    def with_tf32(self) -> None:
        """Build and judge the FP32 engine with TF32.

        It takes a fraction of the build time of a low engine, for which kernels of both types are
        timed, and needs no plan: so it is built while the emulation searches. On a GPU without TF32
        it would be the FP32 engine again, so it is not built there.
        """
        if has_tf32(self.bench.worker.info) and not self._interruption.asked:
            build = self.bench.builds.build(self.bench.fp32, TF32_ENGINE, tf32=True)
            if build.status != "interrupted":
                self._judge("tf32", build)

    def judge_again(self, calibration: Samples, heldout: Samples) -> None:
        """Judge the FP32 engines on other samples; of one that is lost, what was known stands."""
        for rung, full in [*self.full.items()]:
            found = self._judged(full.row, calibration, heldout)
            self.full[rung] = full if found.row.lost else found

    def _judge(self, rung: EngineRung, build: BuildOutcome) -> None:
        case, name = self.bench.case, FP32_ENGINE if rung == "fp32" else TF32_ENGINE
        row = EngineResult(name=name, build=build, rung=rung)
        found = self.full[rung] = self._judged(row, case.calibration, case.heldout)
        if found.row.lost and rung == "fp32":
            raise EngineFailed(found.row.failure, status="lost")
        verdict = found.row.verdict
        if verdict is None or not verdict.passed or self.proven is not None:
            return
        latency, seconds = found.row.latency, time.monotonic() - self._started
        median_ms = None if latency is None else latency.median_ms
        self.proven = ProvenEngine(build=build.number, seconds=seconds, median_ms=median_ms)
        self.bench.watcher.note(proven_line(self.proven, rung))

    def _judged(self, row: EngineResult, calibration: Samples, heldout: Samples) -> Full:
        bench, measure, engine = self.bench, self.bench.measure, row.build.engine
        if engine is None:
            return Full(row.model_copy(update={"failure": row.build.message}), (calibration, ()))
        network, settings = bench.case.network, bench.settings
        custom = custom_roles(network, settings.rules, settings.fmt)
        roles = roles_of(network, low_type(settings.fmt), custom=custom)
        full = {rung: v for rung, f in self.full.items() if (v := f.row.verdict) is not None}
        samples = heldout or calibration
        judged = samples, measure.references(samples), len(heldout) > 0
        prove = partial(measure.proof, row.build, network, roles, {})
        with suppress(*ENGINE_FAULTS):  # what is delivered is fetched once more
            bench.fetched.keep(row.rung, engine)
        row = row_of(bench, row, judged, full, prove)
        try:
            outputs = again_if_lost(lambda: measure.outputs(engine, calibration))
        except ENGINE_FAULTS as failed:
            known = {"failure": failed.message, "lost": is_lost(failed), "verdict": None}
            return Full(row.model_copy(update=known), (calibration, ()))
        return Full(row, (calibration, outputs))


def row_of(
    bench: Workbench,
    row: EngineResult,
    judged: tuple[Samples, Sequence[Outputs], bool],
    full: Mapping[EngineRung, Verdict],
    prove: Callable[..., PrecisionProof],
) -> EngineResult:
    """Return the row of an engine, timed, judged and inspected.

    One that cannot be timed has no result, but for the FP32 engine. After Ctrl-C an engine is
    neither timed nor inspected, since builds of others may have the GPU: its row keeps what time it
    has.

    Args:
        bench: What runs it.
        row: The row, without results.
        judged: The samples that judge, their references, and whether no search has seen them.
        full: Verdicts of the FP32 engines, for comparison.
        prove: Returns what it computes in; receives `as_fp32`.
    """
    measure, engine, (samples, references, unseen) = bench.measure, row.build.engine, judged
    assert engine is not None
    found: dict[str, Any] = {"untimed": "", "failure": "", "lost": False}

    def failing(failed: HalfwiseError) -> EngineResult:
        known = {"latency": None, "failure": failed.message, "lost": is_lost(failed)}
        return row.model_copy(update=known)

    try:
        found["latency"] = again_if_lost(lambda: measure.latency(engine, thorough=True))
    except ENGINE_FAULTS as failed:
        if is_lost(failed) or (row.rung != "fp32" and not is_interrupted(failed)):
            return failing(failed)
        if row.latency is None:
            found["untimed"] = failed.message

    def verdicts() -> tuple[Verdict, tuple[ShapeVerdict, ...]]:
        verdict = measure.judge(engine, samples, references, unseen=unseen).verdict
        # An engine that fails on the samples as they are is not delivered, whatever it does at
        # other shapes.
        return verdict, measure.at_shapes(engine, samples) if verdict.within else ()

    try:
        verdict, at = again_if_lost(verdicts)
    except ENGINE_FAULTS as failed:
        return failing(failed)
    shows = None if row.rung in FULL_RUNGS else shown(verdict, full)
    row = row.model_copy(update=found | {"verdict": verdict, "shapes": at, "shows": shows})
    as_fp32 = "fp32" in full and same_outputs(verdict, full["fp32"])
    try:
        return row.model_copy(update={"proof": again_if_lost(lambda: prove(as_fp32=as_fp32))})
    except ENGINE_FAULTS as failed:  # it still runs
        if not is_interrupted(failed):
            bench.notes.append(f"what {row.name} computes in is not known: {failed.message}")
        return row


def side_by_side(
    devices: Mapping[str, Device], calls: Mapping[str, Callable[[], _Found]]
) -> dict[str, _Found]:
    """Return what each device's call returns; of several, each runs in its own thread.

    If one raises, what the others' workers do is ended, and the error, which names its device, is
    raised.
    """
    if len(calls) == 1:
        return {name: call() for name, call in calls.items()}
    with ThreadPoolExecutor(len(calls) or 1, "device") as pool:
        # Ctrl-C ends builds in every thread.
        running = {name: pool.submit(copy_context().run, call) for name, call in calls.items()}
        try:
            wait(running.values(), return_when=FIRST_EXCEPTION)
            for name, each in running.items():
                error = each.exception() if each.done() else None
                if error is not None:
                    raise error.on(name) if isinstance(error, HalfwiseError) else error
            return {name: each.result() for name, each in running.items()}
        finally:
            while left := {name: each for name, each in running.items() if not each.done()}:
                for number in (devices[name].bench.worker.process_id for name in left):
                    if number is not None:  # to a build it looks like a lost connection
                        with suppress(ProcessLookupError):
                            os.killpg(number, SIGTERM)
                wait(left.values(), _LOOK_AGAIN)
