from halfwise.records import Repeated, Repetition
from tests.unit.reporting.engine_runs import build
from tests.unit.reporting.runs import verdict


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


def test_records_survive_json():
    found = repetition(row(verdict=verdict(), ratio=1.5), row(failure="missing"))
    assert Repetition.model_validate_json(found.model_dump_json()) == found
