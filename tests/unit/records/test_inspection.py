from hypothesis import given

from halfwise.records import EngineTensor
from tests.unit.records.journey import any_of, assert_unchanged


@given(any_of(EngineTensor))
def test_tensors_of_engines_survive_json(record):
    assert_unchanged(record)
