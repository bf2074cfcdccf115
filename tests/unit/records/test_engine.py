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


def test_a_precision_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="precision"):
        NodePrecision.model_validate({"node": "a", "precision": "fp12"})
