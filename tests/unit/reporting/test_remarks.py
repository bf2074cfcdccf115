"""What is told of a plan as a whole, and of what ended its search."""

import pytest

from halfwise.records import UNDONE, Remark
from halfwise.reporting.parts import WORDS
from halfwise.reporting.remarks import lacking, remark
from tests.unit.reporting.runs import search


def test_what_is_undone_is_told_with_its_place():
    assert WORDS["remark"].keys() > UNDONE
    names = {"rule": "mask", "nodes": "a[0|1]{x}, b", "why": "No."}
    numbers = {"before": 2.0, "after": 3.0, "value": 1e-3}
    for kind in UNDONE:
        assert "mask at a[0|1]{x}, b" in remark(Remark(kind=kind, names=names, numbers=numbers))


@pytest.mark.parametrize(
    ("ended_by", "budget", "limit"),
    [
        (("work",), 1500.0, "work"),
        (("work", "seconds"), 1500.0, "time"),
        (("seconds", "interrupt"), 1500.0, "interrupt"),
        ((), None, "time"),  # records of before know seconds alone
    ],
)
def test_what_ended_a_search(ended_by, budget, limit):
    assert lacking(search(exhausted=True, budget=budget, ended_by=ended_by)) == limit
