import json

import onnx
import pytest

from tests.faults import export, numbers


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(numbers.logarithm(True), path)
    return str(path)


def test_findings_with_their_place(call, model):
    code, out, err = call("lint", model)
    assert (code, err) == (0, "")
    assert out.startswith("1 warning\n")
    assert "eps (Add, node 1): the eps 1e-10 before Log becomes zero in FP16 by" in out


@pytest.mark.parametrize(("level", "code"), [("error", 0), ("warning", 10), ("info", 10)])
def test_the_level_that_fails(call, model, level, code):
    assert call("lint", model, "--fail-on", level)[0] == code


def test_ignored_rules_and_json(call, model):
    arguments = ("--fail-on", "info", "--json", "--ignore", "eps-vanishes", "--ignore", "fp64")
    code, out, _ = call("lint", model, *arguments)
    assert code == 0
    assert json.loads(out)["ignored"] == ["eps-vanishes", "fp64"]


def test_a_model_that_other_commands_refuse(call, tmp_path):
    (tmp_path / "m.onnx").write_bytes(export.missing_operand(True).SerializeToString())
    code, out, err = call("lint", str(tmp_path / "m.onnx"))
    assert (code, err) == (10, "")
    assert "ONNX's checker refuses the model" in out
    assert "Not looked at" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.onnx"], 3, "none.onnx is not a file"),
        (["--trt-version", "7.2"], 2, "'7.2' is no version of TensorRT"),
        (["--ignore", "everything"], 2, "There is no rule called 'everything'"),
        (["--fail-on", "note"], 2, "Invalid value for '--fail-on'"),
    ],
)
def test_bad_requests(call, model, arguments, code, message):
    given = arguments if "none.onnx" in arguments else [model, *arguments]
    found, out, err = call("lint", *given)
    assert (found, out) == (code, "")
    assert message in err
