"""Curves of three nodes, made by hand."""

from halfwise.records import Curve, NodeName, Point, mask


def point(kept: str, cost: float | None, error: float, **more) -> Point:
    """Return a plan that keeps places such as "0-3 7"."""
    runs = (run.partition("-") for run in kept.split())
    places = [place for a, _, b in runs for place in range(int(a), int(b or a) + 1)]
    made = {"kept": mask(places), "count": len(places)}
    return Point(**{**made, "cost": cost, "error": error, **more})


def curve(*points: Point, count: int = 3, **more) -> Curve:
    nodes = tuple(NodeName(f"n{i}") if count > 3 else NodeName("abc"[i]) for i in range(count))
    return Curve(nodes=nodes, points=points, **more)
