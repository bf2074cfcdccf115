from math import inf

import pytest

from halfwise.records import (
    Criterion,
    Curve,
    Failure,
    NodeName,
    Place,
    Point,
    Proof,
    Remade,
    Remark,
    Repair,
    TensorName,
)
from halfwise.reporting.causes import remade_line, repair_lines
from halfwise.reporting.view import report
from tests.unit.reporting.runs import guard, kept, plan, run, verdict

EQUAL = Proof(samples={"calibration": 6, "widened": 4}, original=None, repaired=0.0, equal=True)
SCALED = Repair(
    rule="scale",
    nodes=(NodeName("/a.0"), NodeName("/b.0")),
    exponents={TensorName("a"): -10, TensorName("b"): 3, TensorName("b@output"): 0},
    identity="(x·s)·W/s = x·W",
    guards=(Place(kind="overflow", node=NodeName("/a.0")),),
    before=inf,
    after=0.25,
    proof=EQUAL,
    advice="Divide the input by 1024.",
)


def lines(*repairs, remarks=(), **changed):
    made = plan(()).model_copy(update={"repairs": repairs, "remarks": remarks})
    found = repair_lines(run(plan=made, **changed))
    return (found.title, *found.lines) if found is not None else ()


def test_each_repair_is_told_with_its_numbers_and_what_code_could_do():
    assert lines() == ()
    assert lines(SCALED) == (
        "Repairs: 1",
        "scale (scaled by powers of two, 2 tensors 2^-10 to 2^3, as (x·s)·W/s = x·W) at /a.0, "
        "/b.0; error with everything low: infinite before, 0.25 × the limit after; in FP32 equal "
        "bit for bit on 10 samples, 4 of them widened.",
        "Fixed: overflow at /a.0.",
        "In the training or export code: Divide the input by 1024.",
    )


@pytest.mark.parametrize(
    ("rooms", "told"), [((8.0, None), ""), ((9.0, 7.9), "7.9 ×"), ((0.5,), "")]
)
def test_that_scaled_tensors_have_little_room_is_told(rooms, told):
    found = lines(*(SCALED.model_copy(update={"room": room}) for room in rooms))
    said = f"Scaled tensors stay in range up to {told} the values seen."
    assert [line for line in found if "stay in range" in line] == ([said] if told else [])


def test_with_a_metric_the_error_that_a_repair_saves_is_not_told():
    judged = Criterion(metric="top1", metric_drop=0.01)
    assert "/b.0; in FP32 equal bit for bit" in lines(SCALED, criterion=judged)[1]


def test_alike_repairs_share_a_line_and_others_do_not():
    off = EQUAL.model_copy(update={"equal": False, "repaired": 2e-6})
    alike = [
        SCALED.model_copy(update={"nodes": (f"/a.{i}",), "advice": f"Divide {i}."})
        for i in range(20)
    ]
    folded = SCALED.model_copy(update={"rule": "mask", "proof": off, "guards": (), "advice": ""})
    far = folded.model_copy(update={"proof": off.model_copy(update={"original": 3e-6})})
    title, shared, _, advice, own, other = lines(*alike, folded, far)
    assert title == "Repairs: 22"
    assert shared.startswith("20 × scale (")
    assert "at 20 nodes (/a.{0–19}); " in shared
    assert advice.endswith("Divide 0. Divide 1. Divide 2. Divide 3. (and 16 more alike)")
    assert "in FP32 off by 2e−6 of an output's largest value, on 10 samples" in own
    assert "2e−6 of an output's largest value, the original by 3e−6 from FP64, on" in other


def test_what_was_undone_is_told_once():
    useless = Remark(
        kind="repair-useless",
        names={"rule": "scale", "nodes": "/a"},
        numbers={"before": 3.0, "after": 2.9},
    )
    title, *undone, more = lines(remarks=[useless] * 5)
    assert title == "Repairs: 0, 5 undone"
    assert len(undone) == 4
    assert more == "And 1 more undone: see run.json."
    assert undone[0].startswith(
        "A repair was undone, scale at /a: everything low is off by 3 times"
    )
    undone = plan(()).model_copy(update={"remarks": (useless,)})
    shown = [part.title for part in report(run(plan=undone)).parts]
    assert "Repairs: 0, 1 undone" in shown
    assert "Remarks" not in shown


def test_records_of_before_have_none():
    assert repair_lines(run(plan=None)) is None
    assert not any("Repairs" in part.title for part in report(run()).parts)


@pytest.mark.parametrize(("before", "after"), [(892.0, inf), (inf, inf), (2.0, 2.0), (None, 1.0)])
def test_an_error_that_did_not_fall_is_not_told_as_what_a_repair_brought(before, after):
    _, line, *_ = lines(SCALED.model_copy(update={"before": before, "after": after}))
    assert "error" not in line


def test_what_repairs_spare_is_told():
    nodes = tuple(NodeName(f"n{i}") for i in range(30))
    points = [
        Point(kept="0-3", count=4, evaluation=1, cost=1.1, error=2.0, is_bound=False),
        Point(kept="0-13", count=14, evaluation=2, cost=1.5, error=0.5, is_bound=False),
        Point(kept="0-1", count=2, evaluation=3, cost=1.0, error=0.0, is_bound=True),
    ]
    curve = Curve(nodes=nodes, points=(), unrepaired=Curve(nodes=nodes, points=tuple(points)))
    few, many = ([kept(f"k{i}") for i in range(n)] for n in (1, 14))
    told = []
    for keep in (few, many):
        with_one = plan(tuple(keep)).model_copy(update={"repairs": (SCALED,)})
        found = repair_lines(run(plan=with_one, curve=curve))
        assert found is not None
        told.append(found.lines[0])
    assert told[0] == (
        "Kept in FP32: 1; without repairs 14, in the smallest plan that was tried and passed."
    )
    assert told[1].startswith("scale")


def test_where_only_the_headroom_fails_the_report_says_so():
    within = verdict(passed=True)
    near = kept("/x", guard="headroom")
    guards = (guard("/x", "headroom", severity=0.9),)
    held = report(run(plan=plan((near,)), guards=guards, baseline=within))
    assert "within tolerance, but values inside overflow at 2 × the ranges seen." in str(held)
    mended = plan(()).model_copy(update={"repairs": (SCALED,)})
    text = str(report(run(plan=mended, guards=(), baseline=within)))
    assert "within tolerance on the held-out samples, but not, with a margin of 0.8 and a " in text
    assert "on the calibration samples; that was repaired." in text


def test_a_norm_that_became_one_node_is_not_said_to_need_no_fp32():
    normed = SCALED.model_copy(update={"rule": "one-node"})
    text = str(report(run(plan=plan(()).model_copy(update={"repairs": (normed,)}))))
    assert "No node needs FP32; nodes that were fused compute in FP32 inside." in text


REPAIR = Repair(rule="mask", nodes=(NodeName("n"),))
PROOF = Proof(samples={"calibration": 2, "widened": 3}, original=None, repaired=2e-7, equal=False)
NAMED = "The candidate's metadata lists 1 repair (mask)"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (Remade(repairs=(REPAIR,), failures=(Failure(kind="unmade"),)), "; it does not hold."),
        (Remade(repairs=(REPAIR,), proof=PROOF), "value on 5 samples."),
    ],
)
def test_it_says_what_holds(found: Remade, told: str) -> None:
    line = remade_line(found)
    assert line.startswith(NAMED)
    assert line.endswith(told)


def test_an_unnamed_difference_is_told_and_judged_by_outputs_alone() -> None:
    found = Remade(repairs=(), differs="/Add")
    assert found.holds
    assert remade_line(found) == (
        "The candidate's graph differs from the original, first at /Add, and its metadata lists no "
        "repairs: only outputs were compared."
    )
