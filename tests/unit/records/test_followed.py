"""Records of where an error comes from: those without newer fields can still be read."""

from halfwise.records import Followed


def test_older_records_say_nothing_of_decisions_and_enlarged_errors():
    origin = {"node": "/a", "kept": ["/a"], "error": 0.5}
    old = {"kept": [], "error": 2.0, "tried": ["/a"], "origin": origin, "accumulates": False}
    found = Followed.model_validate(old)
    assert (found.decided, found.samples) == (None, 1)
    assert found.origin is not None
    assert (found.origin.read, found.origin.made) == (None, None)
