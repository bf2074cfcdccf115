"""One worker of a run, with its FP32 engines, and several of them side by side."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from signal import SIGTERM
from typing import TypeVar

from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.builds import judging
from halfwise.fixing.engines.measure import again_if_lost
from halfwise.fixing.engines.plan import FP32, TF32
from halfwise.fixing.engines.workbench import Workbench, has_tf32
from halfwise.interruption import interruption
from halfwise.records import FP32_SNR_DB, BuildOutcome, Criterion, EngineResult
from halfwise.reporting.rungs import own_criterion
from halfwise.tensorrt.failures import ENGINE_FAULTS
from halfwise.tensorrt.refusals import build_failed

_Found = TypeVar("_Found")
_LOOK_AGAIN = 0.2
"""Seconds after which a worker that restarted while being ended is ended again."""


class Device:
    """A worker with its FP32 engines.

    Attributes:
        bench: Builds engines and runs them.
        fp32: The FP32 engine without TF32, judged; None before `reference`, and if Ctrl-C came.
        tf32: The build of the FP32 engine with TF32; None without one.
    """

    def __init__(self, bench: Workbench) -> None:
        """Take what builds engines and runs them."""
        self.bench, self._interruption = bench, interruption()
        self.fp32: EngineResult | None = None
        self.tf32: BuildOutcome | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether its FP32 engine is out of tolerance."""
        verdict = None if self.fp32 is None else self.fp32.verdict
        return verdict is not None and not verdict.passed

    def reference(self) -> None:
        """Build and judge the FP32 engine without TF32; if it is right, Ctrl-C keeps it.

        Its criterion is a signal-to-noise ratio of 60 dB, or the user's metric.

        Raises:
            BuildFailed: TensorRT cannot build it, and therefore no engine of this model.
            RunFailed: it does not run.
            CaseError: samples, including the calibration, do not fit any engine.
        """
        bench, measure, case = self.bench, self.bench.measure, self.bench.case
        with judging():
            build = bench.builds.build(bench.fp32, FP32)
            if build.status == "interrupted":
                return
            if build.engine is None:
                raise build_failed(build, "no FP32 engine of this model")
            engine = build.engine
            again_if_lost(lambda: measure.check_inputs(engine, case.calibration))
            with suppress(*ENGINE_FAULTS):  # what is delivered is fetched once more
                bench.fetched.keep(FP32, engine)
            samples = case.heldout or case.calibration
            own = Criterion(snr_db=FP32_SNR_DB, agreement=case.criterion.agreement)
            criterion = own if case.metric is None else None
            judged = samples, measure.references(samples), criterion
            verdict = again_if_lost(lambda: measure.judge(engine, *judged)).verdict
            self.fp32 = EngineResult(name=FP32, build=build, verdict=verdict)
            bench.notes.append(own_criterion(verdict))
            self._interruption.ready |= verdict.passed

    def with_tf32(self) -> None:
        """Build the FP32 engine with TF32.

        It takes a fraction of the build time of a low engine, for which kernels of both types are
        timed, and needs no plan: so it is built while the emulation searches. On a GPU without TF32
        it would be the FP32 engine again, so it is not built there.
        """
        if has_tf32(self.bench.worker.info) and not self._interruption.asked:
            self.tf32 = self.bench.builds.build(self.bench.fp32, TF32, tf32=True)


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
                if isinstance(error, HalfwiseError):
                    error.message = f"{name}: {error.message}"
                if error is not None:
                    raise error
            return {name: each.result() for name, each in running.items()}
        finally:
            while left := {name: each for name, each in running.items() if not each.done()}:
                for number in (devices[name].bench.worker.process_id for name in left):
                    if number is not None:  # to a build it looks like a lost connection
                        with suppress(ProcessLookupError):
                            os.killpg(number, SIGTERM)
                wait(left.values(), _LOOK_AGAIN)
