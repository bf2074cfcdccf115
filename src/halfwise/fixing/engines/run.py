"""A run with engines: the FP32 engine first, then the plan found by the emulation.

Then plans without repairs, and with INT8. Only engines show whether a repaired model is faster.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.attempts import (
    FREE_INT8,
    INT8,
    UNREPAIRED,
    WITH_TF32,
    Assignment,
    Attempts,
    Candidate,
    Chosen,
    Step,
    Terms,
    is_steady,
)
from halfwise.fixing.engines.builds import build_failed, judging, nothing_judged
from halfwise.fixing.engines.conclude import Early, Ended, Judging, Proven, rounds
from halfwise.fixing.engines.measure import again_if_lost
from halfwise.fixing.engines.moves import build_fp32
from halfwise.fixing.engines.prediction import Prediction
from halfwise.fixing.engines.proposals import NEAR, Budget, Proposals, near
from halfwise.fixing.engines.race import RACE_SHARE
from halfwise.fixing.engines.search import EngineSearch, Units, units_of
from halfwise.fixing.engines.table import Offer, Table, better_known, choose, rows_of
from halfwise.fixing.engines.workbench import FP32, TF32, Workbench, has_tf32
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.planner import Planner
from halfwise.fixing.scoring import HeldOut
from halfwise.fixing.stages import Stages
from halfwise.graph.model import node_name
from halfwise.records import (
    FP32_SNR_DB,
    FULL_RUNGS,
    BuildOutcome,
    Criterion,
    EngineResult,
    Engines,
    Failure,
    PrecisionProof,
)
from halfwise.reporting.remarks import with_failures
from halfwise.reporting.rungs import own_criterion
from halfwise.tensorrt.constrain import unmatched
from halfwise.tensorrt.failures import ENGINE_FAULTS


def known_unrepaired(fixed: Fixed) -> Assignment | None:
    """Return what the cheapest plan without repairs that passed keeps; None if there is none.

    Everything in FP32 does not count.
    """
    curve = fixed.curve.unrepaired
    if curve is None or fixed.planner.original is None:
        return None
    some = [point for point in curve.points if point.count < len(curve.nodes)]
    passed = [point for point in some if not point.is_bound and point.error <= 1]
    best = min(passed, key=lambda point: point.price, default=None)
    return None if best is None else curve.kept(best)


def build_beside(fixed: Fixed, attempts: Attempts, search: EngineSearch, chosen: Chosen) -> None:
    """Build the known plan without repairs, as often as others if it may be delivered.

    It is reported like the plans of the search but uses none of its budget: it is a row of the
    table. A repaired model slower than FP32 with nothing kept does not rule it out: it has other
    nodes. Nothing is built after Ctrl-C.
    """
    keep = known_unrepaired(fixed)
    if keep is None or search.budget.over():
        return
    builds = search.tried.setdefault((keep, UNREPAIRED), [])
    step = "the plan that is known without repairs"
    while len(builds) < search.builds and all(c.passed for c in builds):
        builds.append(attempts.attempt(keep, step, UNREPAIRED))
        step = f"build {len(builds) + 1} of {search.builds} of the same plan"
        if search.budget.over() or not _may_be_fastest(builds[0], search, chosen):
            break
    number = builds[0].build.number
    search.spared = [spared.model_copy(update={"beside": number}) for spared in search.spared]


def _may_be_fastest(built: Candidate, search: EngineSearch, chosen: Chosen) -> bool:
    full = None if search.full is None else search.full.median_ms
    if full is not None and built.milliseconds >= NEAR * full:
        return False
    return chosen.best is None or near(built, chosen.best)


Attempt = Callable[[Assignment, Step, Terms], Candidate]

SMALLER = 0.7
"""Maximum predicted error of the next one, as a share of the last one's error."""
_WAYS = {INT8: "the plan with INT8", FREE_INT8: "the plan with INT8, nothing constrained"}
INT8_PLANS = 3
"""Maximum number of plans built with INT8, each leaving more out of it."""


def build_int8(fixed: Fixed, attempt: Attempt, search: EngineSearch) -> None:
    """Build the plan with INT8, as often as others; if it fails, build ones that leave out more.

    It continues from what the plan below keeps, and uses none of the search's budget. After Ctrl-C
    nothing is built. If constraints keep nodes in FP32 and no user rule does, it is then built
    without them: TensorRT 8.6 refuses some networks with constraints in addition to INT8
    (docs/int8.md). The error decides.
    """
    lowest = fixed.rungs[-1] if fixed.rungs else None
    if lowest is None or not (lowest.plan.int8 and lowest.verdict.passed):
        return
    ruled = fixed.planner.forced.kept
    for keep in _leaving_more_out(lowest):
        for terms, step in _WAYS.items():
            builds = _built(keep, step, terms, attempt, search)
            if builds is None or all(c.passed for c in builds):
                return
            if ruled or not builds[-1].build.config.keep:
                break


def _built(
    keep: Assignment, step: str, terms: Terms, attempt: Attempt, search: EngineSearch
) -> list[Candidate] | None:
    """Return the builds of a plan with INT8 up to the first that fails; None if time is up."""
    builds: list[Candidate] = []
    told = step
    while len(builds) < search.builds and all(c.passed for c in builds):
        if search.budget.over():
            return None
        builds.append(attempt(keep, told, terms))
        search.int8[keep, terms] = builds
        told = f"build {len(builds) + 1} of {search.builds} of {step}"
    return builds


def with_int8(search: EngineSearch) -> tuple[list[Candidate], list[Candidate]]:
    """Return the builds behind rows of plans with INT8, and those that may be delivered."""
    groups = list(search.int8.values())
    passed = [[c for c in group if c.passed] for group in groups if is_steady(group)]
    fastest = [min(group, key=lambda c: c.milliseconds) for group in passed]
    return fastest or [group[-1] for group in groups[-1:]], fastest


def _leaving_more_out(lowest: Fixed) -> Iterator[Assignment]:
    """Yield what the plan leaves out, then larger sets with smaller errors that were tried."""
    curve, kept = lowest.curve, lowest.found.kept
    yield kept
    error, given = lowest.planner.trials.excess(kept), 1
    for point in sorted(curve.points, key=lambda point: point.count):
        more = curve.kept(point)
        if point.is_bound or not kept < more or point.error > SMALLER * error:
            continue
        yield more
        error, given = point.error, given + 1
        if given == INT8_PLANS:
            return


FURTHER = 3
"""Plans judged on held-out data in addition to the search's choice: a faster engine may have been
built on the way, or the chosen one may fail there."""


@dataclass
class EngineRun(Workbench):
    """Builds, judges and compares the engines of one case, in order.

    Attributes:
        place: Folder to create next to the run folder for engines proven during the run; None for
            none.
        started: `time.monotonic()` at the start of the command.
    """

    place: Path | None = None
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Start without engines; errors are those of `Workbench`."""
        super().__post_init__()
        self.stages = Stages(self.watcher)
        self.early = Early(self, self.place, self.started)
        self.builds.over = lambda: self.early.over
        self._tf32: BuildOutcome | None = None

    def reference(self) -> EngineResult:
        """Build and judge the FP32 engine without TF32.

        Its criterion is a signal-to-noise ratio of 60 dB, or the user's metric.

        Raises:
            BuildFailed: TensorRT cannot build it, and therefore no engine of this model.
            RunFailed: it does not run.
            CaseError: samples, including the calibration, do not fit any engine.
        """
        with self.stages("FP32 engine"), judging():
            build = build_fp32(self, FP32)
            if build.engine is None:
                raise build_failed(build, "no FP32 engine of this model")
            engine = build.engine
            again_if_lost(lambda: self.measure.check_inputs(engine, self.case.calibration))
            with suppress(*ENGINE_FAULTS):  # what is delivered is fetched once more
                self.fetched.keep(FP32, engine)
            samples = self.case.heldout or self.case.calibration
            own = Criterion(snr_db=FP32_SNR_DB, agreement=self.case.criterion.agreement)
            criterion = own if self.case.metric is None else None
            references = self.measure.references(samples)
            outputs = again_if_lost(lambda: self.measure.outputs(engine, samples))
            verdict = self.measure.judged(outputs, samples, references, criterion).verdict
            unseen = len(self.case.heldout) > 0
            checked = self.measure.judged(outputs, samples, references, unseen=unseen)
            self._checked, self._references = checked.verdict, references
            self._fp32 = EngineResult(name=FP32, build=build, verdict=verdict)
            self.notes.append(own_criterion(verdict))
            return self._fp32

    def tf32(self) -> None:
        """Build the FP32 engine with TF32, and report it if it passes; else the one without.

        It takes a fraction of the build time of a low engine, for which kernels of both types are
        timed, and needs no plan: so it is the first engine available, while the emulation searches.
        On a GPU without TF32 it would be the FP32 engine again, so it is not built there.
        """
        with self.stages("TF32 engine"):
            if has_tf32(self.worker.info):
                self._tf32 = self.builds.build(self.fp32, TF32, tf32=True)
            judged = self.fp32, self.case.heldout, self._references
            if not (self._tf32 and self.early.full(self._tf32, "tf32", *judged)):
                self.early.full(self._fp32.build, "fp32", *judged)

    def refused(self) -> Proven:
        """Return the result if the FP32 engine is wrong."""
        verdict = self._fp32.verdict
        assert verdict is not None
        wrong = Failure(kind="fp32-wrong")
        return Proven(self._record((self._fp32,)), with_failures(verdict, (wrong,), ahead=True))

    def prove(self, fixed: Fixed) -> Proven:
        """Search from the plan of `fixed`, judge the result on held-out samples, compare.

        Held-out samples that fail in the engine join the calibration, and the search continues with
        the rest.
        """
        lowest, fixed = fixed, fixed.rungs[0] if fixed.rungs else fixed
        heldout = fixed.heldout.for_watcher(self.watcher)
        if self._tf32 is None:
            self.tf32()
        with self.stages("engines"):
            search, attempts, prediction = self.search(fixed, heldout)
            # Whatever happens to the worker from here on, this engine is judged and fetched.
            table = Table(self, fixed.planner, heldout)
            exact = self.exact(attempts, table)
            chosen = search.run(fixed.found.kept)
            while chosen.best is not None and self.joins(chosen.best, heldout):
                again = lambda c: prediction.banded(attempts.again(c))  # noqa: E731
                chosen = search.again(chosen.best.keep, again)
            build_beside(fixed, attempts, search, chosen)
            build_int8(lowest, Judging(attempts, self.early, heldout).attempt, search)
            tf32 = self.with_tf32(attempts, prediction)
            search.end(fixed.planner.budget, tf32=tf32 is not None)
        with self.stages("verdict"):
            if heldout.joined or exact.checked or not exact.passed:
                exact = better_known(exact, self.exact(attempts, table))
            full = (exact,) if tf32 is None else (exact, table.with_tf32(tf32))
            offers = self.offers(table, full, search, chosen)
            delivered = choose(offers, self.engine_settings.prefer)
        ended = Ended(search, chosen, offers, delivered)
        return self.concluded(ended, fixed, tuple(heldout.joined))

    def with_tf32(self, attempts: Attempts, prediction: Prediction) -> Candidate | None:
        """Return the FP32 engine with TF32, measured; None on a GPU without it."""
        if self._tf32 is None:
            return None
        band = prediction.tf32()
        tf32 = Candidate(frozenset(), TF32, self._tf32, terms=WITH_TF32, band=band)
        return attempts.measured(tf32, TF32)

    def concluded(self, ended: Ended, fixed: Fixed, joined: tuple[str, ...]) -> Proven:
        """Return the result of a run whose engines are all judged."""
        self.notes += ended.chosen.notes
        if (last := ended.last) is not None:
            self.notes += unmatched(fixed.planner.case.network, last.row.build.unconstrained)
        found = ended.found(fixed.planner) | {
            "emulated": fixed.verdict,
            "prefer": self.engine_settings.prefer,
            "proven": tuple(self.early.told),
            "spared": tuple(ended.search.spared),
        }
        rows = rows_of(ended.offers, ended.delivered)
        engines = self._record(rows, last).model_copy(update=found)
        verdict = ended.verdict(fixed.verdict, engines.causes, len(engines.builds))
        minimal = ended.as_searched and ended.chosen.minimal
        return Proven(engines, verdict, ended.keep, minimal, joined, ended)

    def exact(self, attempts: Attempts, table: Table) -> Offer:
        """Judge the FP32 engine like all others, by the run's criterion."""
        candidate = Candidate(frozenset(), FP32, self._fp32.build)
        measured = attempts.measured(candidate, FP32, untimed=True)
        if measured.lost:
            measured = attempts.measured(candidate, FP32, untimed=True)
        return table.exact(measured, self._checked)

    def offers(
        self, table: Table, full: Sequence[Offer], search: EngineSearch, chosen: Chosen
    ) -> tuple[Offer, ...]:
        """Return the rows of the table: the chosen engine, and others as fast or that may pass."""
        best = chosen.best
        others = search.others(best)
        allowed = others if best is None else [*others, best]
        if best is None:
            closest = search.closest()
            tried = [chosen.plain, *([closest] if closest is not None and closest.keep else [])]
        else:
            swift = [c for c in others if near(c, best)][:FURTHER]
            none = next((c for c in (*swift, best) if not c.keep), chosen.plain)
            tried = [none, *(c for c in (*swift, best) if c.keep)]
        low = [c for c in tried if c is not None]
        offers = table.further(full, low, allowed)
        if not any(o.passed for o in offers if o.rung not in FULL_RUNGS):
            rest = [c for c in others if c not in low]
            offers = table.further(offers, rest[:FURTHER], allowed)
        offers = table.further(offers, *with_int8(search))
        return table.raced(offers, RACE_SHARE * (time.monotonic() - self.started))

    def brought(self, proven: Proven, path: Path) -> Proven:
        """Return the result with its engine here, at `path` unless it was here before.

        If it cannot be fetched, the verdict fails, because the user expects the file.

        Raises:
            EngineFailed: the worker was lost before it judged any engine by the run's criterion,
                and the FP32 engine is lost with it.
        """
        engines, ended = proven.engines, proven.ended
        if engines.delivered is None or ended is None or ended.delivered is None:
            return proven
        try:
            here = self.fetched.deliver(engines.delivered, path)
            return replace(proven, engines=engines.model_copy(update={"delivered": here}))
        except (*ENGINE_FAULTS, OSError) as failed:
            why = failed.message if isinstance(failed, HalfwiseError) else f"{failed}."
        if ended.delivered.checked:
            raise nothing_judged(why)
        lost = Failure(kind="unfetched", names={"path": engines.delivered.path, "why": why})
        rungs = tuple(
            tried.model_copy(update={"end": "unfetched"}) if tried.end == "delivered" else tried
            for tried in engines.rungs
        )
        return replace(
            proven,
            engines=engines.model_copy(update={"delivered": None, "rungs": rungs}),
            verdict=with_failures(proven.verdict, (lost,)),
        )

    def search(self, fixed: Fixed, heldout: HeldOut) -> tuple[EngineSearch, Attempts, Prediction]:
        """Return the search from a plan, and what builds and predicts its engines."""
        planner = fixed.planner
        attempts = Attempts(planner, self)
        budget = Budget(self.engine_settings.max_builds, lambda: self.early.over)
        ruled = _ruled(fixed)
        weak = self.builds.typing == "weak"
        always = self.engine_settings.tf32
        prediction = Prediction(planner, self._inspected, always_tf32=always, weak=weak)
        search = EngineSearch(
            attempt=prediction.before(Judging(attempts, self.early, heldout).attempt),
            proposals=Proposals(attempts, budget, ruled),
            order=[node_name(n) for n in planner.case.network.nodes()],
            budget=budget,
            builds=self.engine_settings.builds if weak else 1,
            # What was seen of fusion was seen in weak typing.
            prediction=prediction if weak else None,
            ruled=ruled,
            relative=planner.trials.metric is None,
            units=Units() if weak else self._units(fixed),
            full=self.early.yardstick(self.engine_settings.prefer),
        )
        return search, attempts, prediction

    def _units(self, fixed: Fixed) -> Units:
        planner = fixed.planner
        lowered = frozenset(planner.forced.lowered)
        return units_of(planner.case.network, planner.roles, fixed.found.kept, lowered)

    def _inspected(self, build: BuildOutcome, planner: Planner) -> PrecisionProof | None:
        if build.engine is None:
            return None
        try:
            return self.proof(build, planner, {})
        except ENGINE_FAULTS:
            return None

    def joins(self, best: Candidate, heldout: HeldOut) -> bool:
        """Judge an engine on the held-out samples; return whether any of them joined the search."""
        assert best.build.engine is not None
        try:
            judged = self.measure.judge(
                best.build.engine, heldout.samples, heldout.references, unseen=heldout.unseen
            )
        except ENGINE_FAULTS:
            return False  # the table reports it
        return heldout.join(judged, " in the engine")

    def lost(self, search: EngineSearch, fixed: Fixed, why: str) -> Engines:
        """Return the record of a device lost before its engine was judged."""
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

    def _record(self, rows: tuple[EngineResult, ...], shown: Offer | None = None) -> Engines:
        """Return the record; layers before fusion are those of the build that is shown."""
        layers_of = (rows[-1] if shown is None else shown.row).build.number
        return Engines(
            worker=self.worker.info,
            typing=self.builds.typing,
            profiles=self.engine_settings.profiles,
            results=tuple(r.model_copy(update={"build": _briefly(r.build)}) for r in rows),
            rounds=(),
            builds=tuple(_briefly(b, tell=b.number == layers_of) for b in self.builds.outcomes),
            keep=(),
            notes=tuple(dict.fromkeys(self.notes)),
        )


def _ruled(fixed: Fixed) -> Assignment:
    """Return the compute nodes that no engine may lower: all, if nothing is searched."""
    planner = fixed.planner
    return fixed.found.kept & frozenset(planner.forced.kept)


def _briefly(build: BuildOutcome, *, tell: bool = False) -> BuildOutcome:
    return build if tell else build.model_copy(update={"layers": ()})
