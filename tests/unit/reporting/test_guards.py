"""What suspicions and kept nodes are told as; each kind of guard has its test at what raises it."""

import math
from typing import get_args

import pytest

from halfwise.records import Because, Followed, Guard, GuardKind, KeptNode, NodeName
from halfwise.reporting.guards import _WORDS, explained, guard_sentence, message, reason_of, worded
from halfwise.store import read_run, write_run
from tests.unit.casing import names
from tests.unit.reporting.runs import guard, run


def facts(kind: GuardKind, names_: dict[str, str], **numbers: float) -> Guard:
    return guard("n").model_copy(
        update={"kind": kind, "message": "", "names": {"low": "fp16", **names_}, "numbers": numbers}
    )


def test_every_kind_of_guard_has_words() -> None:
    assert _WORDS.keys() == set(get_args(GuardKind))


def test_what_is_not_known_is_left_out() -> None:
    bare = facts("overflow", {}, value=7e4, limit=65504.0)
    assert message(bare).endswith(" reaches 70000, beyond FP16's 65504")
    named = facts("overflow", {"sample": "[a|b]{0}"}, value=7e4, limit=65504.0, share=0.25)
    assert message(named).endswith("65504 (sample [a|b]{0}), in 25 % of all its elements")
    few = named.model_copy(update={"numbers": {**named.numbers, "samples": 1}})
    assert message(few).endswith("in 25 % of the elements of 1 sample")


def test_a_message_of_a_record_before_facts_stays_as_it_was() -> None:
    assert message(guard("n", message="as it was")) == "as it was"
    old = KeptNode(node=NodeName("n"), op="Pow", reason="It was so. Usual fix: x.")
    assert explained([old], (), 1.0, None) == (old,)


def test_facts_survive_the_file(tmp_path) -> None:
    """Infinity is a string in JSON, and so is a sample that is called Infinity."""
    sick = facts("cancellation", {"inside": "n", "op": "Sub", "sample": "NaN"}, value=math.inf)
    write_run(tmp_path, run().model_copy(update={"guards": (sick,)}))
    (read,) = read_run(tmp_path).guards
    assert read == sick
    assert message(read) == (
        "operands rounded to FP16 mostly cancel to zero in n (Sub) (sample NaN)"
    )


def test_a_node_that_is_needed_by_another_says_by_which() -> None:
    range_of = {"tensor": "t", "nodes": names("n", "m"), "message": "it overflows"}
    (own,) = worded((guard("n", "overflow", **range_of),))
    assert guard_sentence(own, NodeName("n")) == "it overflows"
    assert guard_sentence(own, NodeName("m")) == "it reads what may overflow: it overflows"
    (other,) = worded((guard("n", "eps", nodes=names("n", "m"), message="it vanishes"),))
    assert guard_sentence(other, NodeName("m")) == "needed by n: it vanishes"


@pytest.mark.parametrize(
    ("kept_by", "because", "reason"),
    [
        ("engine", Because(), "The engine needs it or is faster with it, although "),
        ("rule", Because(rule="--keep n"), "Kept by the rule --keep n."),
    ],
)
def test_what_was_not_searched_says_who_decided(kept_by, because, reason) -> None:
    kept = KeptNode(node=NodeName("n"), op="Pow", kept_by=kept_by, because=because)
    assert explained([kept], (), 1.0, None)[0].reason.startswith(reason)


def test_a_decision_is_the_reason_of_what_leads_to_it() -> None:
    flips = [{"node": "choose", "op": "Greater", "elements": 3, "of": 9}]
    decided = {"flips": flips, "nodes": ["choose"], "error": 9, "left": 0, "samples": 1}
    found = Followed.model_validate(
        {"kept": (), "error": 9, "tried": (), "origin": None, "accumulates": False}
        | {"decided": decided}
    )
    node = NodeName("choose")
    kept = KeptNode(node=node, op="Greater", because=Because(), error_without=9.0)
    (told,) = explained((kept,), (), 1.0, None, found)
    assert told.reason.startswith("Leads to decisions that change, of choose")


def test_an_infinity_starts_where_fp32_removes_it():
    """No guard knows what overflows inside a body; what only adds to an error explains no NaN."""
    found = Followed.model_validate(
        {"kept": (), "error": math.inf, "tried": ("/If",), "accumulates": True}
        | {"origin": {"node": "/If", "kept": ("/If",), "error": 0.05}}
    )
    beside = KeptNode(node=NodeName("/Add"), op="Add", because=Because(nonfinite=True))
    assert reason_of(beside, found) == "effect"
    assert reason_of(beside.model_copy(update={"node": NodeName("/If")}), found) == "origin"
