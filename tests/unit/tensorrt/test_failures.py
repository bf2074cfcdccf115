from typing import Any

import onnx
import pytest

from halfwise.errors import (
    BackendMissing,
    CaseError,
    RecordMismatch,
    RunFailed,
    UsageError,
)
from halfwise.tensorrt import failures
from halfwise.tensorrt.failures import named, parser_lines
from halfwise.tensorrt.log import explain
from tests.engines import ODD


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("tensorrt-missing", BackendMissing),
        ("tensorrt-version", BackendMissing),
        ("gpu-missing", BackendMissing),
        ("plugin", BackendMissing),
        ("typing", UsageError),
        ("profile", CaseError),
        ("shape", CaseError),
        ("dtype", CaseError),
        ("engine", RecordMismatch),
        ("parse", RunFailed),
        ("build", RunFailed),
        ("memory", RunFailed),
        ("run", RunFailed),
        ("cuda", RunFailed),
        ("internal", RunFailed),
        ("of a newer worker", RunFailed),
    ],
)
def test_codes(code, kind):
    answer = {"code": code, "message": "It is odd", "hint": "Try."}
    error = failures.refusal(answer, ("a", "b"))
    assert isinstance(error, kind)
    assert (error.message, error.hint) == ("It is odd.", "Try.")
    if isinstance(error, failures.EngineFailed):
        assert (error.status, error.signal, error.log) == ("failed", None, ("a", "b"))
        assert error.code == code


def test_out_of_memory_says_what_to_do():
    error = failures.refusal({"code": "memory", "message": "cuMemAlloc_v2 gives 2."}, ())
    assert "workspace" in error.hint


def test_every_parser_error_is_told():
    errors = [{"node": "a", "op": "Odd", "text": "no"}, {"node": "", "op": "", "text": "bad"}]
    answer = {"code": "parse", "message": "Cannot parse.", "errors": errors, "log": ["x"]}
    error = failures.refusal(answer, ("before",))
    assert isinstance(error, failures.EngineFailed)
    assert error.log == (
        "before",
        "x",
        "error: In node -1 with name: a and operator: Odd (parser): ERROR: no",
        "error: In node -2 (parser): ERROR: bad",
    )
    assert error.message == "Cannot parse (the first of 2 parser errors)."


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            {"signal": "SIGALRM", "status": None},
            ("timeout", None, "The run took longer than 2.5 s and was ended."),
        ),
        (
            {"signal": "SIGBUS", "status": None},
            ("crashed", "SIGBUS", "The run ended with SIGBUS."),
        ),
        (
            {"signal": None, "status": 1},
            ("crashed", None, "The run ended its process with status 1."),
        ),
    ],
)
def test_deaths(answer, expected):
    died = failures.death(answer, "The run", 2.5)
    assert (died.status, died.signal, died.message) == expected


def test_a_traceback_is_told_by_its_last_line():
    printed = ["Traceback (most recent call last):", '  File "x"', "ImportError: no fcntl"]
    error = failures.no_answer("w", ["python"], "python ended with status 1", printed)
    assert 'it printed "ImportError: no fcntl"' in error.message
    assert "Traceback" not in error.message


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("plan->header.size == blobSize failed.", "damaged or truncated"),
        ("blobSize > numericCast<int64_t>(sizeof(rt::PlanHeader)) failed.", "damaged or truncated"),
        ("plan->header.magicTag == rt::kPLAN_MAGIC_TAG failed.", "has no valid engine header"),
        ("expecting library version 10.0.1 got 8.6.1, please rebuild.", "built by TensorRT 8.6.1"),
        (
            "The engine plan file is generated on an incompatible device, expecting compute 8.6 "
            "got compute 9.0, please rebuild.",
            "built for compute capability 9.0; this GPU has 8.6",
        ),
    ],
)
def test_why_an_engine_cannot_be_read(line, why):
    """The lines are those of TensorRT 8.6.0 on an H200, and of NVIDIA/TensorRT's issues."""
    log = [f"1: [runtime.cpp::parsePlan::315] Error Code 1: Serialization (assertion {line})"]
    message = "TensorRT 8.6.0 cannot read the engine."
    error = failures.refusal({"code": "engine", "message": message, "log": log}, ())
    assert isinstance(error, RecordMismatch)
    assert error.message.startswith(message)
    assert why in error.message
    assert "assertion" not in error.message.lower()
    assert error.hint


def test_an_engine_that_nothing_is_known_of():
    answer = {"code": "engine", "message": "It cannot be read.", "hint": "Build it.", "log": ["?"]}
    error = failures.refusal(answer, ())
    assert (error.message, error.hint) == ("It cannot be read.", "Build it.")


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
    return {"code": "parse", "message": "It fails.", "hint": "", "errors": errors}


def test_a_place_becomes_a_name(model):
    answer = named(refusal({"node": "", "op": "", "text": TEXT, "index": 1}), model, "8.6.0")
    assert answer["errors"] == [{"node": "odd", "op": "Odd", "text": TEXT, "index": 1}]
    assert answer["message"].startswith("TensorRT 8.6.0 cannot parse the model at node odd (Odd): ")
    assert "no plugin of that name is registered" in answer["message"]
    assert "Assertion" not in answer["message"]
    assert answer["hint"]


@pytest.mark.parametrize("index", [-1, 99, None])
def test_places_that_are_none(model, index):
    answer = named(refusal({"node": "", "op": "", "text": "bad", "index": index}), model, "8.6.0")
    assert answer["errors"][0]["node"] == ""
    assert " at node " not in answer["message"]
    assert "bad" in answer["message"]


def test_names_of_newer_versions_stay(model):
    answer = named(refusal({"node": "mine", "op": "Op", "text": "no", "index": 1}), model, "8.6.0")
    assert "at node mine (Op)" in answer["message"]


def test_what_is_no_error_of_the_parser(model):
    answer = {"code": "build", "message": "TensorRT built no engine."}
    assert named(answer, model, "8.6.0") == answer
    none = {"code": "parse", "message": "TensorRT cannot parse the model: no reason", "errors": []}
    assert named(none, model, "8.6.0") == none


def test_every_error_is_a_finding_with_its_node():
    errors: list[dict[str, Any]] = [
        {"node": "a", "op": "Odd", "text": TEXT, "index": 3},
        {"node": "", "op": "", "text": "one", "index": None},
        {"node": "", "op": "", "text": "two", "index": None},
    ]
    found = explain(parser_lines(errors))
    assert [finding.nodes for finding in found] == [("a",), (), ()]
    assert [finding.severity for finding in found] == ["error"] * 3
