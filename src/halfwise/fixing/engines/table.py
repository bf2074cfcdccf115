"""The final table of a run: every engine in it is judged, timed and inspected the same way.

The fastest engine that passes is delivered. Times are noisy: engines take turns, and one counts as
faster if the interval of their ratio shows it (`time_ratio`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from statistics import median

from halfwise.fixing.engines.bench import Bench
from halfwise.fixing.engines.measure import race, time_ratio
from halfwise.fixing.engines.plan import EnginePlan, Outcome
from halfwise.fixing.plan.plan import Plan
from halfwise.records import FULL_RUNGS, EngineResult, Prefer
from halfwise.tensorrt.constrain import as_exact, same_outputs


def is_faster(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether an engine is faster than another by more than the noise of their times.

    Only rounds in which they took turns can show that.
    """
    ratio = time_ratio(one, other)
    return ratio is not None and ratio.high < 1


def choose(offers: Sequence[Outcome], prefer: Prefer) -> Outcome | None:
    """Return the offer to deliver: the fastest that passes; None if none does.

    Among those that none beats by more than noise, `prefer` decides, except among those that give
    the outputs of an FP32 or TF32 engine in that set; further ties are broken by time, then by the
    order of `offers`. An engine that failed while others took turns is not chosen, nor an untimed
    one if others were timed.
    """
    passed = sorted((o for o in offers if o.deliverable), key=lambda o: o.milliseconds)
    if not passed:
        return None
    passed = [o for o in passed if o.milliseconds < inf] or passed
    passed = [o for o in passed if o.times] or passed
    # Medians of different rounds say less: the clock may slow down after an engine's last round.
    equal = [o for o in passed if not any(is_faster(p.times, o.times) for p in passed)] or passed
    # With nothing low in its outputs it gains nothing over an FP32 or TF32 engine as fast.
    full = [o for o in equal if o.plan.is_full]
    equal = [o for o in equal if not any(_gains_nothing(o, other) for other in full)]
    if prefer == "memory":
        return min(equal, key=lambda o: o.device_bytes)
    if prefer == "exact":
        return min(equal, key=lambda o: o.excess or 0.0)
    return equal[0]


def _gains_nothing(offer: Outcome, full: Outcome) -> bool:
    """Return whether the outputs of all of its engines are those of one rung, and of `full`.

    Or as exact as these.
    """
    rungs = {row.shows for row in offer.rows.values()}
    pairs = [(row.verdict, full.rows[name].verdict) for name, row in offer.rows.items()]
    is_one = len(rungs) == 1 and None not in rungs
    return is_one and all(v and f and (same_outputs(v, f) or as_exact(v, f)) for v, f in pairs)


def full_offers(bench: Bench) -> tuple[Outcome, ...]:
    """Return the FP32 engines of each device, at least one, as they were judged.

    If samples joined meanwhile, they are judged again; not after Ctrl-C, since no search chose them
    by those samples, and running an engine may take a restart of its worker.
    """
    offers, emulated, devices = list[Outcome](), bench.space.bench, bench.devices
    for device in () if bench.is_over else devices.values():
        if any(full.samples.ids != emulated.samples.ids for full in device.full.values()):
            device.judge_again(emulated.samples, bench.heldout.rest)
    for rung in FULL_RUNGS:
        full = {n: d.full[rung] for n, d in devices.items() if rung in d.full}
        if len(full) < len(devices):
            continue
        rows = dict[str, EngineResult]()
        for name, (row, samples, outputs) in full.items():
            before = emulated.references[: len(samples)]  # others joined behind them
            excess = emulated.tolerance.excess(outputs, samples, before) if outputs else None
            rows[name] = row.model_copy(update={"excess": excess})
        plan = EnginePlan(Plan(bench.space.variant), rung, tf32=rung == "tf32")
        purpose = next(iter(rows.values())).build.purpose
        # No search chose them: they have to be within the tolerance itself.
        limit = emulated.tolerance.full
        offers.append(Outcome(plan, purpose, rows, limit))
    return tuple(offers)


def offer_of(
    bench: Bench, outcome: Outcome, offers: Sequence[Outcome], *, allowed: bool = True
) -> Outcome:
    """Return engines in the low format or with INT8, judged; `offers` are those before."""
    plan, rows = outcome.plan, dict[str, EngineResult]()
    for device, measured in outcome.rows.items():
        name = "mixed" if plan.keep and plan.rung != "int8" else plan.rung.upper()
        if plan.types.of is not bench.space.variant:
            name = f"{name}, without repairs"
        if name in {o.rows[device].name for o in offers}:
            name = f"{name}, build {measured.build.number}"
        row = measured.model_copy(update={"name": name, "proof": None})
        if row.build.engine is None or row.failure:
            rows[device] = row.model_copy(update={"lost": row.shows_nothing})
            continue
        heldout, here = bench.heldout, bench.devices[device]
        judging = heldout.samples, heldout.references, heldout.unseen
        prove = partial(here.proof, plan, row.build, whole=True)
        rows[device] = here.row_of(row, judging, prove)
    return replace(outcome, rows=rows, allowed=allowed)


def raced(bench: Bench, offers: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Return the offers with the times of rounds in which engines that passed take turns.

    A single passing engine has nothing to be compared with. See `race`.
    """
    for name, device in bench.devices.items():
        rows = {i: o.rows[name] for i, o in enumerate(offers) if o.passes(name)}
        engines = {i: r.build.engine for i, r in rows.items() if r.latency and r.build.engine}
        if len(engines) < 2:
            continue
        times = race(engines, device.measure.lap)
        offers = [
            replace(o, rows={**o.rows, name: _timed(o.rows[name], times.get(i, ()))})
            for i, o in enumerate(offers)
        ]
    return tuple(offers)


def rows_of(
    offers: Sequence[Outcome], delivered: Outcome | None, name: str
) -> Iterator[EngineResult]:
    """Yield a device's rows of the table, each with its speed relative to `delivered`."""
    one = None if delivered is None else delivered.rows[name].latency
    for offer in offers:
        row = offer.rows[name]
        if one is None or row.latency is None or offer is delivered:
            yield row
        else:
            yield row.model_copy(update={"ratio": time_ratio(one.medians, row.latency.medians)})


def _timed(row: EngineResult, medians: tuple[float, ...]) -> EngineResult:
    """Return a row with its time by the rounds; one without rounds stays as it was."""
    if row.latency is None or not medians:
        return row
    times = {"medians": medians, "median_ms": median(medians)}
    return row.model_copy(update={"latency": row.latency.model_copy(update=times)})
