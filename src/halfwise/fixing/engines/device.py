"""One worker of a run: types, builds, runs; its FP32 engines, and engines of plans.

Every build of a run is numbered, and kept with its outcome. If the worker is lost, a build is
repeated once: the loss concerns the worker, not the build. A worker that has built before and no
longer can, because its GPU is gone, counts as lost too.

A container without a volume loses its files when the connection ends. Files kept here are sent to
the next one, and end up in the run folder.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count as counting
from pathlib import Path
from shutil import disk_usage, move
from typing import Literal

from halfwise.case import Case, EngineSettings, Samples, Settings
from halfwise.errors import HalfwiseError
from halfwise.fixing.depths import HeldOut
from halfwise.fixing.engines.measure import Measure, is_interrupted, is_lost
from halfwise.fixing.engines.plan import EnginePlan
from halfwise.fixing.plan.plan import Plan, Variant
from halfwise.graph.model import Network
from halfwise.graph.roles import Role
from halfwise.graph.weights import save
from halfwise.judging.judge import not_failing
from halfwise.metrics import Outputs
from halfwise.progress import Watcher, interruption
from halfwise.records import (
    FP32_ENGINE,
    FP32_SNR_DB,
    BuildConfig,
    BuildOutcome,
    Criterion,
    EngineFile,
    EngineResult,
    EngineRung,
    NodeName,
    Precision,
    PrecisionProof,
    Typing,
    replace,
)
from halfwise.reporting.plan import own_criterion, proven_line
from halfwise.store import BUILT_FILE, FP32_FILE, MODEL_FILE
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.constrain import constraints, quantised_types, readable, same_outputs
from halfwise.tensorrt.failures import (
    ENGINE_FAULTS,
    LOST,
    WORKER_GONE,
    EngineFailed,
    build_failed,
)
from halfwise.tensorrt.link import model_files
from halfwise.tensorrt.ports import check_covered, profiles_from_data
from halfwise.tensorrt.versions import has_tf32, regime
from halfwise.wording import number, shorten


@dataclass
class Builds:
    """Builds engines on one worker.

    Attributes:
        worker: The worker.
        settings: How to build, optimization profiles included.
        typing: Typing regime.
        watcher: Receives progress.
        numbers: Counts builds, also those of others that share it.
        outcomes: Every build so far, in order.
    """

    worker: Worker
    settings: EngineSettings
    typing: Typing
    watcher: Watcher
    numbers: Iterator[int] = field(default_factory=partial(counting, 1))
    outcomes: list[BuildOutcome] = field(default_factory=list)

    def build(
        self,
        model: Path,
        purpose: str,
        *,
        low: Literal["fp16", "bf16"] | None = None,
        tf32: bool = False,
        level: int | None = None,
        keep: Iterable[NodeName] = (),
        fresh: bool = False,
    ) -> BuildOutcome:
        """Build an engine and return the outcome.

        Args:
            model: ONNX file to build from; must not change during the run.
            purpose: What the engine is for.
            low: Low format that the builder may choose; weak typing only.
            tf32: Whether FP32 products may be TF32.
            level: Optimization level; None for the one in the settings.
            keep: Nodes to constrain; weak typing only.
            fresh: Time all tactics again, so that builds vary by chance, instead of reading them
                from the cache shared by builds on this GPU.

        Raises:
            UsageError, CaseError: as for `Worker.build`.
            BackendMissing, WorkerEnded: likewise, if nothing was built before.
        """
        weak = self.typing == "weak"
        config = BuildConfig(
            model_sha256=model_files(model).sha256,
            typing=self.typing,
            low=low if weak else None,
            tf32=tf32,
            keep=tuple(keep) if weak else (),
            profiles=self.settings.profiles,
            workspace_bytes=self.settings.workspace_bytes,
            optimization_level=self.settings.optimization_level if level is None else level,
            tactic_sources=self.settings.tactic_sources,
            plugins=self.settings.plugins,
        )
        outcome = self._once(model, config, purpose, fresh=fresh)
        if outcome.status == "lost":
            outcome = self._once(model, config, purpose, fresh=fresh)
        return outcome

    def _once(self, model: Path, config: BuildConfig, purpose: str, *, fresh: bool) -> BuildOutcome:
        settings = self.settings
        number = next(self.numbers)
        self.watcher.note(f"build {number}: {purpose}")
        try:
            outcome = self.worker.build(
                model,
                config,
                number=number,
                purpose=purpose,
                timeout=settings.build_timeout,
                cached=not fresh,
            )
        except WORKER_GONE as error:
            if all(outcome.engine is None for outcome in self.outcomes):
                raise  # the run loses nothing
            outcome = BuildOutcome(
                number=number,
                purpose=purpose,
                status="lost",
                message=error.message,
                config=config,
                seconds=0.0,
            )
        self.outcomes.append(outcome)
        if outcome.status != "built":
            said = "" if outcome.said in outcome.message else f" {shorten(outcome.said, 200)}"
            self.watcher.note(f"build {outcome.number} {outcome.status}: {outcome.message}{said}")
        return outcome

    def forget(self, but: EngineFile | None) -> None:
        """Remove all engines on the worker except one; they may take gigabytes.

        A worker that Ctrl-C ended is not started again for it: it drops what is unused for weeks.
        """
        if self.worker.process_id is None:
            return
        engines = {o.engine.sha256: o.engine for o in self.outcomes if o.engine is not None}
        # If the worker is lost, nobody needs the space.
        with suppress(HalfwiseError):
            for sha256, engine in engines.items():
                if but is None or sha256 != but.sha256:
                    self.worker.forget(engine)


@dataclass
class Fetched:
    """Keeps engines that may be delivered, in case the connection is lost.

    Attributes:
        worker: Where they were built.
        folder: Destination; must exist for the whole run.
    """

    worker: Worker
    folder: Path

    def keep(self, engine: EngineFile) -> None:
        """Fetch an engine; does nothing without space for it.

        It may be gigabytes, and take half of the free space: models are still to be written there.

        Raises:
            RunFailed: the worker no longer has it, or the connection is lost, twice.
        """
        here = self._place(engine)
        with suppress(OSError):
            if not here.is_file() and 2 * engine.bytes <= disk_usage(self.folder).free:
                self.worker.fetch(engine, here)

    def deliver(self, engine: EngineFile, path: Path) -> None:
        """Move an engine's local copy to `path`; if there is none, fetch it.

        Raises:
            RunFailed: as for `keep`.
            OSError: it cannot be written.
        """
        here = self._place(engine)
        # A cleaner of temporary folders may have removed it.
        if here.is_file():
            move(here, path)
        else:
            self.worker.fetch(engine, path)

    def _place(self, engine: EngineFile) -> Path:
        return self.folder / f"{engine.sha256}.engine"


@dataclass
class Workbench:
    """Builds, runs and judges engines of one case on one worker.

    Attributes:
        case: The case.
        settings: Low format and runtime.
        engine_settings: How engines are built; gets the profiles of the data if it has none.
        worker: Where engines are built and run.
        folder: Holds ONNX files and engines; must exist as long as the workbench.
        watcher: Receives progress.
        notes: Collects notes.
        numbers: Counts builds, also those of other workbenches that share it.
        builds: Every build.
        measure: Runs and judges engines.
        fetched: Engines fetched here.
    """

    case: Case
    settings: Settings
    engine_settings: EngineSettings
    worker: Worker
    folder: Path
    watcher: Watcher
    notes: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=partial(counting, 1))
    _written: dict[Hashable, Path] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Check the worker's abilities, and that the profiles hold the data.

        Raises:
            BackendMissing: the worker cannot build.
            UsageError: it lacks the typing regime or the low format.
            CaseError: samples are outside every profile, or the model's quantisation is refused.
        """
        self.worker.demand_usable()
        readable(self.case.network, self.worker.info.tensorrt)
        typing = regime(
            self.worker.info,
            self.engine_settings.typing,
            self.settings.fmt,
            beside="bf16" in self.settings.allow,
        )
        samples = self.case.calibration + self.case.heldout
        profiles = self.engine_settings.profiles or profiles_from_data(self.case.network, samples)
        check_covered(profiles, samples)
        how = self.engine_settings = replace(self.engine_settings, profiles=profiles)
        self.builds = Builds(self.worker, how, typing, self.watcher, self.numbers)
        self.measure = Measure(self.worker, self.case, self.settings, how)
        self.fetched = Fetched(self.worker, self.folder)

    @property
    def fp32(self) -> Path:
        """The file of the FP32 model."""
        return self.file(FP32_FILE, FP32_FILE, lambda: self.case.network)

    def file(self, key: Hashable, name: str, network: Callable[[], Network]) -> Path:
        """Return the file of a model to build from, written if it is not there yet.

        Args:
            key: What distinguishes it from others.
            name: Name of the file; its folder has no other model.
            network: Returns the model.
        """
        if key not in self._written:
            path = self.folder / f"{len(self._written) + 1}" / name
            path.parent.mkdir()
            save(readable(network(), self.worker.info.tensorrt).model, path)
            self._written[key] = path
        return self._written[key]


TF32_ENGINE = "FP32, TF32 on"
"""Name of the FP32 engine with TF32 in the final table."""

Asked = tuple[Samples, Sequence[Outputs]]
"""Samples of the search, and the reference outputs of each."""


@dataclass
class Device(Workbench):
    """A worker that builds engines of plans, after its FP32 engines.

    Attributes:
        full: The FP32 engines without and with TF32, judged like all others.
    """

    full: dict[EngineRung, EngineResult] = field(default_factory=dict, init=False)

    @property
    def is_strong(self) -> bool:
        """Whether its engines have the types of the ONNX file."""
        return self.builds.typing == "strong"

    # --- FP32 engines --------------------------------------------------------------------------

    def reference(self) -> EngineResult | None:
        """Build and judge the FP32 engine without TF32; if it is right, also that with TF32.

        From then on Ctrl-C delivers an engine. The first criterion is a signal-to-noise ratio of
        60 dB, or the user's metric. Returns the row by that; None if Ctrl-C came.

        Raises:
            BuildFailed: TensorRT cannot build it, and therefore no engine of this model.
            RunFailed: it does not run.
            CaseError: samples, including the calibration, do not fit any engine.
            EngineFailed: the worker was lost before there is a right engine to deliver.
        """
        measure, case = self.measure, self.case
        plan = self._full_plan("fp32")
        build = self.build(plan, FP32_ENGINE)
        if build.status == "interrupted":
            return None
        if build.engine is None:
            raise build_failed(build, "no FP32 engine of this model")
        measure.check_inputs(build.engine, case.calibration)
        by_snr = Criterion(snr_db=FP32_SNR_DB, agreement=case.criterion.agreement)
        heldout, criterion = self._question[1], by_snr if case.users_metric is None else None
        on = heldout.samples, heldout.references
        verdict = measure.judge(build.engine, *on, criterion).verdict
        self.notes.append(own_criterion(verdict))
        if verdict.passed:
            interruption().offer()
            row = self._offered(plan, build)
            if row.lost and row.verdict is None:
                raise EngineFailed(row.failure, LOST, status="lost")
            # It takes a fraction of the build time of a low engine, for which kernels of both types
            # are timed, and needs no plan. On a GPU without TF32 it would be the same again.
            if has_tf32(self.worker.info) and not interruption().asked:
                plan = self._full_plan("tf32")
                build_tf32 = self.build(plan, TF32_ENGINE)
                if build_tf32.status != "interrupted":
                    self._offered(plan, build_tf32)
        return EngineResult(name=FP32_ENGINE, build=build, verdict=verdict)

    def _full_plan(self, rung: EngineRung) -> EnginePlan:
        return EnginePlan(Plan(Variant(self.case, self.settings)), rung, tf32=rung == "tf32")

    @cached_property
    def _question(self) -> tuple[Asked, HeldOut]:
        """The samples that judge engines before there is a search."""
        case, of = self.case, self.measure.references
        searched = of(case.calibration)
        heldout = HeldOut(case, case.heldout, of(case.heldout), searched, self.watcher)
        return (case.calibration, searched), heldout

    def _offered(self, plan: EnginePlan, build: BuildOutcome) -> EngineResult:
        """Return the row of an FP32 engine; if it is right, tell that."""
        row = self.full[plan.rung] = self.row(plan, build, *self._question)
        if row.verdict is not None and row.verdict.passed:
            self.watcher.note(proven_line(row))
        return row

    # --- engines of plans ----------------------------------------------------------------------

    def build(self, plan: EnginePlan, step: str, *, fresh: bool = False) -> BuildOutcome:
        """Build a plan.

        Args:
            plan: The plan.
            step: Why it is built.
            fresh: Whether it was built before: then tactics are timed again.
        """
        builds, is_typed = self.builds, self.is_strong or plan.is_full
        asked = not plan.is_full and builds.settings.tf32
        return builds.build(
            self.fp32 if plan.is_full else self.model_of(plan.types),
            step,
            low=None if is_typed else self.settings.fmt.low,
            tf32=asked or plan.tf32 or plan.types.tf32,
            level=plan.level,
            keep=() if is_typed else _constraints(plan),
            fresh=fresh,
        )

    def row(
        self, plan: EnginePlan, build: BuildOutcome, asked: Asked, heldout: HeldOut
    ) -> EngineResult:
        """Return a build with its errors, what it computes in, and its speed.

        If it passes on the samples of the search, it is fetched, in case the connection is lost.
        One that cannot be timed comes after all others. After Ctrl-C it is neither inspected nor
        timed.

        Args:
            plan: Its plan.
            build: The build.
            asked: The samples of the search.
            heldout: The samples that judge.
        """
        name = "" if not plan.is_full else TF32_ENGINE if plan.tf32 else FP32_ENGINE
        row = EngineResult(name=name, build=build, kept=len(plan.types.kept), rung=plan.rung)
        if build.engine is None:
            return replace(row, failure=build.message)
        row = self.judged(row, asked, heldout)
        if row.excess is None:
            self._tell(f"the engine of build {build.number} does not run", row.failure)
            return row
        error = number(row.excess)
        note = f"build {build.number} keeps {len(plan.keep)}: error {error} of what is allowed"
        self.watcher.note(note)
        with suppress(*ENGINE_FAULTS):  # what is delivered is fetched again
            if row.excess <= 1:
                self.fetched.keep(build.engine)
        return row if row.failure else self._timed(self._inspected(plan, row))

    def judged(self, row: EngineResult, asked: Asked, heldout: HeldOut) -> EngineResult:
        """Return a row with its error on the samples of the search, and its verdict."""
        measure, engine = self.measure, row.build.engine
        if engine is None or row.failure:
            return row
        row = replace(row, excess=None, verdict=None, shapes=())
        samples, references = heldout.samples, heldout.references
        try:
            row = replace(row, excess=measure.excess(engine, *asked))
            judging = engine, samples, references
            verdict = measure.judge(*judging, unseen=heldout.unseen).verdict
            # An engine that fails on the samples as they are is not delivered, whatever it does at
            # other shapes.
            rest = not_failing(verdict, samples, measure.case.criterion)
            at = measure.at_shapes(engine, rest) if verdict.within else ()
        except ENGINE_FAULTS as failed:
            return replace(row, latency=None, failure=failed.message, lost=is_lost(failed))
        return replace(row, verdict=verdict, shapes=at, lost=False)

    def _inspected(self, plan: EnginePlan, row: EngineResult) -> EngineResult:
        """Return a row with what its engine computes in, if that is known.

        If its outputs are those of the FP32 engine bit for bit, so is what it computes in, wherever
        its inspector does not say.
        """
        fp32 = self.full["fp32"].verdict if "fp32" in self.full else None
        as_fp32 = fp32 is not None and row.verdict is not None and same_outputs(row.verdict, fp32)
        try:
            return replace(row, proof=self.proof(plan, row.build, as_fp32=as_fp32))
        except ENGINE_FAULTS as failed:  # it still runs
            if not is_interrupted(failed):
                why = f"what build {row.build.number} computes in is not known"
                self._tell(why, failed.message)
        return row

    def _timed(self, row: EngineResult) -> EngineResult:
        assert row.build.engine is not None
        try:
            latency = self.measure.latency(row.build.engine)
        except ENGINE_FAULTS as failed:
            return replace(row, untimed=failed.message, lost=is_lost(failed))
        self.watcher.note(f"build {row.build.number} takes {number(latency.median_ms)} ms a run")
        return replace(row, latency=latency)

    def model_of(self, types: Plan) -> Path:
        """Return the ONNX file that a plan is built from."""
        of, network = types.of, types.of.network_of(types)
        if self.is_strong:
            mixed = lambda: replace(network, model=of.write(types)[0].model)  # noqa: E731
            return self.file(types, MODEL_FILE, mixed)
        if types.quantisation is None and not of.case.repairs:
            return self.fp32
        key = of, types.quantisation, types.int8
        return self.file(key, BUILT_FILE, lambda: network)

    def proof(
        self, plan: EnginePlan, build: BuildOutcome, *, as_fp32: bool = False
    ) -> PrecisionProof:
        """Return what an engine computes in, by the nodes of the model it was built from.

        Low nodes are compared with what was requested in strong typing only; weak typing leaves
        them to the builder.

        Args:
            plan: Its plan.
            build: Its build.
            as_fp32: See `prove`.
        """
        types, of, requested = plan.types, plan.types.of, dict[NodeName, Precision]()
        network, roles = of.network_of(types), of.roles
        if not plan.is_full:
            requested = {name: types.precision(name) for name in types.kept}
            if self.is_strong:
                requested |= dict.fromkeys(of.computing - types.kept, of.settings.fmt.low)
            requested |= quantised_types(network)
            roles = of.roles_in(network) if plan.rung == "int8" else roles
        return self.measure.proof(build, network, roles, requested, as_fp32=as_fp32)

    def _tell(self, event: str, why: str) -> None:
        """Report what happened and why."""
        self.notes.append(f"{event}: {why}")
        self.watcher.note(self.notes[-1])


def _constraints(plan: EnginePlan) -> tuple[NodeName, ...]:
    """Return the nodes to constrain to FP32: those that the emulation has in FP32.

    None if only data movement between FP32 inputs and outputs is kept: that is plain low precision,
    and its rounding is up to the builder. INT8 nodes take no constraint.
    """
    of, kept = plan.types.of, plan.types.kept
    pinned = frozenset(name for name, role in of.roles.items() if role.role is Role.PINNED)
    if plan.unconstrained or not (kept or pinned or of.forced.kept):
        return ()
    return constraints(of.case.network, of.resolve(kept) | pinned)
