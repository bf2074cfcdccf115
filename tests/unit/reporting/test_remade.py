"""What is told of repairs that a judged model names."""

import pytest

from halfwise.records import Failure, NodeName, Proof, Remade, Repair
from halfwise.reporting.remade import remade_line

REPAIR = Repair(rule="fold", nodes=(NodeName("n"),))
PROOF = Proof(samples={"calibration": 2, "widened": 3}, original=None, repaired=2e-7, equal=False)
NAMED = "The candidate's metadata lists 1 repair (fold)"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (Remade(repairs=(REPAIR,), failures=(Failure(kind="unmade"),)), "; it does not hold."),
        (Remade(repairs=(REPAIR,)), "approximate, so not proven."),
        (Remade(repairs=(REPAIR,), proof=PROOF), "value on 5 samples."),
    ],
)
def test_it_says_what_holds(found: Remade, told: str) -> None:
    line = remade_line(found)
    assert line.startswith(NAMED)
    assert line.endswith(told)


def test_an_unnamed_difference_is_told_and_judged_by_outputs_alone() -> None:
    found = Remade(repairs=(), differs="/Add")
    assert found.holds
    assert remade_line(found) == (
        "The candidate's graph differs from the original, first at /Add, and its metadata lists no "
        "repairs: only outputs were compared."
    )
