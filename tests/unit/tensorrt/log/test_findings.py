import re

from halfwise.tensorrt.log.findings import MOST_UNKNOWN, Findings
from halfwise.tensorrt.log.log import explain


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
