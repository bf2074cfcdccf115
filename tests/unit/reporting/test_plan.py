import pytest

from halfwise.records import (
    Because,
    Criterion,
    Failure,
    KeptNode,
    LadderRung,
    NodeName,
    Remark,
    replace,
)
from halfwise.reporting.plan import kept_table, left_out_table, nothing_in_int8
from halfwise.reporting.remarks import in_words
from halfwise.reporting.view import report
from halfwise.wording import MOST_ROWS
from tests.unit.reporting.facts_planned import int8_plan, left
from tests.unit.reporting.runs import guard, kept, plan, run, verification

INF = float("inf")


def test_many_kept_nodes_are_grouped():
    table = kept_table(run())
    assert table is not None
    assert [row[0].partition(":")[0] for row in table.shown] == [
        *("13 × Pow", "13 × ReduceMean", "13 × Add", "13 × Sqrt"),
    ]
    assert all(row[1].startswith("For example: ") for row in table.shown)


def test_few_kept_nodes_have_a_row_each():
    keep = (
        kept("/norm/Pow", error_without=INF),
        kept("/a", "Add", guard=None, error_without=3.0, reason="No single number stands out."),
        kept("/b", "Add", guard=None, error_without=None, reason="Kept by the rule --keep /b."),
    )
    table = kept_table(run(plan=plan(keep), guards=(guard("/norm/Pow"),)))
    assert table is not None
    assert table.shown == (
        ("/norm/Pow (Pow)", keep[0].reason, "unbounded"),
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
    assert table.shown[1][1] == ruled[0].reason
    assert table.shown[2][1].endswith(free[0].reason)
    assert table.shown[2][2] == "≥ 2 × limit"


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


@pytest.mark.parametrize("known", [0, 3, 30])
def test_nodes_of_which_nothing_is_known_share_the_first_row_without_a_guard(known):
    keep = tuple(kept(f"/n{i}", f"Op{'x' * i}") for i in range(known))
    bare = kept("/bare", guard=None)
    table = kept_table(run(plan=plan((bare, *unknown(43, *"abcdefghijklmnop"), *keep))))
    assert table is not None
    row = table.rows[known]
    assert (row[0], row[2]) == ("43 nodes", "–")


def test_a_single_node_of_which_nothing_is_known_is_named():
    table = kept_table(run(plan=plan(unknown(1, "Add"))))
    assert table is not None
    assert table.shown[0][0] == "/u0 (Add)"


@pytest.mark.parametrize(
    ("excesses", "told"),
    [
        ((1.2,), "≥ 1.2 × limit"),
        ((1.2, 1.3), "≥ 1.2 × limit"),
        ((INF,), "unbounded"),
        ((None,), "–"),
    ],
)
@pytest.mark.parametrize("metric", [None, "top1", "folder/score.py:top1"])
def test_what_a_node_brings_is_a_multiple_of_the_limit(metric, excesses, told):
    keep = tuple(
        kept(f"/n{i % 2}/{i}", error_without=excesses[i % len(excesses)]) for i in range(20)
    )
    table = kept_table(run(plan=plan(keep), criterion=Criterion(metric=metric, metric_drop=0.01)))
    assert table is not None
    assert [row[2] for row in table.shown] == [told]


def test_without_kept_nodes_there_is_no_table():
    assert kept_table(run(plan=plan(()))) is None
    assert kept_table(verification()) is None


def test_the_title_tells_the_types_of_kept_nodes():
    fp32, bf16 = kept("/a"), replace(kept("/b"), precision="bf16")
    for keep, told in (((fp32, bf16), "BF16 (1) and FP32 (1)"), ((bf16,), "BF16")):
        table = kept_table(run(plan=plan(keep=keep)))
        assert table is not None
        assert f" {told}: " in table.title
        assert any("in BF16" in row[0] for row in table.shown)


def test_the_record_of_a_run_is_put_in_words_once() -> None:
    names = {"low": "fp16", "reader": "s", "op": "Softmax"}
    sick = replace(guard("n"), kind="mask", message="", names=names, numbers={"value": -1e9})
    node = KeptNode(node=NodeName("n"), op="Add", guard="mask", because=Because(guard=0))
    spared = Remark(kind="spared", numbers={"elements": 1, "size": 4})
    said = in_words(run(guards=(sick,), plan=plan((node,), remarks=(spared,))))
    assert "s (Softmax)" in said.guards[0].message
    assert said.plan is not None
    assert said.guards[0].message[1:] in said.plan.keep[0].reason
    assert in_words(said) == said


def test_a_plan_is_one_of_int8_where_that_was_tried():
    assert not int8_plan(int8=()).has_int8
    assert int8_plan(int8=("n",)).has_int8
    assert int8_plan(left(), int8=()).has_int8


def test_where_nothing_has_int8_the_report_says_so_first_and_why():
    refused = replace(run(plan=int8_plan(int8=())), without_int8=(left(),))
    assert report(refused).caution.startswith(nothing_in_int8(refused))
    table = left_out_table(refused)
    assert table is not None
    assert len(table.rows) == 1
    assert nothing_in_int8(run(plan=int8_plan(left(), int8=()))) == ""


def test_where_the_plan_in_int8_fails_the_report_says_so_first_and_why():
    why = Failure(kind="rung", text="output y is far off")
    rungs = (
        LadderRung(rung="fp16", passed=True, chosen=True),
        LadderRung(rung="int8", passed=False, failures=(why,)),
    )
    fallen = replace(run(), rungs=rungs)
    assert why.text in nothing_in_int8(fallen)
    assert report(fallen).caution.startswith(nothing_in_int8(fallen))
    lowest = replace(rungs[1], passed=True, chosen=True, failures=())
    assert nothing_in_int8(replace(fallen, rungs=(rungs[0], lowest))) == ""
