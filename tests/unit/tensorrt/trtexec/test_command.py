import shlex

import pytest

from tests.unit.tensorrt.trtexec.wired import checked

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
