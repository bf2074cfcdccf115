import re
from collections import defaultdict

import pytest

from halfwise.tensorrt.log.findings import MOST_UNKNOWN, Findings, Message
from halfwise.tensorrt.log.log import KNOWN, explain


def test_errors_come_first_and_what_only_follows_from_them_last():
    found = explain(
        [
            "[W] [TRT] Using kFASTER_DYNAMIC_SHAPES_0805 preview feature.",
            "[W] something odd",
            "[E] Engine could not be created from network",
            "[E] Something worse",
        ]
    )
    assert [(f.severity, f.kind) for f in found] == [
        ("error", "unknown"),
        ("error", "not-built"),
        ("warning", "unknown"),
        ("info", "preview-feature"),
    ]


def test_what_announces_others_is_left_out_where_they_came():
    header = "[W] TensorRT encountered issues when converting weights between types and that"
    special = "[W] - 3 weights are affected by this issue: Detected subnormal FP16 values."
    assert [f.kind for f in explain([header])] == ["weights"]
    assert [f.kind for f in explain([header, special])] == ["weights-subnormal"]


def test_unknown_lines_that_differ_in_numbers_are_counted_together():
    (found,) = explain([f"[W] tensor {i} at 0x{i:x}f is {i}.5" for i in range(40)])
    assert (found.kind, found.count, found.hint) == ("unknown", 40, "")
    assert found.sentence == "tensor 0 at 0x0f is 0.5"
    assert found.lines == tuple(f"[W] tensor {i} at 0x{i:x}f is {i}.5" for i in range(3))


def test_beyond_many_kinds_unknown_lines_are_still_counted():
    findings = Findings()
    for i in range(MOST_UNKNOWN + 5):
        findings.keep(
            "warning", f"odd {re.sub(r'[0-9]', lambda d: chr(97 + int(d[0])), str(i))}", ""
        )
    found = findings.records()
    assert len(found) == MOST_UNKNOWN + 1
    assert found[-1].sentence == "More warnings of other kinds."
    assert sum(f.count for f in found) == MOST_UNKNOWN + 5


def test_long_lines_are_cut_in_the_record():
    (found,) = explain(["[E] " + "x" * 10_000])
    assert len(found.sentence) == len(found.lines[0]) == 500


def test_groups_of_the_alternative_that_was_found_fill_the_sentence():
    message = Message("k", "info", r"a (?P<x>\w+)|b (?P<y>\w+)", "It is {x}{y} here.", "", "")
    match = message.compiled.search("b that")
    assert match is not None
    assert message.words(match) == "It is that here."


def test_an_operator_may_be_known_from_elsewhere():
    message = Message("k", "info", r"no plugin(?: (?P<op>\w+))?", "No {op}.", "", "")
    match = message.compiled.search("no plugin")
    assert match is not None
    assert message.words(match, "If") == "No If."
    assert message.words(match) == "No that a node needs."


@pytest.mark.parametrize("message", KNOWN, ids=lambda message: message.kind)
def test_every_message_is_complete(message):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", message.kind)
    assert message.sentence.endswith(".")
    assert message.hint or message.severity == "info"
    assert message.source.startswith("https://")
    fields = set(re.findall(r"\{(\w+)\}", message.sentence))
    assert fields <= set(message.compiled.groupindex)


def test_one_kind_has_one_severity():
    severities = defaultdict(set)
    for message in KNOWN:
        severities[message.kind].add(message.severity)
    assert {kind for kind, found in severities.items() if len(found) > 1} == set()
