from math import inf

from halfwise.records import NodeName, Proof, Remark, Repair, TensorName
from halfwise.reporting.repairs import repair_lines
from halfwise.reporting.view import report
from tests.unit.reporting.runs import plan, run

EQUAL = Proof(samples={"calibration": 6, "widened": 4}, original=None, repaired=0.0, equal=True)
SCALED = Repair(
    rule="scale",
    nodes=(NodeName("/a.0"), NodeName("/b.0")),
    exponents={TensorName("a"): -10, TensorName("b"): 3},
    identity="(x·s)·W/s = x·W",
    guards=("overflow at /a.0",),
    before=inf,
    after=0.25,
    proof=EQUAL,
    advice="Divide the input by 1024.",
)


def lines(*repairs, remarks=()):
    found = repair_lines(
        run(plan=plan(()).model_copy(update={"repairs": repairs, "remarks": remarks}))
    )
    return (found.title, *found.lines) if found is not None else ()


def test_each_repair_is_told_with_its_numbers_and_what_code_could_do():
    assert lines() == ()
    assert lines(SCALED) == (
        "Repairs: 1",
        "scale (stored times powers of two, 2 tensors 2^-10 to 2^3, as (x·s)·W/s = x·W) at /a.0, "
        "/b.0; error of everything low infinite before, 0.25 × the limit after; in FP32 equal bit "
        "for bit on 10 samples, 4 of them widened.",
        "Mended: overflow at /a.0.",
        "In the training or export code: Divide the input by 1024.",
    )


def test_alike_repairs_share_a_line_and_others_do_not():
    off = EQUAL.model_copy(update={"equal": False, "repaired": 2e-6})
    alike = [
        SCALED.model_copy(update={"nodes": (f"/a.{i}",), "advice": f"Divide {i}."})
        for i in range(20)
    ]
    folded = SCALED.model_copy(update={"rule": "fold", "proof": off, "guards": (), "advice": ""})
    far = folded.model_copy(update={"proof": off.model_copy(update={"original": 3e-6})})
    title, shared, _, advice, own, other = lines(*alike, folded, far)
    assert title == "Repairs: 22"
    assert shared.startswith("20 × scale (")
    assert "at /a.{0–19}; " in shared
    assert advice.endswith("Divide 0. Divide 1. Divide 2. (and 17 more alike)")
    assert "in FP32 2e−6 of an output's largest value off, on 10 samples" in own
    assert "2e−6 of an output's largest value off, the original 3e−6 off FP64, on" in other


def test_what_was_undone_is_told_once():
    useless = Remark(
        kind="repair-useless",
        names={"rule": "scale", "nodes": "/a"},
        numbers={"before": 3.0, "after": 2.9},
    )
    title, *undone = lines(remarks=[useless] * 5)
    assert title == "Repairs: 0, 5 undone"
    assert len(undone) == 3
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
