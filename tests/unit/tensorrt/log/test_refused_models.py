from typing import Any

import onnx
import pytest

from halfwise.tensorrt.log.log import explain
from halfwise.tensorrt.log.refused_models import named, parser_lines
from tests.engines import ODD

TEXT = (
    'Assertion failed: creator && "Plugin not found, are the plugin name, version, and namespace '
    'correct?"'
)
"""What TensorRT 8.6.0 gave on an H200; it named no node, and gave index 0."""


@pytest.fixture
def model(tmp_path):
    onnx.save(ODD, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def refusal(*errors):
    message = f"TensorRT 8.6.0 cannot parse the model: {errors[0]['text']}"
    return {"code": "parse", "message": message, "hint": "", "errors": errors}


def test_a_place_becomes_a_name(model):
    answer = named(refusal({"node": "", "op": "", "text": TEXT, "index": 1}), model)
    assert answer["errors"] == [{"node": "odd", "op": "Odd", "text": TEXT, "index": 1}]
    assert answer["message"].startswith("TensorRT 8.6.0 cannot parse the model at node odd (Odd): ")
    assert "no plugin of that name is registered" in answer["message"]
    assert "Assertion" not in answer["message"]
    assert answer["hint"]


@pytest.mark.parametrize("index", [-1, 99, None])
def test_places_that_are_none(model, index):
    answer = named(refusal({"node": "", "op": "", "text": "bad", "index": index}), model)
    assert answer["errors"][0]["node"] == ""
    assert " at node " not in answer["message"]
    assert "bad" in answer["message"]


def test_names_of_newer_versions_stay(model):
    answer = named(refusal({"node": "mine", "op": "Op", "text": "no", "index": 1}), model)
    assert "at node mine (Op)" in answer["message"]


def test_what_is_no_error_of_the_parser(model):
    answer = {"code": "build", "message": "TensorRT built no engine."}
    assert named(answer, model) == answer
    none = {"code": "parse", "message": "TensorRT cannot parse the model: no reason", "errors": []}
    assert named(none, model) == none


def test_every_error_is_a_finding_with_its_node():
    errors: list[dict[str, Any]] = [
        {"node": "a", "op": "Odd", "text": TEXT, "index": 3},
        {"node": "", "op": "", "text": "one", "index": None},
        {"node": "", "op": "", "text": "two", "index": None},
    ]
    found = explain(parser_lines(errors))
    assert [finding.nodes for finding in found] == [("a",), (), ()]
    assert [finding.severity for finding in found] == ["error"] * 3
