import pytest

from halfwise.records import (
    NodeName,
    Repair,
)
from halfwise.reporting.causes import told_of_nodes, type_words
from tests.unit.reporting.runs import (
    guard,
    kept,
    plan,
    run,
)

POW, MOVE = NodeName("/norm/Pow"), NodeName("/Reshape")
REPAIR = Repair(rule="mask", nodes=(POW,), identity="(x + b)·w = x·w + b·w")


def test_repairs_of_a_node_are_told_after_its_reason():
    told = told_of_nodes(run(plan=plan((kept(POW),), repairs=(REPAIR, REPAIR)), guards=()), None)
    assert [kind for kind, _ in told[POW]] == ["kept", "reason", "repaired", "repaired"]


def test_the_suspicion_for_which_a_node_is_kept_is_told_once():
    found = run(plan=plan((kept(POW, guard="square"),)), guards=(guard(POW), guard(MOVE)))
    told = told_of_nodes(found, None)
    assert [kind for kind, _ in told[POW]] == ["kept", "reason"]
    assert [kind for kind, _ in told[MOVE]] == ["suspected"]


def test_words_are_clean():
    name = "a\x1b[31m\u202e" + "n" * 10_000
    found = run(plan=plan((kept(name),)), guards=(guard(name),))
    for _, text in told_of_nodes(found, None)[NodeName(name)]:
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
