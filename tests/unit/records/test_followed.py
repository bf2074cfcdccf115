"""Records of where an error comes from: those without newer fields can still be read."""

from halfwise.records import Followed
from tests.unit.records.journey import any_of, assert_unchanged, drawn


@drawn
def test_goes_to_json_and_back(data):
    assert_unchanged(data.draw(any_of(Followed)))
