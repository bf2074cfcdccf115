"""The plans and engines that a run tried, for the page's chart."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from halfwise.metrics import rises, usual
from halfwise.page.data import Data, Interned, Section, Stored, front_coded
from halfwise.records import (
    FULL_RUNGS,
    Curve,
    EngineResult,
    EngineRound,
    EngineRung,
    Engines,
    NodeName,
    Point,
    Run,
    TaskScore,
)
from halfwise.records.run import places, runs
from halfwise.reporting.remarks import reasons
from halfwise.reporting.rungs import full_name, rung_name
from halfwise.reporting.verdict import allowed

Group = dict[str, Data]


Names = Interned[NodeName]
"""Names of nodes, each once; plans refer to them by index."""


def indices(names: Names, nodes: Iterable[NodeName]) -> str:
    """Return the indices of nodes in order, as in `Point.kept`; new nodes come last."""
    return runs(map(names.of, nodes))


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
            yield {**group, "nodes": indices(names, order)}


def _curve(
    curve: Curve, rung: EngineRung, names: Names, mark: Literal["chosen", "found"], run: Run
) -> Iterator[Group]:
    """Yield the plans of one type; `mark` is the name of its own plan."""
    without = "not in INT8" if rung == "int8" else "kept"
    by_metric = (curve.criterion or run.criterion).metric is not None
    points = [_point(curve, place, by_metric=by_metric) for place in range(len(curve.points))]
    if curve.plan is not None:
        points[curve.plan] |= {mark: True} | _judged(rung, run, chosen=mark == "chosen")
    yield {
        "name": f"{rung_name(rung)} plans",
        "kind": "plan",
        "left": without,
        "nodes": indices(names, curve.nodes),
        "points": [_without_defaults(point) for point in points],
    }
    if (bare := curve.unrepaired) is not None:
        yield {
            "name": f"{rung_name(rung)} plans without repairs",
            "kind": "bare",
            "left": without,
            "nodes": indices(names, bare.nodes),
            "points": [
                _without_defaults(_point(bare, place, by_metric=by_metric))
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
    scored = all(score.passed for score in point.scores)
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
    rungs = {rung.rung: rung for rung in run.rungs if rung.rung in FULL_RUNGS}
    scores = {} if run.curve is None else values(run.curve.reference)
    if run.worth is not None and "fp32" not in rungs:
        yield {"name": rung_name("fp32"), "cost": run.worth.fp32, "error": 0.0, "scores": scores}
    for rung in rungs.values():
        group: Group = {
            "name": rung_name(rung.rung),
            "cost": rung.cost,
            "error": 0.0 if rung.rung == "fp32" else rung.error,
            "heldout": rung.heldout,
            "scores": values(rung.scores),
            "fails": rung.passed is False,
            "why": reasons(rung.failures),
        }
        if rung.latency is None:
            yield _without_defaults(group)


def _engines(engines: Engines, run: Run, order: Sequence[NodeName]) -> Iterator[Data]:
    """Yield every engine that was built and measured, by its build."""
    factor = 1.0 if run.search is None else run.search.tolerance_factor
    at = {name: place for place, name in enumerate(order)}
    for build in tried_builds(engines):
        made, row = build.made, build.row
        group: Group = {
            "build": build.number,
            "error": None if build.excess is None else build.excess * factor,
            "ms": build.milliseconds,
            "chosen": row is not None and row is engines.row,
            "fails": not build.passes,
        }
        if made is not None:
            group["nodes"] = packed(sorted(at[name] for name in made.keep))
            group["count"] = len(made.keep)
            group["step"] = made.step
        if row is not None:
            full = row.rung in FULL_RUNGS
            group["name"] = full_name(row.rung) if full else row.name
            metric = row.verdict.metric if row.verdict else None
            if metric is not None:
                one = {metric.name: usual(metric.name, metric.candidate)}
                group["scores"] = values(metric.parts) or one
        yield _without_defaults(group)


@dataclass(frozen=True)
class TriedBuild:
    """A build that was tried in a round of the search, or has a result, or both.

    Attributes:
        number: Of the build.
        made: Its round; None without one.
        row: Its result; None without one.
    """

    number: int
    made: EngineRound | None
    row: EngineResult | None

    @property
    def excess(self) -> float | None:
        """The engine's error over what is allowed; None if it was not measured."""
        excess = None if self.row is None else self.row.excess
        return self.made.measured if self.made is not None and excess is None else excess

    @property
    def milliseconds(self) -> float | None:
        """The median time of a run; None if it was not timed."""
        latency = None if self.row is None else self.row.latency
        return latency.median_ms if latency else self.made.median_ms if self.made else None

    @property
    def passes(self) -> bool:
        """Whether it passes: by its verdict, else on the samples of the search."""
        if self.row is not None and self.row.verdict is not None:
            return self.row.verdict.passed
        return self.made is not None and self.made.passed


def tried_builds(engines: Engines) -> Iterator[TriedBuild]:
    """Yield the builds of a device in order, each with its round and its result."""
    rounds = {made.build: made for made in engines.rounds}
    results = {row.build.number: row for row in engines.results}
    for number in sorted({*rounds, *results}):
        yield TriedBuild(number, rounds.get(number), results.get(number))


def values(scores: Sequence[TaskScore]) -> dict[str, float]:
    """Return scores by metric; of several outputs with one metric, the nearest to failing."""
    ordered = sorted(scores, key=lambda s: (s.passed, s.value - s.required), reverse=True)
    return {score.metric: usual(score.metric, score.value) for score in ordered}


def packed(places: Iterable[int]) -> str:
    """Return ascending indices ≥ 0 as text, the shorter of two forms: runs or bits.

    Runs are as `records.curve.runs` writes them; bits are base64 after a "~", index 0 in the lowest
    bit of the first byte.
    """
    indices = list(places)
    short = runs(indices)
    bits = sum(1 << place for place in indices)
    size = (bits.bit_length() + 7) // 8
    if len(short) <= max(64, 4 * (size // 3 + 1)):
        return short
    return f"~{b64encode(bits.to_bytes(size, 'little')).decode()}"


def _without_defaults(group: Group) -> Data:
    """Return the known values that are not defaults; the rest would make pages large."""
    return {
        name: v
        for name, v in group.items()
        if v is not None and v is not False and v not in ([], ())
    }


def curve(stored: Stored) -> Section | None:
    """Return the section of plans and engines; None if the run tried none."""
    run, names = stored.run, Names()
    every = list(groups(run, names))
    if all(group["kind"] == "full" for group in every):
        return None
    over = (run.curve and run.curve.criterion) or run.criterion
    data: Data = {
        "groups": every,
        "names": front_coded(names.all),
        "metrics": list(_metrics(run)),
        "allowed": allowed(over),
        "by_metric": over.metric is not None,
        "low": "" if run.plan is None else run.plan.low.upper(),
    }
    return Section(
        "curve",
        "What precision costs",
        data,
        scripts=("columns", "scatter"),
        libraries=("uplot",),
        is_open=True,
    )


def _metrics(run: Run) -> Iterator[Data]:
    """Yield the task metrics of plans, with their better direction and required value."""
    if run.curve is None:
        return
    required: dict[str, float] = {}
    for score in run.curve.reference:
        required[score.metric] = max(score.required, required.get(score.metric, score.required))
    for name, limit in required.items():
        yield {"name": name, "falls": rises(name), "required": usual(name, limit)}
