import pytest

from halfwise.records import EngineLayer, EngineRound, Engines, NodePrecision
from tests.unit.records.journey import any_of, assert_unchanged, drawn
from tests.unit.reporting.engine_runs import engines


@pytest.mark.parametrize("kind", [EngineLayer, EngineRound, NodePrecision])
@drawn
def test_goes_to_json_and_back(kind, data):
    assert_unchanged(data.draw(any_of(kind)))


def test_a_whole_record_goes_to_json_and_back():
    assert_unchanged(engines())
    assert type(engines()) is Engines


def test_an_error_without_bound_is_recorded():
    shown = EngineRound(step="", build=2, keep=(), measured=float("inf"), passed=False)
    assert_unchanged(shown)
    assert EngineRound.model_validate_json(shown.model_dump_json()).measured == float("inf")


@pytest.mark.parametrize(
    ("asked", "enough"),
    [
        ("fp32", {"fp32"}),
        ("tf32", {"fp32", "tf32"}),
        ("bf16", {"fp32", "tf32", "bf16"}),
        (None, {"fp32", "tf32", "bf16", "fp16"}),
    ],
)
def test_a_kept_node_may_be_wider_than_asked_but_not_narrower(asked, enough):
    types = ("fp32", "tf32", "bf16", "fp16")
    given = [
        NodePrecision.model_validate({"node": "a", "precision": p, "asked": asked}) for p in types
    ]
    assert {n.precision for n in given if n.suffices} == enough


def test_a_precision_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="precision"):
        NodePrecision.model_validate({"node": "a", "precision": "fp12"})
