import shlex
import subprocess
import sys

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


def test_the_type_that_is_needed(tmp_path):
    assert said("declared_as_half", tmp_path) == (
        "cast_out is FLOAT16, not FLOAT, output 0 of Cast cast"
    )


def test_a_file_that_no_command_reads(tmp_path):
    fault = next(f for f in FAULTS if f.name == "missing_operand")
    report = linted(fault.make(True), tmp_path)
    (finding,) = report.findings
    assert finding.message.startswith(f"ONNX refuses the graph in {tmp_path / 'model.onnx'}: ")
    command = finding.fix.split("`")[1]
    done = subprocess.run(
        shlex.split(command.replace("python", shlex.quote(sys.executable), 1)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ValidationError" in done.stderr
