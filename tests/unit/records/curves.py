"""Curves of three nodes, made by hand."""

from halfwise.records import Curve, NodeName, Point, TaskScore
from halfwise.records.run import places


def point(kept: str, cost: float | None, error: float, **more) -> Point:
    count = len(list(places(kept)))
    made = {"kept": kept, "count": count, "is_bound": False}
    return Point(**{**made, "cost": cost, "error": error, **more})


def score(*, passed: bool, value: float = 0.5) -> TaskScore:
    return TaskScore(metric="top1", outputs=("y",), value=value, required=0.99, passed=passed)


def curve(*points: Point, count: int = 3, **more) -> Curve:
    nodes = tuple(NodeName(f"n{i}") if count > 3 else NodeName("abc"[i]) for i in range(count))
    shown = {"front": tuple(range(len(points)))}
    return Curve(nodes=nodes, points=points, **{**shown, **more})
