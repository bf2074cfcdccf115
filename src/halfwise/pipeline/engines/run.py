"""A run with engines: the FP32 engine first, then the plan that the emulation found."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from halfwise.backends.tensorrt.client import Worker
from halfwise.backends.tensorrt.failures import EngineFailed
from halfwise.backends.tensorrt.journal import Journal
from halfwise.case import Case, EngineSettings, Settings
from halfwise.formats import BF16, Format
from halfwise.graph.model import node_name
from halfwise.graph.roles import Role
from halfwise.pipeline.engines.builds import Builds
from halfwise.pipeline.engines.failed import build_failed
from halfwise.pipeline.engines.files import ModelFiles
from halfwise.pipeline.engines.measure import FP32_SNR_DB, Measure, with_shapes
from halfwise.pipeline.engines.moves import EngineMoves
from halfwise.pipeline.engines.regime import typing_regime
from halfwise.pipeline.engines.search import Budget, Candidate, Chosen, EngineSearch
from halfwise.pipeline.loop import Fixed
from halfwise.progress import Watcher
from halfwise.records import (
    BuildOutcome,
    Criterion,
    EngineResult,
    EngineRound,
    Engines,
    NodeName,
    Precision,
    TensorName,
    Verdict,
)
from halfwise.render.wording import count
from halfwise.stages.constrain import constraints
from halfwise.stages.contrast import ab_remark
from halfwise.stages.profiles import check_covered, profiles_from_data

Assignment = frozenset[NodeName]

NOT_PRECISION = "the FP32 engine without TF32 is wrong already, so this is not a precision problem"


@dataclass(frozen=True)
class Proven:
    """What a run with engines found.

    Attributes:
        engines: The record.
        verdict: On the held-out samples, in the delivered engine; in the FP32 engine where that is
            wrong; the emulation's, failed, where no engine passed.
        keep: Compute nodes of the delivered plan; None where none passed.
        minimal: Whether every smaller set that was left was tried in the engine.
    """

    engines: Engines
    verdict: Verdict
    keep: Assignment | None = None
    minimal: bool = False


class EngineRun:
    """Builds, judges and compares engines of one case on one worker."""

    def __init__(
        self,
        case: Case,
        settings: Settings,
        engine_settings: EngineSettings,
        worker: Worker,
        folder: Path,
        watcher: Watcher,
        journal: Journal | None = None,
    ) -> None:
        """Take the case and a folder for ONNX files, which has to last as long as the run.

        Raises:
            BackendMissing: the worker cannot build.
            UsageError: it lacks the typing regime.
            CaseError: samples are outside every profile.
        """
        worker.demand_usable()
        self.case, self.settings, self.engine_settings = case, settings, engine_settings
        self.worker, self.watcher = worker, watcher
        self.typing = typing_regime(worker, engine_settings)
        samples = case.calibration + case.heldout
        self.profiles = engine_settings.profiles or profiles_from_data(case.network, samples)
        check_covered(self.profiles, samples)
        self.files = ModelFiles(folder)
        self.builds = Builds(worker, engine_settings, self.typing, self.profiles, journal, watcher)
        self.measure = Measure(worker, case, settings, engine_settings, self.profiles)
        self.notes: list[str] = []

    def reference(self) -> EngineResult:
        """Build and judge the FP32 engine without TF32.

        Its criterion is a signal-to-noise ratio of 60 dB, or the user's metric.

        Raises:
            BuildFailed: TensorRT cannot build it: then it can build no engine of this model.
        """
        self.watcher.stage("FP32 engine")
        build = self.builds.build(self.files.fp32(self.case.network), "FP32, TF32 off")
        if build.engine is None:
            raise build_failed(build, "no FP32 engine of this model")
        samples = self.case.heldout or self.case.calibration
        self._fp32_samples, self._fp32_references = samples, self.measure.references(samples)
        criterion = None
        if self.case.metric is None:
            criterion = Criterion(snr_db=FP32_SNR_DB, agreement=self.case.criterion.agreement)
        judged = self.measure.judge(build.engine, samples, self._fp32_references, criterion)
        self._fp32 = self._timed(
            EngineResult(name="FP32, TF32 off", build=build, verdict=judged.verdict)
        )
        return self._fp32

    def refused(self) -> Proven:
        """Return the result where the FP32 engine is wrong."""
        verdict = self._fp32.verdict
        assert verdict is not None
        reasons = (NOT_PRECISION, *verdict.reasons)
        engines = self._record((self._fp32,), (), keep=())
        return Proven(engines, verdict.model_copy(update={"passed": False, "reasons": reasons}))

    def prove(self, fixed: Fixed) -> Proven:
        """Search from the plan of `fixed`, judge what is found on held-out samples, compare."""
        self.planner, self.roles = fixed.planner, fixed.planner.roles
        self.samples = fixed.planner.trials.samples
        self._plans: dict[int, Assignment] = {}
        self.watcher.stage("engines")
        budget = Budget(self.engine_settings.max_builds)
        search = EngineSearch(
            attempt=self._attempt,
            moves=EngineMoves(self.planner, self.measure, self._marked, budget, self.notes),
            order=[node_name(n) for n in self.planner.case.network.nodes()],
            budget=budget,
            builds=self.engine_settings.builds if self.typing == "weak" else 1,
        )
        chosen = search.run(fixed.found.kept)
        self.notes += chosen.notes
        rounds = self._rounds(search)
        if chosen.best is None:
            return self._nothing(fixed, chosen, rounds)
        self.watcher.stage("judge engines")
        mixed = self._judged("mixed", chosen.best, fixed)
        assert mixed.verdict is not None
        verdict = with_shapes(mixed.verdict, mixed.shapes)
        table = self._table(mixed, chosen, fixed)
        if verdict.passed:
            self._compare(table)
        keep = chosen.best.keep
        engines = self._record(
            table, rounds, keep=tuple(n for n in search.order if n in keep), fixed=fixed
        )
        engines = engines.model_copy(
            update={
                "delivered": chosen.best.build.engine if verdict.passed else None,
                "spread": chosen.excesses,
                "confirmed": sum(e <= 1 for e in chosen.excesses),
            }
        )
        return Proven(engines, verdict, keep, chosen.minimal)

    def _attempt(self, keep: Assignment, step: str) -> Candidate:
        known = [b for b, k in self._plans.items() if k == keep]
        build = self._build(keep, step, fresh=bool(known))
        self._plans[build.number] = keep
        if build.engine is None:
            return Candidate(keep, step, build)
        try:
            results = self.measure.outputs(build.engine, self.samples)
            excess = self.planner.trials.excess_of(results)
            latency = self.measure.latency(build.engine, self.samples)
        except EngineFailed as failed:
            self.watcher.note(f"the engine of build {build.number} does not run: {failed.message}")
            return Candidate(keep, step, build)
        self.watcher.note(
            f"build {build.number} keeps {len(keep)}: error {excess:.3g} of what is allowed, "
            f"{latency.median_ms:.3g} ms"
        )
        return Candidate(keep, step, build, excess, latency)

    def _marked(self, keep: Assignment, names: Sequence[TensorName]) -> BuildOutcome:
        step = f"{count(len(names), 'tensor')} marked, to see where the engine departs"
        return self._build(keep, step, outputs=names)

    def _build(
        self,
        keep: Assignment,
        step: str,
        *,
        outputs: Sequence[TensorName] = (),
        fresh: bool = False,
    ) -> BuildOutcome:
        network = self.planner.case.network
        if self.typing == "strong":
            mixed = self.files.mixed(self.planner, keep)
            return self.builds.build(mixed, step, outputs=outputs, fresh=fresh)
        return self.builds.build(
            self.files.fp32(network),
            step,
            low=_low(self.settings.fmt),
            keep=constraints(network, self.roles, self.planner.resolve(keep)) if keep else (),
            outputs=outputs,
            fresh=fresh,
        )

    def _judged(self, name: str, candidate: Candidate, fixed: Fixed) -> EngineResult:
        """Return a row of the table: verdicts on held-out samples, speed, precision."""
        build = candidate.build
        result = EngineResult(
            name=name, build=build, kept=len(candidate.keep), latency=candidate.latency
        )
        if build.engine is None or candidate.excess is None:
            return result.model_copy(update={"failure": build.message or "it does not run"})
        unseen = len(fixed.heldout) > 0
        samples = fixed.heldout if unseen else self.samples
        references = fixed.heldout_references if unseen else fixed.references
        try:
            judged = self.measure.judge(build.engine, samples, references, unseen=unseen)
            shapes = self.measure.at_shapes(build.engine, samples) if name == "mixed" else ()
            proof = self.measure.proof(build, samples, self.roles, self._asked(candidate.keep))
        except EngineFailed as failed:
            return result.model_copy(update={"failure": failed.message})
        return result.model_copy(
            update={"verdict": judged.verdict, "shapes": shapes, "proof": proof}
        )

    def _asked(self, keep: Assignment) -> dict[NodeName, Precision]:
        asked: dict[NodeName, Precision] = dict.fromkeys(keep, "fp32")
        if self.typing == "strong":
            low = _low(self.settings.fmt)
            free = (n for n, r in self.roles.items() if r.role is Role.COMPUTE and n not in keep)
            asked |= dict.fromkeys(free, low)
        return asked

    def _table(self, mixed: EngineResult, chosen: Chosen, fixed: Fixed) -> tuple[EngineResult, ...]:
        """Return FP32 without and with TF32, plain low precision, and mixed."""
        low = self.settings.fmt.name.upper()
        tf32 = Candidate(frozenset(), "", self._fp32.build)
        build = self.builds.build(self.files.fp32(self.case.network), "FP32, TF32 on", tf32=True)
        tf32 = self._measured(build)
        rows = [self._fp32, self._judged("FP32, TF32 on", tf32, fixed)]
        if chosen.plain is chosen.best:
            return (*rows, mixed.model_copy(update={"name": low}))
        return (*rows, self._judged(low, chosen.plain, fixed), mixed)

    def _measured(self, build: BuildOutcome) -> Candidate:
        if build.engine is None:
            return Candidate(frozenset(), "", build)
        try:
            latency = self.measure.latency(build.engine, self.samples)
        except EngineFailed:
            return Candidate(frozenset(), "", build)
        return Candidate(frozenset(), "", build, 0.0, latency)

    def _timed(self, result: EngineResult) -> EngineResult:
        assert result.build.engine is not None
        latency = self.measure.latency(result.build.engine, self._fp32_samples)
        return result.model_copy(update={"latency": latency})

    def _compare(self, table: Sequence[EngineResult]) -> None:
        rows = {row.name: row for row in table}
        plain = rows.get(self.settings.fmt.name.upper())
        if "mixed" in rows and plain is not None:
            self.notes.append(ab_remark(rows["mixed"], plain))

    def _rounds(self, search: EngineSearch) -> tuple[EngineRound, ...]:
        predicted = {keep: self.planner.trials.excess(keep) for keep in search.tried}
        candidates = sorted(
            (c for group in search.tried.values() for c in group), key=lambda c: c.build.number
        )
        return tuple(
            EngineRound(
                step=c.step,
                build=c.build.number,
                keep=tuple(n for n in search.order if n in c.keep),
                predicted=predicted[c.keep],
                measured=c.excess,
                passed=c.passed,
                median_ms=None if c.latency is None else c.latency.median_ms,
            )
            for c in candidates
        )

    def _nothing(self, fixed: Fixed, chosen: Chosen, rounds: tuple[EngineRound, ...]) -> Proven:
        """Return the result where no engine passed."""
        reasons = [f"no engine of {len(self.builds.outcomes)} builds is within the tolerance"]
        if fixed.verdict.passed and all(r.measured is not None for r in rounds):
            reasons.append(
                "the emulation of the same plan is right, so a kernel or the compiler is to "
                "blame rather than the precision: try another --optimization-level, other "
                "--tactic-sources, or another version of TensorRT"
            )
        first = chosen.plain
        table = (self._fp32, self._judged(self.settings.fmt.name.upper(), first, fixed))
        engines = self._record(table, rounds, keep=(), fixed=fixed)
        verdict = fixed.verdict.model_copy(
            update={"passed": False, "reasons": (*reasons, *fixed.verdict.reasons)}
        )
        return Proven(engines, verdict)

    def _record(
        self,
        results: Iterable[EngineResult],
        rounds: tuple[EngineRound, ...],
        *,
        keep: tuple[NodeName, ...],
        fixed: Fixed | None = None,
    ) -> Engines:
        return Engines(
            worker=self.worker.info,
            typing=self.typing,
            profiles=tuple(self.profiles),
            results=tuple(results),
            rounds=rounds,
            builds=tuple(self.builds.outcomes),
            keep=keep,
            emulated=None if fixed is None else fixed.verdict,
            notes=tuple(self.notes),
        )


def _low(fmt: Format) -> Literal["fp16", "bf16"]:
    return "bf16" if fmt == BF16 else "fp16"
