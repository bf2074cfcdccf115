import pytest

from halfwise.records import (
    Criterion,
    IntermediateNonfinite,
    MetricResult,
    OutputError,
    Side,
    Verdict,
)
from tests.unit.records.journey import any_of, assert_unchanged, drawn


@pytest.mark.parametrize(
    "kind", [Criterion, IntermediateNonfinite, MetricResult, OutputError, Side, Verdict]
)
@drawn
def test_goes_to_json_and_back(kind, data):
    assert_unchanged(data.draw(any_of(kind)))


def test_without_any_wish_no_threshold_is_set():
    plain = Criterion()
    assert (plain.max_abs, plain.rel_max, plain.snr_db, plain.cosine) == (None,) * 4
    assert plain.metric is None
    assert plain.agreement == 0.99
    assert plain.metric_drop == 0


def test_a_level_that_does_not_exist_is_refused():
    fields = {"passed": True, "samples": (), "unseen": True, "outputs": {}, "worst_sample": None}
    assert Verdict.model_validate({**fields, "level": "engine"}).level == "engine"
    with pytest.raises(ValueError, match="level"):
        Verdict.model_validate({**fields, "level": "proven"})
