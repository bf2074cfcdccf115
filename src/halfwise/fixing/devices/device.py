"""The part of a run that belongs to one of several kinds of device."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from halfwise.fixing.devices.builds import DeviceBuilds
from halfwise.fixing.devices.joint import DeviceAttempts
from halfwise.fixing.engines.attempts import Attempts, Candidate, Chosen
from halfwise.fixing.engines.conclude import Ended, Proven, rounds
from halfwise.fixing.engines.measure import Measure, with_shapes
from halfwise.fixing.engines.prediction import Prediction
from halfwise.fixing.engines.proposals import Proposals
from halfwise.fixing.engines.regime import FP32, TF32, has_tf32
from halfwise.fixing.engines.run import EngineRun
from halfwise.fixing.engines.search import EngineSearch
from halfwise.fixing.engines.table import Offer, Table
from halfwise.fixing.engines.terms import WITH_TF32
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.heldout import HeldOut
from halfwise.records import BuildOutcome, Engines
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.failures import ENGINE_FAULTS


class DeviceRun(EngineRun):
    """The part of a run that belongs to one device.

    Attributes:
        prediction: Predictions for its engines, once the search has started.
    """

    prediction: Prediction

    def begin_fp32(self) -> None:
        """Start building the FP32 engine."""
        self._begin(FP32)

    @property
    def begun(self) -> "Future[BuildOutcome] | None":
        """The last build that was started; None before the first."""
        assert isinstance(self.builds, DeviceBuilds)
        return self.builds.last

    def begin_tf32(self) -> None:
        """Start building the FP32 engine with TF32, if the GPU has it."""
        if has_tf32(self.worker.info):
            self._begin(TF32)

    def _begin(self, name: str) -> None:
        assert isinstance(self.builds, DeviceBuilds)
        self.builds.begin(lambda: self.builds.build(self.fp32, name, tf32=name == TF32))

    def settle(self) -> None:
        """End builds that nobody requested."""
        assert isinstance(self.builds, DeviceBuilds)
        self.builds.settle()

    def search(
        self, fixed: Fixed, heldout: HeldOut
    ) -> tuple[EngineSearch, DeviceAttempts, Proposals]:
        """Return what a search on this device alone would use."""
        always = self.engine_settings.tf32
        weak = self.builds.typing == "weak"
        self.prediction = Prediction(fixed.planner, self._inspected, always_tf32=always, weak=weak)
        search, _ = self._search(fixed, heldout, self.prediction)
        attempts = DeviceAttempts(fixed.planner, self)
        return search, attempts, replace(search.proposals, attempts=attempts)

    def with_tf32(self, attempts: Attempts) -> Candidate | None:
        """Return the FP32 engine with TF32, measured; None on a GPU without it."""
        if (build := self._tf32) is None:
            return None
        band = self.prediction.tf32()
        tf32 = Candidate(frozenset(), TF32, build, terms=WITH_TF32, band=band)
        return attempts.measured(tf32, TF32)

    def exact(self, attempts: DeviceAttempts, table: Table) -> Offer:
        """Judge the FP32 engine like all others."""
        return self._exact(attempts, table)

    def offers(
        self, table: Table, full: Sequence[Offer], search: EngineSearch, chosen: Chosen
    ) -> tuple[Offer, ...]:
        """Return the rows of the table; for all devices if the arguments are."""
        return self._offers(table, full, search, chosen)

    def joins(self, best: Candidate, heldout: HeldOut) -> bool:
        """Return whether held-out samples that fail on this device joined the search."""
        return self._joins(best, heldout)

    def concluded(self, ended: Ended, fixed: Fixed, joined: tuple[str, ...]) -> Proven:
        """Return the result of this device alone."""
        self.notes += ended.chosen.notes
        return self._concluded(ended, fixed=fixed, joined=joined)

    def elsewhere(self, worker: Worker, engines: Engines, heldout: HeldOut) -> Engines:
        """Return the record of a worker of the same kind, which runs the engine delivered here.

        Args:
            worker: The worker.
            engines: This device's record; its engine is on this machine.
            heldout: The samples that judge it.
        """
        engine, row = engines.delivered, engines.row
        found = Engines(
            worker=worker.info,
            typing=engines.typing,
            profiles=engines.profiles,
            results=(),
            rounds=(),
            builds=(),
            keep=engines.keep,
            prefer=engines.prefer,
            rung=engines.rung,
            shares=engines.worker.name,
        )
        if engine is None or row is None:
            return found.model_copy(update={"verdict": engines.verdict})
        measure = Measure(worker, self.case, self.settings, self.engine_settings)
        try:
            judged = measure.judge(
                engine, heldout.samples, heldout.references, unseen=heldout.unseen
            ).verdict
            at = measure.at_shapes(engine, heldout.samples)
            latency = measure.latency(engine, thorough=True)
        except ENGINE_FAULTS as failed:
            return found.model_copy(update={"lost": failed.message})
        verdict = with_shapes(judged, at)
        seen = {"verdict": judged, "shapes": at, "latency": latency, "proof": None, "ratio": None}
        row = row.model_copy(update=seen)
        return found.model_copy(update={"results": (row,), "delivered": engine, "verdict": verdict})

    def lost(self, search: EngineSearch, fixed: Fixed, why: str) -> Engines:
        """Return the record of this device, lost before its engine was judged."""
        found = {
            "rounds": rounds(search, fixed.planner),
            "emulated": fixed.verdict,
            "prefer": self.engine_settings.prefer,
            "lost": why,
        }
        return self._record((self._fp32,)).model_copy(update=found)

    @property
    def right(self) -> bool:
        """Whether its FP32 engine passes."""
        return self._fp32.verdict is not None and self._fp32.verdict.passed
