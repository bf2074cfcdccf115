import pytest

from halfwise.records import Move, NodeName, Refusal
from halfwise.reporting.moves import move_line, refusal_lines
from tests.unit.reporting.engine_runs import failed

A, B = NodeName("a"), NodeName("b")


@pytest.mark.parametrize(
    ("move", "line"),
    [
        (Move(kind="level", refused=2, level=5), "instead of build 2: optimization level 5"),
        (
            Move(kind="computing", refused=3, ends=("a", "b")),
            "instead of build 3: nothing that moves data is constrained there",
        ),
        (
            Move(kind="island", refused=2, island="whole branches"),
            "instead of build 2: whole branches kept",
        ),
    ],
)
def test_moves(move, line):
    assert move_line(move) == line


@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        (
            Refusal(kind="no-kernel", build=2, ends=("a", "b"), nodes=(A, B), shown=True,
                    avoided=3),
            "Build 2: the builder has no kernel for 2 nodes from a to b; 3 plans with the same "
            "region not built.",
        ),
        (
            Refusal(kind="crash", build=4, ends=("a", "b"), nodes=(A,)),
            "Build 4: the builder crashed in 1 node from a to b in the order of the file.",
        ),
        (Refusal(kind="unknown", build=5), "Build 5: the builder gave up."),
        (Refusal(kind="timeout", build=5), "Build 5: the builder took too long for the model."),
    ],
)  # fmt: skip
def test_refusals(refusal, line):
    assert list(refusal_lines([refusal], [])) == [line]


def test_builds_that_were_refused_alike_are_told_once():
    def refused(build, kind="no-kernel", **more):
        return Refusal(kind=kind, build=build, ends=("a", "b"), nodes=(A, B), **more)

    said = "No implementation for node {ForeignNode[a...b]}."
    alike = [refused(n, said=said, avoided=n) for n in (3, 5, 6)]
    lines = refusal_lines([*alike, refused(7, "crash"), refused(8, "crash")], [failed(7)])
    where = "2 nodes from a to b in the order of the file"
    assert list(lines) == [
        f"Builds 3, 5, 6: the builder has no kernel for {where}; 14 plans with the same region "
        f"not built. It said: {said}",
        f"Build 7: the builder crashed in {where}, by SIGSEGV.",
        f"Build 8: the builder crashed in {where}.",
    ]
