"""Words on what is acceptable."""

from halfwise.records import Criterion
from halfwise.reporting.allowed import allowed


def test_thresholds():
    assert allowed(Criterion()) == "rel max ≤ 0.01"
    assert allowed(Criterion(max_abs=0.5, snr_db=40)) == "max abs ≤ 0.5, SNR dB ≥ 40"


def test_a_default_of_a_metric_tells_whose_it_is():
    given = Criterion(metric="top1", metric_drop=0.01)
    assert allowed(given) == "top1 may fall by 0.01"
    default = given.model_copy(update={"drop_source": "MLPerf"})
    assert allowed(default) == "top1 may fall by 0.01 by default (MLPerf)"
