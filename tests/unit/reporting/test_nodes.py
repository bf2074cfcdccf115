import pytest

from halfwise.records import (
    Followed,
    IntermediateNonfinite,
    NodeName,
    Repair,
    TensorName,
    Unsupported,
)
from halfwise.reporting.nodes import grown_with, node_facts, planned_words, type_words
from tests.unit.reporting.runs import (
    guard,
    kept,
    plan,
    run,
    verdict,
    verification,
)

POW, MOVE, PIN = NodeName("/norm/Pow"), NodeName("/Reshape"), NodeName("/Custom")
REPAIR = Repair(rule="mask", nodes=(POW,), identity="(x + b)·w = x·w + b·w")


def told(record, node, seen=None):
    facts = node_facts(record, seen)[node]
    return dict(planned_words(facts))


def test_what_a_plan_says_of_a_node():
    found = run(
        plan=plan(
            (kept(POW),),
            data_movement=(MOVE,),
            unsupported=(Unsupported(node=PIN, op="Custom", reason="ONNX does not know it"),),
            lowered={NodeName("/low"): "--lower /low"},
            int8=(NodeName("/fc"),),
            repairs=(REPAIR, REPAIR),
        ),
        guards=(guard(POW),),
    )
    words = told(found, POW)
    assert words["kept"] == "FP32"
    assert words["reason"] == f"The square of {POW}_input reaches 2.8e7; lowered, it gives NaN."
    assert words["error-if-lowered"] == "152 × what the search allows"
    assert words["suspected"] == found.guards[0].message
    assert words["repaired"] == "mask, masks that stay in range: (x + b)·w = x·w + b·w"
    assert words["repaired-2"] == words["repaired"]
    assert "moves data between kept nodes" in told(found, MOVE)["reason"]
    assert told(found, PIN)["reason"] == "FP32 in any case: ONNX does not know it."
    assert told(found, NodeName("/low"))["reason"] == "Lowered by the rule --lower /low."
    assert "INT8" in told(found, NodeName("/fc"))["reason"]


def test_words_are_clean():
    name = "a\x1b[31m\u202e" + "n" * 10_000
    found = run(plan=plan((kept(name),)), guards=(guard(name),))
    for text in told(found, NodeName(name)).values():
        assert text.isprintable()
        assert len(text) < 300


@pytest.mark.parametrize(
    ("op", "read", "given", "words"),
    [
        ("Conv", ["FLOAT16", "FLOAT16"], ["FLOAT16"], "FP16"),
        ("LayerNormalization", ["BFLOAT16"], ["BFLOAT16", "FLOAT"], "BF16/FP32"),
        ("Cast", ["FLOAT"], ["FLOAT16"], "FP32 → FP16"),
        ("Cast", ["INT64"], ["FLOAT"], "INT64 → FP32"),
        ("TopK", ["FLOAT", "INT64"], ["FLOAT", "INT64"], "FP32"),
        ("Shape", ["FLOAT"], ["INT64"], "INT64"),
        ("Odd", [], [], ""),
        ("Cast", ["FLOAT"], [], ""),
    ],
)
def test_types_of_a_node(op, read, given, words):
    assert type_words(op, read, given) == words


def test_what_verify_finds_inside_is_told_at_its_node():
    inside = IntermediateNonfinite(tensor=TensorName("t"), producer=POW, elements=2)
    found = verification(verdict=verdict(intermediate_nonfinite=(inside,)))
    assert told(found, POW) == {"found": "2 values of t are NaN or infinite"}


@pytest.mark.parametrize(
    ("repairs", "followed", "words"),
    [
        ((), None, "everything in FP16"),
        ((REPAIR,), None, "everything in FP16, before repairs"),
        (
            (REPAIR,),
            Followed(kept=(POW,), error=2.0, tried=(), origin=None, accumulates=False),
            "everything in FP16 but 1 node",
        ),
    ],
)
def test_what_is_low_where_errors_are_followed(repairs, followed, words):
    assert grown_with(run(plan=plan((), repairs=repairs), followed=followed)) == words
