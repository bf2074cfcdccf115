import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.records import DynamicAxis, JudgedBatch
from tests.unit.records.journey import any_of, assert_unchanged


@pytest.mark.parametrize("kind", [DynamicAxis, JudgedBatch])
@given(st.data())
def test_goes_to_json_and_back(kind, data):
    assert_unchanged(data.draw(any_of(kind)))
