"""The final table of a run: every engine in it is judged, timed and inspected the same way.

The fastest engine that passes is delivered. Times are noisy: engines take turns, and one counts as
faster if the interval of their ratio shows it (`race`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from statistics import median

from halfwise.fixing.bench import Bench
from halfwise.fixing.engines.attempts import Attempts
from halfwise.fixing.engines.device import Full, row_of
from halfwise.fixing.engines.measure import with_shapes
from halfwise.fixing.engines.plan import FULL, Built, EnginePlan, Outcome, mean
from halfwise.fixing.engines.race import race, time_ratio
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.plan.plan import Plan
from halfwise.records import EngineResult, Latency, Prefer, TimeRatio, Verdict
from halfwise.tensorrt.constrain import as_exact, same_outputs


@dataclass(frozen=True)
class Offer:
    """Engines of one plan that may be delivered, with their rows of the final table.

    Attributes:
        outcome: How they were built, and their errors on the calibration samples.
        rows: Their verdicts and times, by device.
        limit: The largest error with which they may be delivered.
        allowed: Whether they may be at all: not if the user's rules forbid it, or they pass by
            chance.
    """

    outcome: Outcome
    rows: Mapping[str, EngineResult]
    limit: float = 1.0
    allowed: bool = True

    @property
    def plan(self) -> EnginePlan:
        """The plan."""
        return self.outcome.plan

    def on(self, names: Collection[str]) -> "Offer":
        """Return the offer on some of its devices, at least one."""
        parts = {n: part for n, part in self.outcome.parts.items() if n in names}
        rows = {n: row for n, row in self.rows.items() if n in names}
        return replace(self, outcome=replace(self.outcome, parts=parts), rows=rows)

    def verdict(self, name: str) -> Verdict | None:
        """Return that of a device: on held-out samples, and at the shapes of every profile."""
        found = self.rows[name].verdict
        return None if found is None else with_shapes(found, self.rows[name].shapes)

    def is_known(self, name: str) -> bool:
        """Return whether it is allowed, and within its limit on the samples of the search."""
        excess = self.outcome.parts[name].excess
        return self.allowed and excess is not None and excess <= self.limit

    def passes(self, name: str) -> bool:
        """Return whether it may be delivered on a device."""
        verdict, at = self.rows[name].verdict, (s.verdict for s in self.rows[name].shapes)
        return (
            self.is_known(name)
            and verdict is not None
            and verdict.within
            and all(shaped is None or shaped.passed for shaped in at)
        )

    @property
    def passed(self) -> bool:
        """Whether it may be delivered on all of its devices."""
        return all(map(self.passes, self.rows))

    @property
    def times(self) -> tuple[float, ...]:
        """Median times by round, ms: geometric means over its devices; empty if not timed so."""
        known = [row.latency.medians for row in self.rows.values() if row.latency is not None]
        if len(known) < len(self.rows):
            return ()
        return tuple(mean(each) for each in zip(*known, strict=False))

    @property
    def milliseconds(self) -> float:
        """Geometric mean of its median times; inf if not timed on one device."""
        known = [row.latency for row in self.rows.values()]
        return mean([inf if latency is None else latency.median_ms for latency in known])

    @property
    def device_bytes(self) -> float:
        """Memory of its engine, the largest of its devices; inf if unknown."""
        known = [row.latency for row in self.rows.values()]
        return max(inf if latency is None else latency.device_bytes for latency in known)


def is_faster(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether an engine is faster than another by more than the noise of their times.

    Only rounds in which they took turns can show that.
    """
    ratio = time_ratio(one, other)
    return ratio is not None and ratio.high < 1


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
    passed = [o for o in passed if o.milliseconds < inf] or passed
    passed = [o for o in passed if o.times] or passed
    # Medians of different rounds say less: the clock may slow down after an engine's last round.
    equal = [o for o in passed if not any(is_faster(p.times, o.times) for p in passed)] or passed
    # With nothing low in its outputs it gains nothing over an FP32 or TF32 engine as fast.
    full = [o for o in equal if o.plan.is_full]
    equal = [o for o in equal if not (shows(o) and any(_as(o, other) for other in full))]
    if prefer == "memory":
        return min(equal, key=lambda o: o.device_bytes)
    if prefer == "exact":
        return min(equal, key=lambda o: o.outcome.excess or 0.0)
    return equal[0]


def shows(offer: Offer) -> bool:
    """Return whether the outputs of all of its engines are those of one FP32 or TF32 engine."""
    return None not in (found := {row.shows for row in offer.rows.values()}) and len(found) == 1


def _as(one: Offer, full: Offer) -> bool:
    """Return whether its outputs are those of an FP32 or TF32 engine, or as exact."""
    for name, row in one.rows.items():
        own, other = row.verdict, full.rows[name].verdict
        assert own is not None
        assert other is not None
        if not (same_outputs(own, other) or as_exact(own, other)):
            return False
    return True


class Table:
    """Makes rows.

    Attributes:
        offers: The offers so far, the FP32 engine's first.
    """

    def __init__(self, attempts: Mapping[str, Attempts], heldout: HeldOut) -> None:
        """Begin with the FP32 engines of each device, at least one, as they were judged.

        If samples joined meanwhile, they are judged again.
        """
        self._attempts, self._heldout = attempts, heldout
        self.offers: tuple[Offer, ...] = ()
        bench = next(iter(attempts.values())).spaces.low.bench
        devices = {name: each.device for name, each in attempts.items()}
        for device in devices.values():
            judged = {full.calibration[0].ids for full in device.full.values()}
            if judged != {bench.samples.ids}:
                device.judge_again(bench.samples, heldout.rest)
        for plan in FULL.values():
            full = {n: d.full[plan.rung] for n, d in devices.items() if plan.rung in d.full}
            if len(full) < len(devices):
                continue
            parts = {n: self._built(f, bench) for n, f in full.items()}
            outcome = Outcome(plan, next(iter(parts.values())).build.purpose, parts)
            rows = {
                n: f.row.model_copy(update={"excess": parts[n].excess}) for n, f in full.items()
            }
            # No search chose them: they have to be within the tolerance itself.
            self.offers += (Offer(outcome, rows, bench.tolerance.full),)

    @staticmethod
    def _built(full: Full, bench: Bench[Plan]) -> Built:
        samples, outputs = full.calibration
        excess = bench.excess_of(outputs) if outputs and samples.ids == bench.samples.ids else None
        row = full.row
        return Built(row.build, excess, row.latency, row.failure, row.lost)

    def add(self, outcome: Outcome, *, allowed: bool = True) -> None:
        """Add an engine of each device, in the low format or with INT8."""
        plan = outcome.plan
        name = "mixed" if plan.keep and plan.rung != "int8" else plan.rung.upper()
        name = name if plan.repaired else f"{name}, without repairs"
        rows = {n: self._row(n, name, outcome) for n in self._attempts}
        self.offers += (Offer(outcome, rows, 1.0, allowed),)

    def race(self) -> None:
        """Let engines that passed take turns, and set their times.

        A single passing engine has nothing to be compared with. See `race`.
        """
        for name, attempts in self._attempts.items():
            rows = {i: o.rows[name] for i, o in enumerate(self.offers) if o.passes(name)}
            engines = {i: r.build.engine for i, r in rows.items() if r.latency and r.build.engine}
            if len(engines) < 2:
                continue
            lap = attempts.device.bench.measure.lap
            times = race(engines, lap)
            self.offers = tuple(
                replace(o, rows={**o.rows, name: _timed(o.rows[name], times.get(i, ()))})
                for i, o in enumerate(self.offers)
            )

    def _row(self, device: str, name: str, outcome: Outcome) -> EngineResult:
        """Return the row of an engine."""
        plan, built, attempts = outcome.plan, outcome.parts[device], self._attempts[device]
        known = {o.rows[device].name for o in self.offers}
        row = EngineResult(
            name=f"{name}, build {built.build.number}" if name in known else name,
            build=built.build,
            kept=len(attempts.spaces.kept(plan)),
            rung=plan.rung,
            excess=built.excess,
            latency=built.latency,
        )
        if built.build.engine is None or built.failure:
            found = {"failure": built.why, "latency": built.latency, "lost": built.untold}
            return row.model_copy(update=found)
        full = {o.plan.rung: o.rows[device].verdict for o in self.offers if o.plan.is_full}
        heldout, asked = self._heldout, attempts.asked(plan, low=True)
        judged = heldout.samples, heldout.references, heldout.unseen
        prove = partial(attempts.proof, plan, built.build, asked)
        verdicts = {rung: verdict for rung, verdict in full.items() if verdict is not None}
        return row_of(attempts.device.bench, row, judged, verdicts, prove)


def rows_of(offers: Sequence[Offer], delivered: Offer | None, name: str) -> Iterator[EngineResult]:
    """Yield a device's rows of the table, each with its speed relative to `delivered`."""
    own = None if delivered is None else delivered.rows[name].latency
    for offer in offers:
        row = offer.rows[name]
        yield (
            row
            if offer is delivered
            else row.model_copy(update={"ratio": _ratio(own, row.latency)})
        )


def _ratio(one: Latency | None, other: Latency | None) -> TimeRatio | None:
    return None if one is None or other is None else time_ratio(one.medians, other.medians)


def _timed(row: EngineResult, medians: tuple[float, ...]) -> EngineResult:
    """Return a row with its time by the rounds; one without rounds stays as it was."""
    if row.latency is None or not medians:
        return row
    found = {"medians": medians, "median_ms": median(medians)}
    return row.model_copy(update={"latency": row.latency.model_copy(update=found)})
