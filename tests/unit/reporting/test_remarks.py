"""What is told of a plan as a whole, and of what ended its search."""

import pytest

from halfwise.records import UNDONE, Remark
from halfwise.reporting.remarks import MORE, REMARKS, lacking, remark, spent
from tests.unit.reporting.runs import search


def test_what_is_undone_is_told_with_its_numbers():
    assert REMARKS.keys() > UNDONE
    names = {"rule": "mask", "nodes": "a, b", "why": "No."}
    numbers = {"before": 2.0, "after": 3.0, "value": 1e-3}
    told = {kind: remark(Remark(kind=kind, names=names, numbers=numbers)) for kind in UNDONE}
    assert all("mask at a, b" in line for line in told.values())
    assert told["repair-unproven"].endswith("it changes an output by 0.001 of its largest value.")
    more = Remark(kind="repair-unproven", names=names, numbers={"original": 1e-6, "elements": 2})
    more = more.model_copy(update={"numbers": {**more.numbers, "value": 1e-3}})
    assert remark(more).endswith(
        "FP32 is off by 0.001 of an output's largest value with it, and by 1e−6 without; 2 "
        "elements are NaN or infinite only with it."
    )
    outdone = remark(Remark(kind="repair-outdone", names=names))
    assert outdone == "A repair was undone, mask at a, b: no plan with it passes."
    mended = more.model_copy(update={"numbers": {"value": 1e-7, "mended": 1}})
    assert remark(mended).endswith(
        ": 1 element of outputs is NaN or infinite without it, and something else with it."
    )


def test_errors_that_are_no_numbers_are_not_told_as_such():
    names = {"rule": "mask", "nodes": "a"}
    told = remark(Remark(kind="repair-useless", names=names))
    assert told == "A repair was undone, mask at a: everything low fails as it does without it."


@pytest.mark.parametrize(
    ("ended_by", "told", "more"),
    [
        (
            ("work",),
            "the budget of 1500 inferences over the data was spent",
            "--budget inferences=N",
        ),
        (
            ("work", "seconds"),
            "the time budget of 300 s was spent, so another run may give another plan",
            "--budget time=SECONDS",
        ),
        (("seconds", "interrupt"), "the run was interrupted", "let the interrupted search finish"),
    ],
)
def test_what_ended_a_search_and_what_lets_it_go_on(ended_by, told, more):
    ended = search(exhausted=True, budget=1500.0, ended_by=ended_by)
    assert spent(ended) == told
    assert more in MORE[lacking(ended)]


def test_no_time_is_no_matter_of_the_clock():
    ended = search(exhausted=True, budget=1500.0, ended_by=("seconds",), seconds_budget=0.0)
    assert spent(ended) == "the time budget of 0 s was spent"


def test_records_of_before_know_seconds_alone():
    assert spent(search(exhausted=True)) == "the time budget of 300 s was spent"
    assert MORE[lacking(search(exhausted=True))].endswith("more time (--budget time=SECONDS)")
