import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.records import (
    Detail,
    Growth,
    Guard,
    Histogram,
    InnerObservation,
    Observation,
    Observations,
)
from tests.unit.records.journey import any_of, assert_unchanged


@pytest.mark.parametrize(
    "kind", [Detail, Growth, Guard, Histogram, InnerObservation, Observation, Observations]
)
@given(st.data())
def test_goes_to_json_and_back(kind, data):
    assert_unchanged(data.draw(any_of(kind)))


def test_a_guard_of_an_unknown_kind_is_refused():
    fields = {"node": "n", "tensor": None, "message": "", "fix": "", "nodes": (), "severity": 1}
    assert Guard.model_validate({**fields, "kind": "overflow"}).kind == "overflow"
    with pytest.raises(ValueError, match="kind"):
        Guard.model_validate({**fields, "kind": "hunch"})
