from halfwise.records import EngineResult, TimeRatio
from tests.unit.reporting.engine_runs import result


def test_rows_of_old_records_compare_with_nothing():
    row = result("mixed", 2, 1.0)
    old = row.model_dump_json(exclude={"ratio"})
    assert EngineResult.model_validate_json(old) == row
    told = row.model_copy(update={"ratio": TimeRatio(low=0.9, high=1.1, rounds=7)})
    assert EngineResult.model_validate_json(told.model_dump_json()) == told
