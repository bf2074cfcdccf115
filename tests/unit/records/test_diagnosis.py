import pytest
from hypothesis import given
from pydantic import ValidationError

from halfwise.records import Rung, Sign
from tests.unit.records.journey import any_of, assert_unchanged


@given(any_of(Rung))
def test_rungs_survive_json(record):
    assert_unchanged(record)


def test_other_severities_are_refused():
    with pytest.raises(ValidationError):
        Sign.model_validate({"severity": "note", "text": ""})
