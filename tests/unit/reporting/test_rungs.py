from halfwise.records import RungTried
from halfwise.reporting.plan import rung_caution
from tests.unit.reporting.engine_runs import engines


def test_nothing_is_told_of_an_engine_that_is_low_and_seen_to_be():
    low = RungTried(rung="fp16", end="delivered")
    found = engines(rung="fp16", rungs=(low,))
    assert found.row is not None
    assert rung_caution(found) == rung_caution(engines()) == ""
