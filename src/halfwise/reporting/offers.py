"""Whether the recommended plan is offered: not where engines of the run speak against it."""

from collections.abc import Sequence
from dataclasses import dataclass

from halfwise.records import Criterion, Curve, EngineRound, Engines, Point, Verdict

_REFUSED = ("failed", "crashed", "timeout", "skipped")
"""Ends of a build that tell of the plan, not of the connection."""


@dataclass(frozen=True)
class Against:
    """What engines show against a plan.

    Attributes:
        build: Number of the build: the one whose engine is off least, or the first refused.
        excess: Error of that engine over what the search may use; None where it has none.
        explained: Whether the emulation foresees that, which its task score then does too: low
            precision explains the error, or what it explains is not known.
    """

    build: int
    excess: float | None = None
    explained: bool = False


def against(curve: Curve, point: Point, devices: Sequence[Engines]) -> Against | None:
    """Return what engines with the same kept nodes show against a plan; the gravest device's.

    None where one of each device passed, and where none was built or all were lost.
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


def offered(
    curve: Curve, judged: Verdict, criterion: Criterion, devices: Sequence[Engines] = ()
) -> Point | None:
    """Return the recommended plan where it offers something beside that of the run.

    None on data that looks made up. Not one that builders refused or whose engine is off by more
    than low precision explains; where a metric decides, or where it is the run's own plan, not one
    whose engine is off at all.
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
