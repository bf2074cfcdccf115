from halfwise.records import Because, KeptNode, NodeName, Plan, Repair
from halfwise.reporting.int8 import int8_lines, left_out_table, nothing_in_int8, told_left_out
from halfwise.reporting.view import report
from tests.unit.reporting.runs import run


def plan(*left_out: KeptNode, int8: tuple[str, ...] = ()) -> Plan:
    return Plan(
        low="fp16",
        keep=(),
        data_movement=(),
        constants=(),
        unsupported=(),
        minimal=True,
        candidates=4,
        casts=0,
        int8=tuple(map(NodeName, int8)),
        left_out=left_out,
    )


def left(**facts) -> KeptNode:
    because = Because(**{k: facts.pop(k) for k in list(facts) if k in Because.model_fields})
    node = NodeName("n")
    return KeptNode(node=node, op="Conv", precision="fp16", because=because, **facts)


def test_a_plan_is_one_of_int8_where_that_was_tried():
    assert not plan().has_int8
    assert plan(int8=("n",)).has_int8
    assert plan(left()).has_int8


def test_reasons_tell_what_a_trial_showed():
    every = (
        left(error_without=3.0),
        left(error_without=float("inf"), nonfinite=True),
        left(contribution=0.7),
        left(),
    )
    whys = [kept.why for kept in told_left_out(every, None)]
    assert "at least 3 × what the search allows" in whys[0]
    assert "NaN or infinite" in whys[1]
    assert "contributes 0.7 ×" in whys[2]
    assert "nothing is known" in whys[3]
    (why,) = (kept.why for kept in told_left_out([left(error_without=1.05)], "top1"))
    assert why == "With INT8 here alone top1 falls by 0.05 more than is allowed."


def test_repairs_are_counted():
    fold = Repair(rule="fold", nodes=(NodeName("n"),))
    for repairs, end in (((), "the rest in FP16."), ((fold,), "the rest in FP16; 1 repair.")):
        made = plan(left(), int8=("m",)).model_copy(update={"repairs": repairs})
        assert next(int8_lines(run(plan=made))) == f"1 of 2 quantisable nodes in INT8, {end}"


def test_where_nothing_has_int8_the_report_says_so_first_and_why():
    refused = run(plan=plan()).model_copy(update={"without_int8": (left(error_without=3.0),)})
    assert nothing_in_int8(refused) == "No node is in INT8: this is the FP16 plan."
    table = left_out_table(refused)
    assert table is not None
    assert table.title == "Left out of INT8, in FP16: 1 of 1 quantisable node"
    assert report(refused).caution.startswith("No node is in INT8")
    assert nothing_in_int8(run(plan=plan(left()))) == ""


def test_a_minimal_plan_excepts_sums_that_are_left_out_with_their_convolution():
    alone = (*int8_lines(run(plan=plan(left(error_without=3.0), int8=("m",)))),)
    assert alone[1].endswith("none of those left out can have INT8 alone.")
    beside = plan(left(error_without=3.0), left(beside=NodeName("n")), int8=("m",))
    assert (*int8_lines(run(plan=beside)),)[1].endswith(
        "alone, apart from sums whose convolution is left out."
    )
