import shlex

import pytest

from halfwise.tensorrt.trtexec.notation import read
from tests.unit.tensorrt.trtexec.wired import checked


def test_a_key_twice(tmp_path):
    (finding,), corrected = checked(tmp_path, (8, 6), "/a/Relu:fp32,/a/Relu:fp16")
    assert finding.rule == "two-types"
    assert finding.message == (
        "/a/Relu gets fp32 by /a/Relu:fp32 and fp16 by /a/Relu:fp16 in --layerPrecisions: "
        "the later one counts"
    )
    assert corrected == "--layerPrecisions=/a/Relu:fp16"


def test_wildcards_that_overlap(tmp_path):
    (finding,), corrected = checked(tmp_path, (10, 3), "/a/*:fp32,*:fp16")
    assert finding.rule == "two-types"
    assert "a hash table decides" in finding.message
    assert shlex.split(corrected) == ["--layerPrecisions=/a/MatMul:fp32,/a/Relu:fp32,*:fp16"]
    # In 8.6, * is for what no name names.
    assert [f.rule for f in checked(tmp_path, (8, 6), "/a/*:fp32,*:fp16")[0]] == [
        "wildcard-unknown"
    ]


def test_a_name_goes_before_a_wildcard(tmp_path):
    spec = "/a/*:fp32,/a/Relu:fp16"
    findings, corrected = checked(tmp_path, (10, 3), spec)
    assert findings == ()
    assert shlex.split(corrected) == [f"--layerPrecisions={spec}"]
    findings, corrected = checked(tmp_path, (8, 6), spec)
    assert [f.rule for f in findings] == ["wildcard-unknown"]
    assert corrected == "--layerPrecisions=/a/MatMul:fp32,/a/Relu:fp16"


def test_errors_come_first(tmp_path):
    findings, _ = checked(tmp_path, (10, 3), "weight:fp32,/nowhere:fp32")
    assert [f.severity for f in findings] == ["error", "warning"]


def test_the_corrected_command_is_clean(tmp_path):
    words = [
        *("trtexec", "--onnx=m.onnx", "--stronglyTyped"),
        "--layerPrecisions=/a/*:fp32,/b/Add:0:fp32,/b/Cast:fp16,nothing:fp32,/c/Neg, odd:fp32",
        "--layerOutputTypes=*:fp32,/a/*:fp16,/b/Split:fp32+fp16+fp32",
    ]
    for version in ((8, 5), (8, 6), (9, 0), (10, 16)):
        findings, corrected = checked(tmp_path, version, *words)
        assert findings
        again, same = checked(tmp_path, version, corrected)
        wrong = [f for f in again if f.rule != "type-count"]
        assert wrong == [], version
        assert read([same]).words == read([corrected]).words


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("*:fp16,*:fp32", True),
        ("*:fp32,*:fp16", False),
        ("*:fp16,*:fp32,/a/Relu:fp16", False),
        ("/a/Relu:fp16,/a/Relu:fp32", False),
    ],
)
def test_fp32_in_all_layers_is_no_fp16(tmp_path, spec, told):
    rules = {f.rule: f.message for f in checked(tmp_path, (10, 3), spec)[0]}
    assert "two-types" in rules
    assert ("all-fp32" in rules) == told
    assert not told or rules["all-fp32"].endswith("the same as no --fp16")


SPEC = "--layerPrecisions=/a/Relu:fp32"


def rules(folder, version, *words):
    findings, corrected = checked(folder, version, "trtexec", "--onnx=m.onnx", *words)
    return [f.rule for f in findings], shlex.split(corrected)[2:]


def test_a_good_command(tmp_path):
    words = ["--fp16", "--precisionConstraints=obey", SPEC]
    assert rules(tmp_path, (8, 6), *words) == ([], words)


@pytest.mark.parametrize("mode", [[], ["--precisionConstraints=none"]])
def test_constraints_without_effect(tmp_path, mode):
    assert rules(tmp_path, (8, 6), "--fp16", *mode, SPEC) == (
        ["no-effect"],
        ["--fp16", "--precisionConstraints=obey", SPEC],
    )


def test_a_mode_that_nobody_knows(tmp_path):
    found, words = rules(tmp_path, (8, 6), "--fp16", "--precisionConstraints=strict", SPEC)
    assert found == ["unreadable"]
    assert words == ["--fp16", "--precisionConstraints=obey", SPEC]


def test_strong_typing(tmp_path):
    low = ["--fp16", "--precisionConstraints=prefer"]
    found, words = rules(tmp_path, (10, 3), *low, "--stronglyTyped", SPEC)
    assert found == ["strong-typing"]
    assert words == [*low, SPEC]


def test_eleven_has_no_constraints(tmp_path):
    low = ["--fp16", "--precisionConstraints=prefer"]
    found, words = rules(tmp_path, (11, 2), *low, "--noTF32", SPEC)
    assert found == ["removed"]
    assert words == ["--noTF32"]


def test_flags(tmp_path):
    obey = "--precisionConstraints=obey"
    assert rules(tmp_path, (8, 6), obey, SPEC)[0] == ["nothing-lowered"]
    low = "--layerPrecisions=/a/Relu:fp16"
    assert rules(tmp_path, (8, 6), obey, low) == (["flag-missing"], ["--fp16", obey, low])
    assert rules(tmp_path, (8, 6), "--best", obey, low)[0] == []


def test_options_twice_and_without_a_value(tmp_path):
    good = ["--fp16", "--precisionConstraints=obey"]
    found, words = rules(tmp_path, (8, 6), *good, SPEC, "--layerPrecisions=/a/MatMul:fp32")
    assert found == ["repeated-option"]
    assert words == [*good, "--layerPrecisions=/a/Relu:fp32,/a/MatMul:fp32"]
    assert rules(tmp_path, (8, 6), *good, SPEC, "--layerOutputTypes")[0] == ["unreadable"]


def test_stray_words(tmp_path):
    good = ["--fp16", "--precisionConstraints=obey", SPEC]
    assert rules(tmp_path, (8, 6), *good, "/b/Split:fp32") == (["unreadable"], good)


def test_options_alone_are_no_command(tmp_path):
    findings, corrected = checked(tmp_path, (8, 6), SPEC)
    assert findings == ()
    assert corrected == SPEC
