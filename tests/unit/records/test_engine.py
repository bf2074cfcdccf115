"""Nodes in engines, and runs repeated on workers."""

import pytest

from halfwise.records import NodePrecision, Repeated, Repetition
from tests.unit.reporting.engine_runs import build
from tests.unit.reporting.runs import verdict


@pytest.mark.parametrize(
    ("asked", "enough"),
    [
        ("fp32", {"fp32"}),
        ("tf32", {"fp32", "tf32"}),
        ("bf16", {"fp32", "tf32", "bf16"}),
        (None, {"fp32", "tf32", "bf16", "fp16"}),
    ],
)
def test_a_kept_node_may_be_wider_than_asked_but_not_narrower(asked, enough):
    types = ("fp32", "tf32", "bf16", "fp16")
    given = [
        NodePrecision.model_validate({"node": "a", "precision": p, "asked": asked}) for p in types
    ]
    assert {n.precision for n in given if n.suffices} == enough


def row(**changed):
    return Repeated(name="w", worker=None, what="rebuilt", **changed)


def repetition(*rows):
    return Repetition(run="run", samples=3, rows=rows)


def test_a_repetition_passes_where_every_row_does():
    good, bad = row(verdict=verdict()), row(verdict=verdict(passed=False))
    assert repetition(good, good).passed
    assert not repetition(good, bad).passed
    assert not repetition(good, row(failure="missing")).passed


def test_workers_that_only_failed_to_come_up_are_of_no_use():
    assert not repetition(row(failure="missing")).usable
    assert repetition(row(failure="missing"), row(build=build(1, "x"))).usable
    assert repetition(row(verdict=verdict(passed=False))).usable
