import pytest

from halfwise.records import (
    NodeName,
    Repair,
)
from halfwise.reporting.nodes import node_facts, planned_words, type_words
from tests.unit.reporting.runs import (
    guard,
    kept,
    plan,
    run,
)

POW, MOVE, PIN = NodeName("/norm/Pow"), NodeName("/Reshape"), NodeName("/Custom")
REPAIR = Repair(rule="mask", nodes=(POW,), identity="(x + b)·w = x·w + b·w")


def told(record, node, seen=None):
    facts = node_facts(record, seen)[node]
    return dict(planned_words(facts))


def test_repairs_of_a_node_are_numbered():
    words = told(run(plan=plan((kept(POW),), repairs=(REPAIR, REPAIR)), guards=()), POW)
    assert [*words] == ["kept", "reason", "error-if-lowered", "repaired", "repaired-2"]
    assert words["repaired-2"] == words["repaired"]


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
