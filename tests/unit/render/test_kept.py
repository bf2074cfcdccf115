import pytest

from halfwise.records import Criterion
from halfwise.render.kept import kept_table
from halfwise.render.parts import MOST_ROWS
from tests.unit.render.runs import guard, kept, plan, run, verification

INF = float("inf")


def test_many_kept_nodes_are_grouped():
    table = kept_table(run())
    assert table is not None
    assert table.title == (
        "Kept in FP32: 52 of 258 compute nodes; the limit is 0.8 of what is allowed"
    )
    assert [c.title for c in table.columns] == ["node", "why", "without it"]
    assert table.rows[0] == (
        "13 × Pow: /blocks.{0–5}/norm1/Pow, /blocks.{0–5}/norm2/Pow, /norm/Pow",
        "For example: the square of /blocks.0/norm1/Pow_input reaches 2.8e+07, beyond FP16's 65504",
        "≥ 152 × limit",
    )
    assert len(table.rows) == 4
    assert "needed by" not in table.rows[1][1]
    assert "needed by /blocks.0/norm1/ReduceMean: " in table.rows[2][1]


def test_few_kept_nodes_have_a_row_each():
    keep = (
        kept("/norm/Pow", error_without=INF),
        kept("/a", "Add", guard=None, error_without=3.0, reason="No single number stands out."),
        kept("/b", "Add", guard=None, error_without=None, reason="Kept by the rule --keep /b."),
    )
    table = kept_table(run(plan=plan(keep), guards=(guard("/norm/Pow"),)))
    assert table is not None
    assert table.rows == (
        (
            "/norm/Pow (Pow)",
            "the square of /norm/Pow_input reaches 2.8e+07, beyond FP16's 65504",
            "unbounded",
        ),
        ("/a (Add)", "No single number stands out.", "≥ 3 × limit"),
        ("/b (Add)", "Kept by the rule --keep /b.", "–"),
    )


def test_few_kept_nodes_of_one_reason_share_a_row():
    told = guard("/n/Pow", nodes=("/n/Pow", "/n/Mean"))
    keep = (kept("/n/Pow", error_without=3.0), kept("/n/Mean", "ReduceMean", error_without=2.0))
    table = kept_table(run(plan=plan(keep), guards=(told,)))
    assert table is not None
    assert table.rows == (
        (
            "/n/Pow (Pow); /n/Mean (ReduceMean)",
            "the square of /n/Pow_input reaches 2.8e+07, beyond FP16's 65504",
            "≥ 2 × limit",
        ),
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
    assert [row[0] for row in table.rows] == [
        "/n/Pow (Pow)",
        "20 × Add: /a.{0–19}",
        "20 × Add: /b.{0–19}",
    ]
    assert table.rows[1][1] == "Kept by the rule --keep /a"
    assert table.rows[2][1:] == ("For example: Nothing, 0", "≥ 2 × limit")


def test_more_groups_than_rows_are_counted():
    keep = tuple(kept(f"/n{i}", f"Op{'x' * i}") for i in range(30))
    table = kept_table(run(plan=plan(keep)))
    assert table is not None
    assert len(table.rows) == MOST_ROWS + 1
    assert table.rows[-1][0] == "and 18 more"


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
    assert [row[2] for row in table.rows] == [told]


def test_without_kept_nodes_there_is_no_table():
    assert kept_table(run(plan=plan(()))) is None
    assert kept_table(verification()) is None
