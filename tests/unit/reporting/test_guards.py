"""What suspicions and kept nodes are told as; each kind of guard has its test at what raises it."""

import math

import msgspec
import pytest

from halfwise.records import Because, Followed, Guard, GuardKind, KeptNode, NodeName, replace
from halfwise.reporting.remarks import explained, message, reason_of
from halfwise.store import read_run, write_run
from tests.unit.reporting.runs import guard, run


def facts(kind: GuardKind, names_: dict[str, str], **numbers: float) -> Guard:
    return replace(
        guard("n"), kind=kind, message="", names={"low": "fp16", **names_}, numbers=numbers
    )


def test_any_name_is_left_as_it_is() -> None:
    named = facts("overflow", {"sample": "[a|b]{0}"}, value=7e4, limit=65504.0)
    assert "[a|b]{0}" in message(named)


def test_a_message_of_a_record_before_facts_stays_as_it_was() -> None:
    old = guard("n")
    assert message(old) == old.message
    node = KeptNode(node=NodeName("n"), op="Pow", reason="It was so. Usual fix: x.")
    assert explained([node], (), 1.0, None) == (node,)


def test_facts_survive_the_file(tmp_path) -> None:
    """Infinity is a string in JSON, and so is a sample that is called Infinity."""
    sick = facts("cancellation", {"inside": "n", "op": "Sub", "sample": "NaN"}, value=math.inf)
    write_run(tmp_path, replace(run(), guards=(sick,)))
    (read,) = read_run(tmp_path).guards
    assert read == sick
    assert message(read) == message(sick)


def test_what_only_adds_to_an_error_explains_no_infinity():
    found = msgspec.convert({"kept": (), "error": math.inf, "accumulates": True}, Followed)
    beside = KeptNode(node=NodeName("/Add"), op="Add", because=Because(nonfinite=True))
    assert reason_of(beside, found) == "effect"


@pytest.mark.parametrize(
    ("contribution", "reason"), [(None, "unknown"), (0.2, "little"), (1.2, "effect")]
)
def test_what_breaks_nothing_alone_is_not_said_to(contribution, reason):
    because = Because(contribution=contribution)
    kept = KeptNode(node=NodeName("/Conv"), op="Conv", because=because)
    assert reason_of(kept, None) == reason
