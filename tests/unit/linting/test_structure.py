import shlex
import subprocess
import sys

import onnx
import pytest

from tests.faults import FAULTS, linted
from tests.unit.linting.said import said


def test_what_is_frozen(tmp_path):
    assert said("reshape", tmp_path) == (
        "its first axis is dynamic, but the constant constant_0 = [1, -1] fixes it"
    )
    assert said("initial_state", tmp_path) == (
        "its batch axis is dynamic, but its initial state constant_3 is a constant for a fixed "
        "batch size"
    )
    assert said("length", tmp_path) == (
        "axis 1 of x is dynamic, but the constant constant_0 = [1, 10, 2, 4] fixes it"
    )


def test_an_output_that_does_not_vary(tmp_path):
    assert said("fixed_output", tmp_path) == (
        "axis 0 of the output sum_out is declared n, as in an input, but is always 1"
    )


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("folded_bias", "has 8 elements for 4 channels"),
        ("folded_bias_of_gemm", "has 4 elements for 6 channels"),
        ("declared_as_half", "its output 0 cast_out is FLOAT16 where it needs FLOAT"),
    ],
)
def test_what_is_said(fault, message, tmp_path):
    assert message in said(fault, tmp_path)


def test_a_bias_for_all_channels_at_once_is_right(tmp_path):
    proto = next(f for f in FAULTS if f.name == "folded_bias_of_gemm").make(False)
    proto.graph.initializer[1].dims[0] = 1
    proto.graph.initializer[1].raw_data = proto.graph.initializer[1].raw_data[:4]
    assert not linted(proto, tmp_path).findings


@pytest.mark.parametrize("fault", ["folded_bias", "folded_bias_of_gemm"])
def test_custom_operators_of_the_same_name_are_left_alone(fault, tmp_path):
    proto = next(f for f in FAULTS if f.name == fault).make(True)
    for node in proto.graph.node:
        node.domain = "com.example"
    proto.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    rules = {f.rule for f in linted(proto, tmp_path).findings}
    assert "exporter-bias" not in rules


def test_a_broken_file_is_linted_all_the_same(tmp_path):
    fault = next(f for f in FAULTS if f.name == "missing_operand")
    report = linted(fault.make(True), tmp_path)
    assert [f.rule for f in report.findings] == ["checker"]
    assert report.skipped[0].startswith("could not infer types: ")
    command = report.findings[0].fix.split("`")[1]
    done = subprocess.run(
        shlex.split(command.replace("python", shlex.quote(sys.executable), 1)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ValidationError" in done.stderr
