from typing import get_args

import pytest

from halfwise.records import (
    Because,
    Criterion,
    KeptNode,
    NodeName,
    Plan,
    Remark,
    RemarkKind,
    Repair,
)
from halfwise.reporting.plan import (
    int8_lines,
    kept_table,
    left_out_table,
    nothing_in_int8,
)
from halfwise.reporting.remarks import REMARKS, explain_left_out, in_words
from halfwise.reporting.view import report
from halfwise.wording import MOST_ROWS
from tests.unit.reporting.runs import guard, kept, plan, run, verification

INF = float("inf")


def test_many_kept_nodes_are_grouped():
    table = kept_table(run())
    assert table is not None
    assert table.title == (
        "Kept in FP32: 52 of 258 compute nodes; the search uses 0.8 of the tolerance"
    )
    assert [c.title for c in table.columns] == ["node", "why", "without it"]
    assert table.shown[0] == (
        "13 × Pow: /blocks.{0–5}/norm1/Pow, /blocks.{0–5}/norm2/Pow, /norm/Pow",
        "For example: the square of /blocks.0/norm1/Pow_input reaches 2.8e7, beyond FP16's 65504",
        "≥ 152 × limit",
    )
    assert len(table.shown) == 4
    assert "needed by" not in table.shown[1][1]
    assert "needed by /blocks.0/norm1/ReduceMean: " in table.shown[2][1]


def test_ranges_are_told_where_headroom_counts():
    near = guard("/norm/Pow", kind="headroom")
    table = kept_table(run(guards=(near,)))
    assert table is not None
    assert table.title.endswith("of the tolerance, at 2 × the ranges seen")


def test_few_kept_nodes_have_a_row_each():
    keep = (
        kept("/norm/Pow", error_without=INF),
        kept("/a", "Add", guard=None, error_without=3.0, reason="No single number stands out."),
        kept("/b", "Add", guard=None, error_without=None, reason="Kept by the rule --keep /b."),
    )
    table = kept_table(run(plan=plan(keep), guards=(guard("/norm/Pow"),)))
    assert table is not None
    assert table.shown == (
        (
            "/norm/Pow (Pow)",
            "the square of /norm/Pow_input reaches 2.8e7, beyond FP16's 65504",
            "unbounded",
        ),
        ("/a (Add)", "No single number stands out.", "≥ 3 × limit"),
        ("/b (Add)", "Kept by the rule --keep /b.", "–"),
    )


def test_rules_have_rows_of_their_own_and_named_causes_come_first():
    ruled = tuple(
        kept(f"/a.{i}", "Add", guard=None, error_without=None, reason="Kept by the rule --keep /a")
        for i in range(20)
    )
    free = tuple(
        kept(f"/b.{i}", "Add", guard=None, error_without=2.0 + i, reason=f"Nothing, {i}")
        for i in range(20)
    )
    table = kept_table(run(plan=plan((*ruled, *free, kept("/n/Pow"))), guards=()))
    assert table is not None
    assert [row[0] for row in table.shown] == [
        "/n/Pow (Pow)",
        "20 × Add: /a.{0–19}",
        "20 × Add: /b.{0–19}",
    ]
    assert table.shown[1][1] == "Kept by the rule --keep /a"
    assert table.shown[2][1:] == ("For example: Nothing, 0", "≥ 2 × limit")


def test_more_groups_than_rows_are_counted():
    keep = tuple(kept(f"/n{i}", f"Op{'x' * i}") for i in range(30))
    table = kept_table(run(plan=plan(keep)))
    assert table is not None
    assert len(table.shown) == MOST_ROWS + 1
    assert table.shown[-1][0] == "and 18 more"


def unknown(count: int, *ops: str):
    reason = "Not lowered before the search ended; nothing is known of it."
    return tuple(
        kept(
            f"/u{i}",
            ops[i % len(ops)],
            guard=None,
            error_without=None,
            reason=reason,
            unknown=True,
        )
        for i in range(count)
    )


@pytest.mark.parametrize(("known", "more"), [(0, ""), (3, "more "), (30, "more ")])
def test_nodes_of_which_nothing_is_known_share_a_row(known, more):
    keep = tuple(kept(f"/n{i}", f"Op{'x' * i}") for i in range(known))
    table = kept_table(run(plan=plan((*unknown(43, *"abcdefghijklmnop"), *keep))))
    assert table is not None
    assert len(table.shown) == min(known + 1, MOST_ROWS) + (known > MOST_ROWS)
    assert table.shown[min(known, MOST_ROWS - 1)] == (
        f"43 {more}nodes",
        "Not lowered alone in this plan before the search ended.",
        "–",
    )


def test_a_single_node_of_which_nothing_is_known_is_named():
    table = kept_table(run(plan=plan(unknown(1, "Add"))))
    assert table is not None
    assert table.shown[0][0] == "/u0 (Add)"


@pytest.mark.parametrize(
    ("excesses", "told"),
    [
        ((1.042,), "top1 −0.052"),
        ((1.042, 1.2), "top1 −0.052 or more"),
        ((INF,), "unbounded"),
        ((None,), "–"),
    ],
)
@pytest.mark.parametrize("metric", ["top1", "folder/score.py:top1"])
def test_a_metric_falls_instead(metric, excesses, told):
    """By what it falls beyond the allowance, which is one less than the excess, and by that."""
    keep = tuple(
        kept(f"/n{i % 2}/{i}", error_without=excesses[i % len(excesses)]) for i in range(20)
    )
    table = kept_table(run(plan=plan(keep), criterion=Criterion(metric=metric, metric_drop=0.01)))
    assert table is not None
    assert [row[2] for row in table.shown] == [told]


def test_without_kept_nodes_there_is_no_table():
    assert kept_table(run(plan=plan(()))) is None
    assert kept_table(verification()) is None


def test_the_record_of_a_run_is_put_in_words_once() -> None:
    names = {"low": "fp16", "reader": "s", "op": "Softmax"}
    told = {"message": "", "names": names, "numbers": {"value": -1e9}}
    sick = guard("n").model_copy(update={"kind": "mask", **told})
    node = KeptNode(node=NodeName("n"), op="Add", guard="mask", because=Because(guard=0))
    spared = Remark(kind="spared", numbers={"elements": 1, "size": 4})
    said = in_words(run(guards=(sick,), plan=plan((node,), remarks=(spared,))))
    assert "is selected before s (Softmax)" in said.guards[0].message
    assert said.plan is not None
    assert said.guards[0].message[1:] in said.plan.keep[0].reason
    assert in_words(said) == said


def test_every_kind_of_remark_has_words() -> None:
    assert REMARKS.keys() == set(get_args(RemarkKind))


def test_the_title_tells_the_types_of_kept_nodes():
    fp32, bf16 = kept("/a"), kept("/b").model_copy(update={"precision": "bf16"})
    for keep, told in (((fp32, bf16), "BF16 (1) and FP32 (1)"), ((bf16,), "BF16")):
        table = kept_table(run(plan=plan(keep=keep)))
        assert table is not None
        assert table.title.startswith(f"Kept in {told}: {len(keep)} of ")
        assert any("in BF16" in row[0] for row in table.shown)


def int8_plan(*left_out: KeptNode, int8: tuple[str, ...] = ()) -> Plan:
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
    assert not int8_plan().has_int8
    assert int8_plan(int8=("n",)).has_int8
    assert int8_plan(left()).has_int8


def test_reasons_tell_what_a_trial_showed():
    every = (
        left(error_without=3.0),
        left(error_without=float("inf"), nonfinite=True),
        left(contribution=0.7),
        left(),
    )
    whys = [kept.reason for kept in explain_left_out(every, None)]
    assert "at least 3 × what the search allows" in whys[0]
    assert "NaN or infinite" in whys[1]
    assert "contributes 0.7 ×" in whys[2]
    assert whys[3].startswith("Not tried alone: with INT8 here alone the plan would cost more")
    (why,) = (kept.reason for kept in explain_left_out([left(error_without=1.05)], "top1"))
    assert why == "With INT8 here alone top1 falls by 0.05 more than is allowed."


def test_repairs_are_counted():
    fold = Repair(rule="mask", nodes=(NodeName("n"),))
    for repairs, end in (((), "the rest in FP16."), ((fold,), "the rest in FP16; 1 repair.")):
        made = int8_plan(left(), int8=("m",)).model_copy(update={"repairs": repairs})
        assert next(int8_lines(run(plan=made))) == f"1 of 2 quantisable nodes in INT8, {end}"


def test_where_nothing_has_int8_the_report_says_so_first_and_why():
    refused = run(plan=int8_plan()).model_copy(update={"without_int8": (left(error_without=3.0),)})
    assert nothing_in_int8(refused) == "No node is in INT8: this is the FP16 plan."
    table = left_out_table(refused)
    assert table is not None
    assert table.title == "Left out of INT8, in FP16: 1 of 1 quantisable node"
    assert report(refused).caution.startswith("No node is in INT8")
    assert nothing_in_int8(run(plan=int8_plan(left()))) == ""
    some = refused.model_copy(update={"without_int8": (left(error_without=3.0), left())})
    assert nothing_in_int8(some).endswith(" 1 of 2 candidates were not tried alone.")


def test_a_minimal_plan_excepts_sums_that_are_left_out_with_their_convolution():
    alone = (*int8_lines(run(plan=int8_plan(left(error_without=3.0), int8=("m",)))),)
    assert alone[1].endswith("none of those left out can have INT8 alone and cost less.")
    beside = int8_plan(left(error_without=3.0), left(beside=NodeName("n")), int8=("m",))
    assert (*int8_lines(run(plan=beside)),)[1].endswith(
        "alone and cost less, apart from sums whose convolution is left out."
    )
