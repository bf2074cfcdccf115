"""Commands about a model and its inputs."""

import json

import onnx
import pytest

from tests.faults import numbers, structure
from tests.unit.reporting.comparisons import comparison
from tests.unit.reporting.runs import observations


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(numbers.huge_weights(True), path)
    return str(path)


def test_lint_findings_with_their_place(call, model):
    code, out, err = call("lint", model)
    assert (code, err) == (0, "")
    assert out.startswith("1 warning\n")
    assert "matmul (MatMul, node 1): " in out


@pytest.mark.parametrize(("level", "code"), [("error", 0), ("warning", 10), ("info", 10)])
def test_lint_the_level_that_fails(call, model, level, code):
    assert call("lint", model, "--fail-on", level)[0] == code


def test_lint_ignored_rules_and_json(call, model):
    ignored = ["constant-beyond-fp16", "checker"]
    words = [word for rule in ignored for word in ("--ignore", rule)]
    code, out, _ = call("lint", model, "--fail-on", "info", "--json", *words)
    assert code == 0
    assert json.loads(out)["ignored"] == ignored


def test_lint_a_model_that_other_commands_refuse(call, tmp_path):
    (tmp_path / "m.onnx").write_bytes(structure.missing_operand(True).SerializeToString())
    code, out, err = call("lint", str(tmp_path / "m.onnx"))
    assert (code, err) == (10, "")
    assert "error" in out.splitlines()[0]
    assert "ONNX refuses the graph" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.onnx"], 3, "none.onnx"),
        (["--trt-version", "7.2"], 2, "'7.2'"),
        (["--ignore", "everything"], 2, "'everything'"),
        (["--fail-on", "note"], 2, "--fail-on is 'note'"),
    ],
)
def test_lint_bad_requests(call, model, arguments, code, message):
    given = arguments if "none.onnx" in arguments else [model, *arguments]
    found, out, err = call("lint", *given)
    assert (found, out) == (code, "")
    assert message in err


def test_observe(call, answer):
    answer("observe", observations())
    command = ("observe", "m.onnx", "--inputs", "x.npz")
    assert " 10000 " in call(*command)[1].splitlines()[0]
    assert " 1e6 " in call(*command, "--limit", "1e6")[1].splitlines()[0]
    code, out, _ = call(*command, "--json")
    assert code == 0
    assert json.loads(out) == observations().to_dict()


COMPARE = ("compare", "m.onnx", "--inputs", "x.npz", "--b", "engine")


def test_compare(call, answer):
    calls = answer("compare", comparison())
    code, out, _ = call(*COMPARE, "--a", "emulation")
    assert code == 10
    assert out.startswith("First divergence: b")
    options = calls[0][1]
    assert (options["a"], options["b"]) == ("emulation", "engine")
    assert "target" not in options


def test_compare_no_difference_ends_with_0(call, answer):
    answer("compare", comparison(nodes=(), first=(), path=(), outputs={}))
    assert call(*COMPARE)[0] == 0


def test_compare_json(call, answer):
    answer("compare", comparison())
    code, out, _ = call(*COMPARE, "--json")
    assert code == 10
    assert json.loads(out) == json.loads(comparison().to_json())


def test_compare_the_other_side_is_needed(call):
    assert call("compare", "m.onnx", "--inputs", "x.npz")[0] == 2
