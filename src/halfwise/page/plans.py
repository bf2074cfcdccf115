"""The page's plans to choose from: the curve, the classic rule beside it, and rows of a plan."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from halfwise.metrics import AUTO, rises, usual
from halfwise.page.data import Data, Section, Stored, front_coded
from halfwise.records import (
    FULL_RUNGS,
    Criterion,
    Curve,
    EngineResult,
    EngineRound,
    EngineRung,
    Engines,
    Errors,
    LadderRung,
    Latency,
    MetricResult,
    NodeName,
    Plan,
    Point,
    Run,
    TaskScore,
    Verdict,
)
from halfwise.records.run import places, runs
from halfwise.reporting.remarks import reasons
from halfwise.reporting.rungs import full_name, move_line, rung_name
from halfwise.reporting.verdict import allowed, refused
from halfwise.wording import ratio, size_of

Group = dict[str, Data]


class Names:
    """Names of nodes, each once; plans refer to them by index."""

    def __init__(self) -> None:
        self._places: dict[NodeName, int] = {}

    def runs(self, names: Iterable[NodeName]) -> str:
        """Return the indices of names in order, as in `Point.kept`; new names come last."""
        return runs(self._places.setdefault(name, len(self._places)) for name in names)

    def all(self) -> list[str]:
        """Return the names in order."""
        return list(self._places)


def groups(run: Run, names: Names) -> Iterator[Group]:
    """Yield groups of points, the plans of the run first.

    Numbers of a point: `cost` relative to everything low; `ms`; `count` of its nodes; `error` on
    the samples of the search and `heldout`, relative to the allowed error (1 just passes); `scores`
    by metric. `fails` where it is not known to pass by what decides in the run, with `why` in words
    if the run says so. `nodes` of a point are indices into the group's nodes, as `packed` writes
    them; the group's nodes are indices into `names`, as runs in any order.
    """
    plan, curve = run.plan, run.curve
    if plan is not None and curve is not None:
        rung: EngineRung = "int8" if plan.has_int8 else plan.low
        yield from _curve(curve, curve.rung or rung, names, "chosen", run)
        if curve.beside is not None:
            yield from _curve(curve.beside, curve.beside.rung or plan.low, names, "found", run)
    if full := list(_full(run)):
        yield {"name": "without a plan", "kind": "full", "nodes": "", "points": full}
    for engines in run.devices:
        where = f" on {engines.worker.name}" if len(run.devices) > 1 else ""
        order = sorted({node for made in engines.rounds for node in made.keep})
        points = list(_engines(engines, run, order))
        if points:
            group = {"name": f"engines{where}", "kind": "engine", "points": points}
            yield {**group, "nodes": names.runs(order)}


def _curve(
    curve: Curve, rung: EngineRung, names: Names, mark: Literal["chosen", "found"], run: Run
) -> Iterator[Group]:
    """Yield the plans of one type; `mark` is the name of its own plan."""
    left = "not in INT8" if rung == "int8" else "kept"
    by_metric = (curve.criterion or run.criterion).metric is not None
    points = [_point(curve, place, by_metric=by_metric) for place in range(len(curve.points))]
    if curve.plan is not None:
        points[curve.plan] |= {mark: True} | _judged(rung, run, chosen=mark == "chosen")
    best = curve.recommended
    if best is not None and not refused(curve, curve.points[best], run.devices):
        points[best]["recommended"] = True
    yield {
        "name": f"{rung_name(rung)} plans",
        "kind": "plan",
        "left": left,
        "nodes": names.runs(curve.nodes),
        "points": [_known(point) for point in points],
    }
    if (bare := curve.unrepaired) is not None:
        yield {
            "name": f"{rung_name(rung)} plans without repairs",
            "kind": "bare",
            "left": left,
            "nodes": names.runs(bare.nodes),
            "points": [
                _known(_point(bare, place, by_metric=by_metric))
                for place in range(len(bare.points))
            ],
        }


def _judged(rung: EngineRung, run: Run, *, chosen: bool) -> Group:
    """Return whether a judged plan fails, and why; nothing for others."""
    verdict = run.verdict if run.engines is None else run.engines.emulated
    if chosen and verdict is not None:
        return {"fails": not verdict.passed, "why": reasons(verdict.failures)}
    for one in run.rungs:
        if one.rung == rung and one.latency is None and one.passed is not None:
            return {"fails": not one.passed, "why": reasons(one.failures)}
    return {}


def _fails(point: Point, *, by_metric: bool) -> bool:
    """Return whether a plan is not known to pass by what decides."""
    off = any(error is not None and error > 1 for error in (point.error, point.heldout))
    scored = all(s.passed for s in point.scores) and False not in (point.searched, point.as_file)
    hidden = point.nonfinite or bool(point.infinite_inside)
    return off or hidden or point.is_bound or (by_metric and not scored)


def _point(curve: Curve, place: int, *, by_metric: bool) -> Group:
    point: Point = curve.points[place]
    return {
        "nodes": packed(places(point.kept)),
        "count": point.count,
        "cost": point.cost,
        "error": point.error,
        "bound": point.is_bound,
        "heldout": point.heldout,
        "casts": point.casts,
        "evaluation": point.evaluation,
        "bf16": len([*places(point.bf16)]) or None,
        "tf32": point.tf32,
        "nonfinite": point.nonfinite or bool(point.infinite_inside),
        "scores": values(point.scores),
        "failed": [score.metric for score in point.scores if not score.passed],
        "front": place in curve.front,
        "fails": _fails(point, by_metric=by_metric),
    }


def _full(run: Run) -> Iterator[Data]:
    """Yield FP32 and TF32, which have no plan; errors are against FP32."""
    known = {rung.rung: rung for rung in run.rungs if rung.rung in FULL_RUNGS}
    scores = {} if run.curve is None else values(run.curve.reference)
    if run.worth is not None and "fp32" not in known:
        yield {"name": rung_name("fp32"), "cost": run.worth.fp32, "error": 0.0, "scores": scores}
    for rung in known.values():
        found: Group = {
            "name": rung_name(rung.rung),
            "cost": rung.cost,
            "error": 0.0 if rung.rung == "fp32" else rung.error,
            "heldout": rung.heldout,
            "scores": values(rung.scores),
            "fails": rung.passed is False,
            "why": reasons(rung.failures),
        }
        if rung.latency is None:
            yield _known(found)


def _engines(engines: Engines, run: Run, order: Sequence[NodeName]) -> Iterator[Data]:
    """Yield every engine that was built and measured, by its build."""
    factor = 1.0 if run.search is None else run.search.tolerance_factor
    at = {name: place for place, name in enumerate(order)}
    rounds = {made.build: made for made in engines.rounds}
    results = {row.build.number: row for row in engines.results}
    own = engines.row
    for build in sorted({*rounds, *results}):
        made, row = rounds.get(build), results.get(build)
        excess = row.excess if row is not None else None
        excess = made.measured if made is not None and excess is None else excess
        latency = None if row is None else row.latency
        found: Group = {
            "build": build,
            "error": None if excess is None else excess * factor,
            "ms": latency.median_ms if latency else made.median_ms if made else None,
            "chosen": row is not None and row is own,
            "fails": not passes(made, row),
        }
        if made is not None:
            found["nodes"] = packed(sorted(at[name] for name in made.keep))
            found["count"] = len(made.keep)
            found["step"] = made.step if made.move is None else move_line(made.move)
        if row is not None:
            full = row.rung in FULL_RUNGS
            found["name"] = full_name(row.rung) if full else row.name
            metric = row.verdict.metric if row.verdict else None
            if metric is not None:
                one = {metric.name: usual(metric.name, metric.candidate)}
                found["scores"] = values(metric.parts) or one
        yield _known(found)


def passes(made: EngineRound | None, row: EngineResult | None) -> bool:
    """Return whether an engine passes: by its verdict, else on the samples of the search."""
    if row is not None and row.verdict is not None:
        return row.verdict.passed
    return made is not None and made.passed


def values(scores: Sequence[TaskScore]) -> dict[str, float]:
    """Return scores by metric; of several outputs with one metric, the nearest to failing."""
    ordered = sorted(scores, key=lambda s: (s.passed, s.value - s.required), reverse=True)
    return {score.metric: usual(score.metric, score.value) for score in ordered}


def packed(places: Iterable[int]) -> str:
    """Return ascending indices ≥ 0 as text, the shorter of two forms: runs or bits.

    Runs are as `records.curve.runs` writes them; bits are base64 after a "~", index 0 in the lowest
    bit of the first byte.
    """
    found = list(places)
    short = runs(found)
    bits = sum(1 << place for place in found)
    size = (bits.bit_length() + 7) // 8
    if len(short) <= max(64, 4 * (size // 3 + 1)):
        return short
    return f"~{b64encode(bits.to_bytes(size, 'little')).decode()}"


def _known(found: Group) -> Data:
    """Return the known values that are not defaults; the rest would make pages large."""
    return {
        name: v
        for name, v in found.items()
        if v is not None and v is not False and v not in ([], ())
    }


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
    found = _judged_classic("candidate", run.verdict, how=run.verdict.runner or run.verdict.level)
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
        plain = _judged_classic(f"all {rung_name(plan.low)}", run.baseline, kept=0)
        point = _plain(run, plan)
        cost = None if point is None else point.cost
        yield replace(plain, metrics=_given(point) | plain.metrics, cost=cost)
    yield from (_rung(rung) for name, rung in rungs.items() if name not in (*FULL_RUNGS, own))
    if run.all_int8 is not None:
        yield _judged_classic("all INT8", run.all_int8, kept=0)
    verdict = run.verdict if run.engines is None else run.engines.emulated
    if verdict is None:
        return
    place = None if run.curve is None else run.curve.plan
    point = None if run.curve is None or place is None else run.curve.points[place]
    found = _judged_classic(f"{rung_name(own)} plan", verdict, kept=len(plan.searched))
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


def _judged_classic(
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


def curve(stored: Stored) -> Section | None:
    """Return the section of the plans and of each precision; None if nothing was judged."""
    run, names = stored.run, Names()
    found, rows = list(groups(run, names)), classic_rows(run)
    if not found and not rows:
        return None
    compared = any(group["kind"] != "full" for group in found)
    over = (run.curve and run.curve.criterion) or run.criterion
    plans: Data = {
        "groups": found,
        "names": front_coded(names.all()),
        "metrics": list(_metrics(run)),
        "allowed": allowed(over),
        "loss": None if over.metric is None else _lost(over),
        "low": "" if run.plan is None else run.plan.low.upper(),
    }
    return Section(
        "curve",
        "What precision costs",
        {"plans": plans if compared else None, "classic": _classic(rows)},
        scripts=("columns", "scatter"),
        libraries=("uplot",),
    )


def _lost(criterion: Criterion) -> Data:
    """Return what decides if a metric does: errors are 1 plus its loss beyond `allowed`."""
    whose = "loss of the metrics / allowed" if criterion.metric == AUTO else None
    return {
        "title": whose or f"loss of {criterion.metric}",
        "allowed": criterion.metric_drop,
    }


def _metrics(run: Run) -> Iterator[Data]:
    """Yield the task metrics of plans, with their better direction and required value."""
    if run.curve is None:
        return
    required: dict[str, float] = {}
    for score in run.curve.reference:
        required[score.metric] = max(score.required, required.get(score.metric, score.required))
    for name, limit in required.items():
        yield {"name": name, "falls": rises(name), "required": usual(name, limit)}


_SMALLER = {"mean error": "mean_abs", "median error": "median_abs"}
_MINOR = ("known from", "kept", "p99 ms", "size", "GPU memory", *_SMALLER)
"""Columns that are left to wide screens."""
_TIMES = {"ms": "median_ms", "p99 ms": "p99_ms"}


def _classic(rows: Sequence[Classic]) -> Data:
    """Return the table of the rows, without empty columns."""
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    titles = ["model", "known from", "passed", "kept", *metrics, "max error", "cost", *_TIMES]
    titles += ["size", "GPU memory", *_SMALLER]
    cells = [[*_cells(row, metrics)] for row in rows]
    used = [i for i in range(len(titles)) if any(row[i] not in (None, "") for row in cells)]
    if emulated := {row.how for row in rows} <= {REFERENCE, EMULATED}:
        used.remove(1)
    return {
        "title": f"Each precision, {'emulated, ' * emulated}on the judged samples",
        "columns": [{"title": titles[i], "minor": titles[i] in _MINOR} for i in used],
        "rows": [[row[i] for i in used] for row in cells],
    }


def _cells(row: Classic, metrics: Sequence[str]) -> Iterator[Data]:
    yield row.name
    yield row.how
    yield "" if row.passed is None else "yes" if row.passed else "no"
    yield row.kept
    yield from (row.metrics.get(name) for name in metrics)
    yield None if row.errors is None else row.errors.max_abs
    yield None if row.cost is None else {"text": ratio(row.cost), "value": row.cost}
    yield from (None if row.latency is None else getattr(row.latency, t) for t in _TIMES.values())
    yield "" if row.bytes is None else size_of(row.bytes)
    yield "" if row.latency is None else size_of(row.latency.device_bytes)
    yield from (None if row.errors is None else getattr(row.errors, e) for e in _SMALLER.values())
