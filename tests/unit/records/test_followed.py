"""Records of where an error comes from: those without newer fields can still be read."""

from halfwise.records import Followed
from tests.unit.records.journey import any_of, assert_unchanged, drawn


@drawn
def test_goes_to_json_and_back(data):
    assert_unchanged(data.draw(any_of(Followed)))


def test_older_records_say_nothing_of_decisions_channels_and_enlarged_errors():
    origin = {"node": "/a", "kept": ["/a"], "error": 0.5}
    old = {"kept": [], "error": 2.0, "tried": ["/a"], "origin": origin, "accumulates": False}
    found = Followed.model_validate(old)
    assert (found.decided, found.channel, found.samples) == (None, None, 1)
    assert found.origin is not None
    assert (found.origin.read, found.origin.made) == (None, None)
