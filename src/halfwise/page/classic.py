"""The classic rows: each precision with its errors, metrics, time and size."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from halfwise.metrics import usual
from halfwise.page.plans import values
from halfwise.records import (
    FULL_RUNGS,
    EngineResult,
    Errors,
    LadderRung,
    Latency,
    MetricResult,
    Plan,
    Point,
    Run,
    Verdict,
)
from halfwise.reporting.rungs import full_name, rung_name

REFERENCE, EMULATED = "reference", "emulated"
"""Sources of results other than engines and recorded outputs."""


@dataclass(frozen=True)
class Classic:
    """Results of one precision on the judged samples; None is unknown.

    Attributes:
        name: Its name.
        how: Source of the results: emulated, or an engine, with its device if there are several.
        passed: Whether it passed.
        kept: Nodes in a wider type than the lowest.
        errors: The largest errors of any output.
        metrics: Task metrics by name, in the sign convention of their fields.
        cost: Predicted cost relative to everything low.
        latency: Speed of its engine.
        bytes: Size of its file or engine.
    """

    name: str
    how: str
    passed: bool | None = None
    kept: int | None = None
    errors: Errors | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    cost: float | None = None
    latency: Latency | None = None
    bytes: int | None = None


def classic_rows(run: Run) -> tuple[Classic, ...]:
    """Return a row for everything that a run judged, most exact first: emulated, then engines."""
    if run.plan is not None or run.devices:
        engines = (
            _engine(row, device.worker.name if len(run.devices) > 1 else "")
            for device in run.devices
            for row in device.results
        )
        return (*(() if run.plan is None else _emulated(run, run.plan)), *engines)
    given = run.given_engine
    if not run.verdict.outputs:
        return ()
    found = _judged("candidate", run.verdict, how=run.verdict.runner or run.verdict.level)
    if given is None:
        worth = run.worth
        return (_fp32(run), replace(found, cost=worth.cost)) if worth is not None else (found,)
    size = given.engine.bytes
    return (replace(found, name="engine", how=_on(""), latency=given.latency, bytes=size),)


def _emulated(run: Run, plan: Plan) -> Iterator[Classic]:
    rungs = {rung.rung: rung for rung in run.rungs if rung.latency is None}
    own = "int8" if plan.has_int8 else plan.low
    yield _fp32(run)
    if "tf32" in rungs:
        yield _rung(rungs["tf32"])
    if run.baseline is not None:
        plain = _judged(f"all {rung_name(plan.low)}", run.baseline, kept=0)
        point = _plain(run, plan)
        cost = None if point is None else point.cost
        yield replace(plain, metrics=_given(point) | plain.metrics, cost=cost)
    yield from (_rung(rung) for name, rung in rungs.items() if name not in (*FULL_RUNGS, own))
    if run.all_int8 is not None:
        yield _judged("all INT8", run.all_int8, kept=0)
    verdict = run.verdict if run.engines is None else run.engines.emulated
    if verdict is None:
        return
    place = None if run.curve is None else run.curve.plan
    point = None if run.curve is None or place is None else run.curve.points[place]
    found = _judged(f"{rung_name(own)} plan", verdict, kept=len(plan.searched))
    yield replace(
        found,
        metrics=_given(point) | found.metrics,
        cost=None if run.worth is None else run.worth.cost,
        bytes=None if run.sizes is None else run.sizes.plan,
    )


def _plain(run: Run, plan: Plan) -> Point | None:
    """Return the all-low point before repairs; None if no curve has it."""
    curve = run.curve if not plan.repairs or run.curve is None else run.curve.unrepaired
    points = () if curve is None or plan.has_int8 else curve.points
    return next((point for point in points if not point.count), None)


def _fp32(run: Run) -> Classic:
    passed = [rung.passed for rung in run.rungs if rung.rung == "fp32" and rung.by is not None]
    return Classic(
        name=rung_name("fp32"),
        how=REFERENCE,
        passed=passed[0] if passed else None,
        errors=Errors(max_abs=0.0, mean_abs=0.0, median_abs=0.0),
        metrics={} if run.curve is None else values(run.curve.reference),
        cost=None if run.worth is None else run.worth.fp32,
        bytes=None if run.sizes is None else run.sizes.fp32,
    )


def _judged(
    name: str, verdict: Verdict, *, how: str = EMULATED, kept: int | None = None
) -> Classic:
    return Classic(
        name=name,
        how=how,
        passed=verdict.within if verdict.judged else None,
        kept=kept,
        errors=verdict.errors,
        metrics=_metric(verdict.metric),
    )


def _rung(rung: LadderRung) -> Classic:
    full = rung.rung in FULL_RUNGS
    return Classic(
        name=rung_name(rung.rung) if full else f"{rung_name(rung.rung)} plan",
        how=EMULATED,
        passed=rung.passed,
        kept=None if full else rung.left_out or rung.kept,
        errors=rung.errors,
        metrics=values(rung.scores),
        cost=rung.cost,
        bytes=rung.bytes,
    )


def _engine(result: EngineResult, device: str) -> Classic:
    verdict, file = result.verdict, result.build.engine
    return Classic(
        name=full_name(result.rung) if result.rung in FULL_RUNGS else result.name,
        how=_on(device),
        passed=None if verdict is None else verdict.passed,
        kept=result.kept,
        errors=None if verdict is None else verdict.errors,
        metrics={} if verdict is None else _metric(verdict.metric),
        latency=result.latency,
        bytes=None if file is None else file.bytes,
    )


def _on(device: str) -> str:
    return f"engine on {device}" if device else "engine"


def _given(point: Point | None) -> dict[str, float]:
    return {} if point is None else values(point.scores)


def _metric(result: MetricResult | None) -> dict[str, float]:
    if result is None:
        return {}
    return values(result.parts) or {result.name: usual(result.name, result.candidate)}
