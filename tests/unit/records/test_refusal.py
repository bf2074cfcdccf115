import pytest
from pydantic import ValidationError

from halfwise.records import EngineRound, Engines, Move, NodeName, Refusal


@pytest.mark.parametrize(
    "record",
    [
        Move(kind="level", refused=2, ends=("a", "b"), level=5),
        Refusal(kind="crash", build=3, ends=("a", "b"), nodes=(NodeName("a"),), avoided=2),
    ],
)
def test_what_is_stored_is_read(record):
    assert type(record).model_validate_json(record.model_dump_json()) == record


def test_only_kinds_that_are_known():
    with pytest.raises(ValidationError):
        Move.model_validate({"kind": "luck", "refused": 1})
    with pytest.raises(ValidationError):
        Refusal.model_validate({"kind": "luck", "build": 1})


def test_runs_of_before_have_neither():
    old = {"step": "the plan of the emulation", "build": 2, "keep": (), "passed": True}
    assert EngineRound.model_validate(old).move is None
    assert Engines.model_fields["refusals"].default == ()
