"""Causes of records that know less."""

import pytest
from pydantic import ValidationError

from halfwise.records import Cause


def test_a_cause_of_an_older_record_opens_and_an_unknown_kind_does_not():
    found = Cause.model_validate({"kind": "no-engine", "builds": [2]})
    assert (found.builds, found.nodes, found.excess, found.band) == ((2,), (), None, None)
    with pytest.raises(ValidationError):
        Cause.model_validate({"kind": "guessed"})
