"""The trade-off of a run: what each plan that was evaluated costs, and what it gives for that."""

from collections.abc import Iterable, Iterator
from typing import Literal

from halfwise.records.judged import Criterion
from halfwise.records.ladder import EngineRung
from halfwise.records.planned import LEAST_DEARER
from halfwise.records.recognised import Recognised, TaskScore
from halfwise.records.record import NodeName, Record


class Point(Record):
    """A plan that was evaluated.

    Attributes:
        kept: The compute nodes in FP32, as places in `Curve.nodes`: runs of them, "0-3 7".
        count: Their number.
        evaluation: How many evaluations the run had made when this plan had been tried.
        cost: Predicted cost over that of everything low; None where shapes cannot be seen.
        error: Error on the calibration samples over what is allowed: 1 just passes. With a metric,
            1 plus what it falls beyond its allowance. inf with new NaN or infinities.
        is_bound: Whether `error` is a lower bound alone, 0 where nothing is known: not all of the
            samples were looked at. A bound may exclude a plan, and is compared with no error.
        casts: Cast nodes in the mixed model; None where that was not made.
        heldout: As `error`, on held-out samples; None where it was not measured there, and where
            these are too few for the metric.
        rel_max: The smallest `rel_max` that the outputs would pass there; None likewise.
        nonfinite: Whether there are NaN or infinities there that the reference does not have.
        infinite_inside: Whether something inside the mixed model is infinite, on calibration
            samples, and not harmless, or lacks what the search had to keep for that; None where
            nobody looked.
        scores: Task metrics on held-out samples; none where nothing fits the outputs.
        searched: Whether these metrics pass on the samples of the search too, without new NaN or
            infinities; None where nobody looked, and in records before this field.
        bf16: How many of the kept nodes have BF16 instead of FP32, 0 in records before this field.
        tf32: Whether its FP32 products are TF32; False in records before this field.
    """

    kept: str
    count: int
    evaluation: int
    cost: float | None
    error: float
    is_bound: bool
    casts: int | None = None
    heldout: float | None = None
    rel_max: float | None = None
    nonfinite: bool = False
    infinite_inside: bool | None = None
    scores: tuple[TaskScore, ...] = ()
    searched: bool | None = None
    bf16: int = 0
    tf32: bool = False

    @property
    def serves(self) -> bool:
        """Whether every task metric passes on held-out samples, and nothing known speaks against.

        That is what it does on the samples of the search, and infinities.
        """
        passed = [score.passed for score in self.scores]
        fails = self.nonfinite or self.infinite_inside or self.searched is False
        return bool(passed) and all(passed) and not fails

    @property
    def price(self) -> float:
        """The cost, or where none is known the number of kept nodes, which orders plans too."""
        return float(self.count) if self.cost is None else self.cost


RowKind = Literal["rule", "guard", "operator"]
"""What a row's nodes have in common: an option of the user, a kind of suspicion, their operator."""


class Row(Record):
    """What some of the kept nodes buy, alone and on top of the rest.

    Attributes:
        kind: What they have in common.
        name: The rule, the kind of guard, or the operator.
        kept: The nodes, as in `Point`.
        count: Their number.
        alone: Place in `Curve.points` of the plan that keeps them, and what rules demand, alone;
            None where it was not measured.
        without: Of the plan that was found without them; None likewise, and where nothing is left
            out, since rules demand them.
    """

    kind: RowKind
    name: str
    kept: str
    count: int
    alone: int | None = None
    without: int | None = None


class Curve(Record):
    """Every plan that a run evaluated, and which of them to choose from.

    Attributes:
        nodes: The compute nodes, in graph order.
        points: The plans, in the order in which they were first tried.
        front: Places in `points` of those that are shown, cheapest first: of the plans whose error
            is known and that no other one beats in both cost and error, a few that are far apart;
            and the run's plan and the recommended one, wherever they are.
        plan: Place of the run's plan, or what engines made of it; None where that is none of them,
            and where an engine was delivered that computes nothing low.
        rows: What parts of the plan buy that the search found; none where the run's is another.
        recognised: What the outputs are taken for; empty where a metric was given, and where
            nothing is known.
        reference: What FP32's own outputs score; none where no plan was scored.
        criterion: What errors are over; None for that of the run.
        unrepaired: What plans come to without the repairs of the run, in the nodes of the model as
            it is: those that cost least, until one passes. None where nothing was repaired, and in
            records before this field.
        rung: The lowest type of the plans, where a run has several; then those of INT8 keep what
            is left out of it, and `nodes` are its candidates.
        beside: The curve of the rung before, or after where that failed; None with one rung, and in
            records before.
        recommended: Place of the cheapest plan whose task metrics pass on held-out samples and on
            those of the search; None where none does, or none fits the outputs.
    """

    nodes: tuple[NodeName, ...]
    points: tuple[Point, ...]
    front: tuple[int, ...] = ()
    plan: int | None = None
    rows: tuple[Row, ...] = ()
    recognised: tuple[Recognised, ...] = ()
    reference: tuple[TaskScore, ...] = ()
    recommended: int | None = None
    criterion: Criterion | None = None
    unrepaired: "Curve | None" = None
    rung: EngineRung | None = None
    beside: "Curve | None" = None

    def kept(self, point: Point) -> frozenset[NodeName]:
        """Return the compute nodes that a point keeps."""
        return frozenset(self.nodes[place] for place in places(point.kept))

    def of_plan(self, kept: frozenset[NodeName] | None) -> "Curve":
        """Return it with another plan, where that is one of the points; with none for None.

        Rows are of the plan that was found, and left out with another.
        """
        own = None
        if kept is not None:
            written = runs(place for place, name in enumerate(self.nodes) if name in kept)
            own = next((i for i, point in enumerate(self.points) if point.kept == written), None)
        rows = self.rows if own == self.plan else ()
        return self.model_copy(update={"plan": own, "rows": rows})

    def offered(self, *, passed: bool, by_task: bool = False) -> Point | None:
        """Return the recommended point, where the plan failed or costs at least 1 % more.

        Not the plan itself where a task metric judged it, `by_task`.
        """
        if self.recommended is None or (by_task and self.plan == self.recommended):
            return None
        point = self.points[self.recommended]
        plan = None if self.plan is None else self.points[self.plan]
        dearer = plan is None or plan.price >= LEAST_DEARER * point.price
        return point if dearer or not passed else None


def runs(places: Iterable[int]) -> str:
    """Return places, ascending and ≥ 0, as text: "0-3 7"; empty for none."""
    found: list[list[int]] = []
    for place in places:
        if found and place == found[-1][1] + 1:
            found[-1][1] = place
        else:
            found.append([place, place])
    return " ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found)


def places(text: str) -> Iterator[int]:
    """Yield the places that `runs` wrote."""
    for run in text.split():
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)
