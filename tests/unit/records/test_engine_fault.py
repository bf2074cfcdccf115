from hypothesis import given

from halfwise.records import EngineDiagnosis
from tests.unit.records.journey import any_of, assert_unchanged


@given(any_of(EngineDiagnosis))
def test_they_survive_json(record):
    assert_unchanged(record)
