from halfwise.records import Because, KeptNode, NodeName, Plan
from halfwise.reporting.int8 import told_left_out


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
    every = plan(
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
    (why,) = (kept.why for kept in told_left_out(plan(left(error_without=1.05)), "top1"))
    assert why == "With INT8 here alone top1 falls by 0.05 more than is allowed."
