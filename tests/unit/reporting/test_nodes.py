import pytest

from halfwise.records import (
    EngineLayer,
    Followed,
    Growth,
    IntermediateNonfinite,
    NodeName,
    NodePrecision,
    Repair,
    TensorName,
    Unsupported,
)
from halfwise.reporting.nodes import grown_with, node_facts, type_words, words_on
from tests.unit.reporting.engine_runs import engines, proof, result
from tests.unit.reporting.runs import (
    guard,
    kept,
    observation,
    observations,
    plan,
    run,
    verdict,
    verification,
)

POW, MOVE, PIN = NodeName("/norm/Pow"), NodeName("/Reshape"), NodeName("/Custom")
REPAIR = Repair(rule="stable", nodes=(POW,), identity="(x + b)·w = x·w + b·w")


def told(record, node, seen=None):
    facts = node_facts(record, seen)[node]
    return dict(words_on(facts, seen.samples if seen is not None else ()))


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
    assert (
        words["repaired"] == "stable, written in a form that stays in range: (x + b)·w = x·w + b·w"
    )
    assert words["repaired-2"] == words["repaired"]
    assert "moves data between kept nodes" in told(found, MOVE)["reason"]
    assert told(found, PIN)["reason"] == "FP32 in any case: ONNX does not know it."
    assert told(found, NodeName("/low"))["reason"] == "Lowered by the rule --lower /low."
    assert "INT8" in told(found, NodeName("/fc"))["reason"]


def test_what_was_measured_at_a_node():
    seen = observations(
        tensors=(
            observation("x", None, 9e9),
            observation("a", POW, 3.0, worst_sample=0, nonfinite=1),
            observation("b", POW, 70000.0, worst_sample=1, nonfinite=2),
        )
    )
    found = run(growth=(Growth(node=POW, depth=3, error=0.02, inherited=0.01),))
    words = told(found, POW, seen)
    assert words["error"] == "0.02 relative RMS; 0.01 in its inputs"
    assert words["largest-value"] == f"70000 ({seen.samples[1]})"
    assert words["not-finite"] == "3 NaN or infinite values in FP32"
    assert "error" not in told(run(growth=()), POW)


def test_what_the_engine_makes_of_a_node():
    layer = EngineLayer(
        name="a + b", type="kgen", nodes=(POW, MOVE), precision="fp16", milliseconds=0.25
    )
    nodes = (NodePrecision(node=POW, precision="fp16", asked="fp32"),)
    delivered = engines().row
    assert delivered is not None
    row = delivered.model_copy(update={"proof": proof(nodes=nodes, layers=(layer,))})
    found = run(engines=engines(results=(result("FP16", 4, 1.0), row)))
    words = told(found, POW)
    assert words["engine-precision"] == "FP16 (FP32 was requested)"
    assert words["engine-layer"] == "a + b"
    assert words["engine-time"] == "0.25 ms, shared with 1 other node"


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
