import json

import pytest

from halfwise import api
from tests.unit.reporting.diagnoses import diagnosis

COMMAND = ("diagnose", "m.onnx", "--inputs", "x.npz", "-o", "run")


@pytest.fixture
def told(monkeypatch):
    """Put a stand-in in place of the library; return the calls that it got."""

    def told(run):
        calls = []

        def stand_in(*arguments, **options):
            calls.append((arguments, options))
            return api.Result(run, None)

        monkeypatch.setattr(api, "diagnose", stand_in)
        return calls

    return told


def test_a_rung_that_fails(call, told):
    calls = told(diagnosis())
    code, out, _ = call(*COMMAND, "--expected", "e.npz", "--inputs-b", "b.npz", "--to", "bf16")
    assert code == 10
    assert out.startswith("Rung 4 (fp32) fails")
    options = calls[0][1]
    assert options["expected"] == "e.npz"
    assert options["inputs_b"] == "b.npz"
    assert options["to"] == "bf16"


def test_nothing_wrong_ends_with_0(call, told):
    told(diagnosis(passed=True))
    assert call(*COMMAND)[0] == 0


def test_json(call, told):
    told(diagnosis())
    code, out, _ = call(*COMMAND, "--json")
    assert code == 10
    assert [rung["rung"] for rung in json.loads(out)["diagnosis"]] == [1, 2, 4]


def test_a_folder_is_needed(call):
    assert call("diagnose", "m.onnx", "--inputs", "x.npz")[0] == 2
