"""The final table of a run: every engine in it is judged, timed and inspected the same way.

The fastest engine that passes is delivered. Times are noisy: engines take turns, and one counts as
faster if the interval of their ratio shows it (`race`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median

from halfwise.fixing.engines.attempts import Candidate
from halfwise.fixing.engines.measure import again_if_lost, is_lost, with_shapes
from halfwise.fixing.engines.race import race, time_ratio
from halfwise.fixing.engines.workbench import FP32, TF32, Workbench, low_format
from halfwise.fixing.planner import Planner
from halfwise.fixing.scoring import HeldOut
from halfwise.records import (
    FULL_RUNGS,
    EngineResult,
    EngineRung,
    Latency,
    NodeName,
    Precision,
    Prefer,
    TimeRatio,
    Verdict,
)
from halfwise.tensorrt.constrain import ab_remark, as_exact, same_outputs, shown
from halfwise.tensorrt.failures import ENGINE_FAULTS

MIXED = "mixed"


@dataclass(frozen=True)
class Offer:
    """An engine that may be delivered, with its row of the final table.

    Attributes:
        rung: The lowest type that it may compute in.
        candidate: How it was built, and its error on the calibration samples.
        limit: The largest such error with which it may be delivered.
        row: Verdicts and times.
        allowed: Whether it may be delivered at all: not if the user's rules forbid it, or it passes
            by chance.
        checked: Whether its verdict dates from before the search because the worker was lost later.
        elsewhere: Whether it passed, but its plan fails on another device.
    """

    rung: EngineRung
    candidate: Candidate
    limit: float
    row: EngineResult
    allowed: bool = True
    checked: bool = False
    elsewhere: bool = False

    @property
    def verdict(self) -> Verdict | None:
        """On held-out samples, and at the shapes of every profile."""
        found = self.row.verdict
        return None if found is None else with_shapes(found, self.row.shapes)

    @property
    def known(self) -> bool:
        """Whether it is allowed, and within its limit on the samples known to the search.

        The FP32 engine, which no search chose, was judged on the held-out ones before.
        """
        excess = self.candidate.excess
        return self.allowed and (self.checked if excess is None else excess <= self.limit)

    @property
    def passed(self) -> bool:
        """Whether it may be delivered; without held-out samples, judged by the others."""
        verdict, at = self.row.verdict, (s.verdict for s in self.row.shapes)
        return (
            self.known
            and verdict is not None
            and verdict.within
            and all(shaped is None or shaped.passed for shaped in at)
        )

    @property
    def milliseconds(self) -> float:
        """Median time, ms; inf if not timed."""
        return inf if self.row.latency is None else self.row.latency.median_ms


def faster(one: Latency | None, other: Latency | None) -> bool:
    """Return whether an engine is faster than another by more than the noise of their times.

    Only rounds in which they took turns can show that.
    """
    ratio = _ratio(one, other)
    return ratio is not None and ratio.high < 1


def _ratio(one: Latency | None, other: Latency | None) -> TimeRatio | None:
    return None if one is None or other is None else time_ratio(one.medians, other.medians)


def rows_of(offers: Sequence[Offer], delivered: Offer | None) -> tuple[EngineResult, ...]:
    """Return the rows of the table, each with its speed relative to `delivered`."""
    own = None if delivered is None else delivered.row.latency
    return tuple(
        o.row if o is delivered else o.row.model_copy(update={"ratio": _ratio(own, o.row.latency)})
        for o in offers
    )


def choose(offers: Sequence[Offer], prefer: Prefer) -> Offer | None:
    """Return the offer to deliver: the fastest that passes; None if none does.

    Among those that none beats by more than noise, `prefer` decides, except among those that give
    the outputs of an FP32 or TF32 engine in that set; further ties are broken by time, then by the
    order of `offers`. An engine that failed while others took turns is not chosen, nor an untimed
    one if others were timed.
    """
    passed = sorted((o for o in offers if o.passed), key=lambda o: o.milliseconds)
    if not passed:
        return None
    passed = [o for o in passed if o.row.latency is not None] or passed
    passed = [o for o in passed if o.row.latency is not None and o.row.latency.medians] or passed
    # Medians of different rounds say less: the clock may slow down after an engine's last round.
    times = [o.row.latency for o in passed]
    equal = [o for o in passed if not any(faster(t, o.row.latency) for t in times)] or passed
    # With nothing low in its outputs it gains nothing over an FP32 or TF32 engine as fast.
    plain = [o for o in equal if o.rung in FULL_RUNGS]
    equal = [o for o in equal if o.row.shows is None or not any(_as(o, p) for p in plain)]
    if prefer == "memory":
        return min(equal, key=_memory)
    if prefer == "exact":
        return min(equal, key=lambda o: o.candidate.excess or 0.0)
    return equal[0]


def _as(one: Offer, full: Offer) -> bool:
    """Return whether an engine's outputs are those of an FP32 or TF32 engine, or as exact."""
    own, other = one.row.verdict, full.row.verdict
    assert own is not None
    assert other is not None
    return same_outputs(own, other) or as_exact(own, other)


def better_known(before: Offer, now: Offer) -> Offer:
    """Return the later offer of an engine, unless its worker or result was lost meanwhile."""
    if before.checked or before.verdict is None:
        return now
    return before if now.checked or now.verdict is None else now


def _memory(offer: Offer) -> float:
    latency = offer.row.latency
    return inf if latency is None else latency.device_bytes


@dataclass
class Table:
    """Makes rows.

    Attributes:
        bench: Runs engines, and collects notes.
        planner: Supplies the roles of nodes, the low format, and the error on the calibration
            samples up to which an engine that no search chose is within the tolerance.
        heldout: The samples that judge every engine.
    """

    bench: Workbench
    planner: Planner
    heldout: HeldOut

    def exact(self, fp32: Candidate, checked: Verdict) -> Offer:
        """Return the FP32 engine without TF32.

        As the base of comparison it is judged even if it cannot be timed. If it is lost with its
        worker, `checked` stands: its verdict on held-out samples before anything else.
        """
        row = self._row(FP32, fp32, untimed=True)
        if row.verdict is not None or not row.lost:
            return Offer("fp32", fp32, self.planner.trials.tolerance, row)
        shapes = self.bench.measure.not_at_shapes(self.heldout.samples, "the worker was lost")
        found = {"verdict": checked, "shapes": shapes, "lost": True}
        row = row.model_copy(update=found | {"untimed": row.failure, "failure": ""})
        return Offer("fp32", fp32, self.planner.trials.tolerance, row, checked=True)

    def with_tf32(self, tf32: Candidate) -> Offer:
        """Return the FP32 engine with TF32."""
        return Offer("tf32", tf32, self.planner.trials.tolerance, self._row(TF32, tf32))

    def further(
        self, offers: Sequence[Offer], low: Sequence[Candidate], allowed: Collection[Candidate]
    ) -> tuple[Offer, ...]:
        """Return the offers, the FP32 engine's first, then those in the low format.

        Args:
            offers: Offers so far.
            low: Plans, plain low precision (whose row bears its name), the closest engine.
            allowed: Those that may be delivered.
        """
        rung: EngineRung = low_format(self.planner.settings.fmt)
        plain = rung.upper()
        found = list(offers)
        full = {o.rung: v for o in offers if o.rung in FULL_RUNGS and (v := o.row.verdict)}
        for candidate in low:
            known = {o.row.name: o.row for o in found}
            name, bare = MIXED if candidate.keep else plain, candidate.terms.unrepaired
            own: EngineRung = "int8" if candidate.terms.int8 else rung
            name = name if own == rung else own.upper()
            name = f"{name}, without repairs" if bare else name
            name = f"{name}, build {candidate.build.number}" if name in known else name
            row = self._row(name, candidate, self._asked(candidate), full=full)
            alike = own == rung and not bare
            if candidate.keep and row.verdict is not None and plain in known and alike:
                self.bench.notes.append(ab_remark(row, known[plain]))
            found.append(Offer(own, candidate, 1.0, row, candidate in allowed))
        return tuple(found)

    def raced(self, offers: Sequence[Offer], seconds: float = inf) -> tuple[Offer, ...]:
        """Return the offers; those that passed get the times of rounds in which they took turns.

        A single passing engine has nothing to be compared with. `seconds` is the time for all
        rounds, see `race`.
        """
        passed = {
            i: o.row.build.engine
            for i, o in enumerate(offers)
            if o.passed and o.row.latency is not None and o.row.build.engine is not None
        }
        found: dict[int, tuple[float, ...]] = {}
        if len(passed) > 1:
            effect = {i: offers[i].row.shows or offers[i].rung for i in passed}
            lap = lambda i: self.bench.measure.lap(passed[i])  # noqa: E731
            found = race(list(passed), lap, effect, seconds)
        return tuple(replace(o, row=_raced(o, found.get(i, ()))) for i, o in enumerate(offers))

    def _row(
        self,
        name: str,
        candidate: Candidate,
        asked: dict[NodeName, Precision] | None = None,
        *,
        full: Mapping[EngineRung, Verdict] | None = None,
        untimed: bool = False,
    ) -> EngineResult:
        """Return the row of an engine; one that cannot be timed has no result, unless `untimed`.

        `full` are the verdicts of the FP32 and TF32 engines, for comparison.
        """
        build = candidate.build
        row = EngineResult(
            name=name,
            build=build,
            kept=len(candidate.kept(self.planner)),
            excess=candidate.excess,
            untimed=candidate.untimed,
            band=candidate.band,
        )
        if build.engine is None or candidate.failure:
            found = {"failure": candidate.failure or build.message, "latency": candidate.latency}
            return row.model_copy(update=found | {"lost": candidate.untold})
        try:
            timed = row if row.untimed else self._timed(row, untimed=untimed)
            planner = candidate.terms.of(self.planner)
            return again_if_lost(lambda: self._measured(timed, planner, asked or {}, full or {}))
        except ENGINE_FAULTS as failed:
            known = {"failure": failed.message, "untimed": ""}
            return row.model_copy(update=known | {"lost": is_lost(failed)})

    def _timed(self, row: EngineResult, *, untimed: bool) -> EngineResult:
        measure, engine = self.bench.measure, row.build.engine
        assert engine is not None
        try:
            latency = again_if_lost(lambda: measure.latency(engine, thorough=True))
        except ENGINE_FAULTS as failed:
            if not untimed:
                raise
            return row.model_copy(update={"untimed": failed.message})
        return row.model_copy(update={"latency": latency})

    def _judged(self, row: EngineResult) -> EngineResult:
        measure, engine = self.bench.measure, row.build.engine
        assert engine is not None
        judged = measure.judge(
            engine, self.heldout.samples, self.heldout.references, unseen=self.heldout.unseen
        ).verdict
        # An engine that fails on the samples as they are is not delivered, whatever it does at
        # other shapes.
        at = measure.at_shapes(engine, self.heldout.samples) if judged.within else ()
        return row.model_copy(update={"verdict": judged, "shapes": at})

    def _measured(
        self,
        row: EngineResult,
        planner: Planner,
        asked: dict[NodeName, Precision],
        full: Mapping[EngineRung, Verdict],
    ) -> EngineResult:
        row = self._judged(row)
        judged = row.verdict
        assert judged is not None
        row = row.model_copy(update={"shows": shown(judged, full)})
        exact = full.get("fp32")
        as_fp32 = exact is not None and same_outputs(judged, exact)
        try:
            proof = again_if_lost(
                lambda: self.bench.proof(row.build, planner, asked, as_fp32=as_fp32)
            )
        except ENGINE_FAULTS as failed:  # it still runs
            self.bench.notes.append(f"what {row.name} computes in is not known: {failed.message}")
            return row
        return row.model_copy(update={"proof": proof})

    def _asked(self, candidate: Candidate) -> dict[NodeName, Precision]:
        """Return the precision requested for nodes; weak typing leaves the rest to the builder."""
        asked = candidate.asked(self.planner)
        if candidate.build.config.typing == "strong":
            computing = candidate.terms.of(self.planner).roles.computing
            low = computing - candidate.kept(self.planner)
            asked |= dict.fromkeys(low, low_format(self.planner.settings.fmt))
        return asked


def _raced(offer: Offer, medians: tuple[float, ...]) -> EngineResult:
    """Return the row of an offer with its rung and its time by the rounds."""
    row, latency = offer.row, offer.row.latency
    if latency is not None and medians:
        found = {"medians": medians, "median_ms": median(medians)}
        latency = latency.model_copy(update=found)
    return row.model_copy(update={"rung": offer.rung, "latency": latency})
