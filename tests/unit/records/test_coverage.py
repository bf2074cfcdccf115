import pytest
from pydantic import ValidationError

from halfwise.records import (
    DynamicAxis,
    FrozenSize,
    JudgedBatch,
    NodeName,
    TensorName,
    Unjudged,
    Verdict,
)
from tests.unit.records.journey import any_of, assert_unchanged, drawn


@pytest.mark.parametrize("kind", [DynamicAxis, JudgedBatch])
@drawn
def test_goes_to_json_and_back(kind, data):
    assert_unchanged(data.draw(any_of(kind)))


def test_records_of_before_judged_everything():
    old = {
        "passed": True,
        "level": "emulated",
        "samples": ["a"],
        "unseen": True,
        "outputs": {},
        "worst_sample": None,
    }
    verdict = Verdict.model_validate(old)
    assert (verdict.unjudged, verdict.judged) == ((), True)


def test_infinities_survive_a_record():
    found = Unjudged(kind="zeros", name="y", reference=float("inf"))
    assert Unjudged.model_validate_json(found.model_dump_json()) == found


def test_it_comes_back_from_json():
    found = FrozenSize(
        axes={TensorName("x"): 0},
        batch=True,
        given=1,
        runs=2,
        nodes=(NodeName("r"),),
        shown=True,
        failure="It failed.",
    )
    assert FrozenSize.model_validate_json(found.model_dump_json()) == found
    with pytest.raises(ValidationError):
        FrozenSize.model_validate(found.model_dump() | {"other": 1})
