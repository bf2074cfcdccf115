from math import inf

import pytest

from halfwise.records import NodeName, Place, Proof, Remade, Remark, Repair, TensorName, replace
from halfwise.reporting.causes import repair_lines
from halfwise.reporting.view import report
from tests.unit.reporting.runs import plan, run

EQUAL = Proof(samples={"calibration": 6, "widened": 4}, repaired=0.0, equal=True)
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
    made = replace(plan(()), repairs=repairs, remarks=remarks)
    found = repair_lines(run(plan=made, **changed))
    return (found.title, *found.lines) if found is not None else ()


@pytest.mark.parametrize(
    ("rooms", "told"), [((8.0, None), ""), ((9.0, 7.9), "7.9 ×"), ((0.5,), "")]
)
def test_that_scaled_tensors_have_little_room_is_told(rooms, told):
    found = lines(*(replace(SCALED, room=room) for room in rooms))
    said = [line for line in found if line.startswith("Scaled")]
    assert [told in line for line in said] == ([True] if told else [])


def test_alike_repairs_share_a_line_and_others_do_not():
    off = replace(EQUAL, equal=False, repaired=2e-6)
    alike = [
        replace(SCALED, nodes=(NodeName(f"/a.{i}"),), advice=f"Divide {i}.") for i in range(20)
    ]
    folded = replace(SCALED, rule="mask", proof=off, guards=(), advice="")
    far = replace(folded, proof=replace(off, repaired=3e-6))
    title, shared, _, advice, own, other = lines(*alike, folded, far)
    assert title == "Repairs: 22"
    assert shared.startswith("20 × scale (")
    assert "(/a.{0–19})" in shared
    assert ("Divide 3." in advice, "Divide 4." in advice) == (True, False)
    assert ["3e−6" in line for line in (shared, own, other)] == [False, False, True]


def test_many_faults_that_a_repair_fixes_are_one_list():
    guards = tuple(Place(kind="square", node=NodeName(f"/{n}.{i}")) for n in "abcde" for i in "01")
    (line,) = (x for x in lines(replace(SCALED, guards=guards)) if "Fixed" in x)
    assert "/a.{0, 1}" in line
    assert ". " not in line[:-1]
    assert not line.endswith("..")


def test_what_was_undone_is_told_once():
    useless = Remark(
        kind="repair-useless",
        names={"rule": "scale", "nodes": "/a"},
    )
    title, *undone, more = lines(remarks=[useless] * 5)
    assert title == "Repairs: 0, 5 undone"
    assert len(undone) == 4
    assert more.startswith("And 1 more")
    undone = replace(plan(()), remarks=(useless,))
    shown = [part.title for part in report(run(plan=undone)).parts]
    assert "Repairs: 0, 1 undone" in shown
    assert "Remarks" not in shown


def test_where_nothing_is_repaired_nothing_is_told():
    assert lines() == ()
    assert repair_lines(run(plan=None)) is None
    assert not any("Repairs" in part.title for part in report(run()).parts)


@pytest.mark.parametrize(("before", "after"), [(892.0, inf), (inf, inf), (2.0, 2.0), (None, 1.0)])
def test_an_error_that_did_not_fall_is_not_told_as_what_a_repair_brought(before, after):
    _, line, *_ = lines(replace(SCALED, before=before, after=after))
    assert "error" not in line


def test_an_unnamed_difference_is_no_failure():
    assert Remade(repairs=(), differs="/Add").holds
