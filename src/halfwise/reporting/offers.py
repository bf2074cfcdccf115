"""Whether the recommended plan is offered: not if the run's engines speak against it."""

from collections.abc import Sequence
from dataclasses import dataclass

from halfwise.records import Criterion, Curve, EngineRound, Engines, Point, Verdict

_REFUSED = ("failed", "crashed", "timeout", "skipped")
"""Results of a build that are due to the plan, not the connection."""


@dataclass(frozen=True)
class Against:
    """Evidence of engines against a plan.

    Attributes:
        build: Number of the build: that with the least engine error, or the first refused.
        excess: Error of that engine relative to what the search may use; None if it has none.
        explained: Whether the emulation, and so its task score, predicts that: low precision
            explains the error, or what it explains is unknown.
    """

    build: int
    excess: float | None = None
    explained: bool = False


def against(curve: Curve, point: Point, devices: Sequence[Engines]) -> Against | None:
    """Return the evidence of engines with the same kept nodes against a plan; the worst device's.

    None if one passed on each device, or if none was built or all were lost.
    """
    kept = curve.kept(point)
    found = [
        _on(engines, [r for r in engines.rounds if set(r.keep) == kept]) for engines in devices
    ]
    shown = [one for one in found if one is not None]
    return min(shown, key=lambda one: one.explained, default=None)


def _on(engines: Engines, rounds: Sequence[EngineRound]) -> Against | None:
    if any(r.passed for r in rounds):
        return None
    ran = [(r.measured, r) for r in rounds if r.measured is not None]
    if ran:
        excess, nearest = min(ran, key=lambda pair: pair[0])
        explained = nearest.band is None or nearest.band.explains(excess)
        return Against(nearest.build, excess, explained)
    refused = {b.number for b in engines.builds if b.status in _REFUSED}
    builds = sorted(r.build for r in rounds if r.build in refused)
    return Against(builds[0]) if builds else None


def refused(curve: Curve, point: Point, devices: Sequence[Engines]) -> bool:
    """Return whether engines speak against a plan beyond what its emulation predicts."""
    shown = against(curve, point, devices)
    return shown is not None and not shown.explained


def offered(
    curve: Curve, judged: Verdict, criterion: Criterion, devices: Sequence[Engines] = ()
) -> Point | None:
    """Return the recommended plan if it offers something over the run's plan.

    None for data that looks made up, for a plan that builders refused, and for one whose engine is
    off by more than low precision explains; if a metric decides, or for the run's own plan, also if
    the engine is off at all.
    """
    if not judged.on_real_data:
        return None
    by_task = criterion.metric is not None
    point = curve.offered(passed=judged.passed, by_task=by_task)
    if point is None or not devices:
        return point
    shown = against(curve, point, devices)
    own = curve.plan is not None and curve.points[curve.plan] == point
    fits = shown is None or (shown.explained and not by_task and not own)
    return point if fits else None
