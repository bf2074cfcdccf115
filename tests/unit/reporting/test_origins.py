"""Words on where an error comes from."""

import math

import pytest

from halfwise.records import Decided
from halfwise.reporting.remarks import flipped
from tests.unit.reporting.facts_planned import DECIDED


@pytest.mark.parametrize(("read", "told"), [(0.0, False), (math.inf, False), (1e-9, True)])
def test_floats_that_are_exact_until_they_are_read_say_nothing(read, told):
    found = Decided.model_validate(DECIDED).model_copy(update={"read": read})
    assert ("reading" in flipped(found, "what is allowed")) is told
