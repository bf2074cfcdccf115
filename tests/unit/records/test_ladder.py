from typing import get_args

from halfwise.records import FULL_RUNGS, EngineRung, LadderRung, Plan, Run


def test_a_plan_of_before_has_no_int8_and_a_run_no_rungs():
    assert Plan.model_fields["int8"].default == Plan.model_fields["left_out"].default == ()
    assert Plan.model_fields["ranges"].default is None
    assert Run.model_fields["rungs"].default == ()


def test_a_rung_needs_its_type_and_whether_it_passed_alone():
    rung = LadderRung.model_validate({"rung": "int8", "passed": None})
    assert LadderRung.model_validate_json(rung.model_dump_json()) == rung
    assert get_args(EngineRung)[:2] == FULL_RUNGS
    assert get_args(EngineRung)[-1] == "int8"
