import pytest

from halfwise.fixing.stages import Best, Stages
from halfwise.interruption import offered
from halfwise.progress import Silent
from halfwise.records import NodeName, TaskScore


class Told(Silent):
    def __init__(self):
        self.names: list[str] = []

    def stage(self, name, total=None):  # noqa: ARG002
        self.names.append(name)


def test_a_stage_is_told_and_counted_each_time_and_when_it_fails():
    told = Told()
    stages = Stages(told)
    for name in ("search", "judge", "search"):
        with stages(name):
            pass
    before = stages.seconds["search"]
    with pytest.raises(ValueError, match="no"), stages("search"):
        raise ValueError("no")
    assert told.names == ["search", "judge", "search", "search"]
    assert stages.seconds["search"] >= before >= 0
    assert list(stages.seconds) == ["search", "judge"]


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def nodes(count):
    return frozenset(NodeName(f"n{i}") for i in range(count))


def best_told(*counts, price=lambda kept: 1 + len(kept) / 8):
    notes = Notes()
    best = Best(notes, nodes(100), price)
    for count in counts:
        best.passed(nodes(count), 0.5)
    return notes.lines


def test_a_plan_is_told_with_what_it_costs_and_its_error():
    (line,) = best_told(12)
    assert line == (
        "best plan so far: 12 of 100 nodes in FP32, 2.5 × the cost of everything low, "
        "error 0.5 × what is allowed"
    )


@pytest.mark.parametrize("price", [lambda kept: 1 + len(kept) / 8, lambda _: None])
def test_few_lines_tell_a_long_search(price):
    lines = best_told(*range(99, 0, -1), price=price)
    assert [int(line.split()[4]) for line in lines] == [99, 49, 24, 12, 6, 3, 1]


def test_what_needs_nothing_and_what_keeps_everything_is_told_elsewhere():
    assert best_told(100, 0) == []
    assert best_told(40, 60) == best_told(40)


def test_there_is_something_to_keep_once_a_plan_passes():
    with offered() as made:
        best = Best(notes := Notes(), nodes(3), lambda _: None)
        best.passed(nodes(3), 0.0)
        assert not made.ready
        assert notes.lines == []
        best.passed(nodes(1), 0.0)
        assert made.ready


def test_a_plan_that_serves_the_task_is_told_and_kept():
    notes, score = (
        Notes(),
        TaskScore(metric="f1", outputs=(), value=0.9961, required=0.99, passed=True),
    )
    with offered() as made:
        Best(notes, nodes(300), lambda _: 1.0).serves(nodes(0), (score,))
        assert made.ready
    assert notes.lines == [
        "serves the task: 0 of 300 nodes in FP32, 1 × the cost of everything low, f1 0.996 on "
        "held-out samples"
    ]


def test_errors_are_told_as_their_field_writes_them():
    notes = Notes()
    flow = TaskScore(metric="epe", outputs=(), value=-0.0942, required=-0.1, passed=True)
    Best(notes, nodes(3), lambda _: None).serves(nodes(0), (flow,))
    assert "epe 0.0942 on held-out" in notes.lines[0]


def test_a_plan_that_costs_as_much_as_fp32_is_not_told():
    assert best_told(60, price=lambda kept: 2.0 if len(kept) == 100 else 2.1) == []
    assert len(best_told(60, price=lambda kept: 2.0 if len(kept) == 100 else 1.9)) == 1
