"""Which nodes of a quantised model to leave out of INT8, as the command line says it."""

import numpy as np
import onnx
import pytest

from tests.unit.tools.quantised_layers import GOOD, SAMPLES, model

GIVEN = ("--inputs", "x.npz", "--allow", "random")


@pytest.fixture
def files(tmp_path):
    onnx.save(model(), tmp_path / "float.onnx")
    onnx.save(model(GOOD | {"second": 0.004}), tmp_path / "low.onnx")
    np.savez(tmp_path / "x.npz", x=SAMPLES)
    return tmp_path


@pytest.mark.usefixtures("files")
def test_what_a_failing_quantised_model_loses_is_found_by_the_command_that_verify_names(call):
    judged = call("verify", "float.onnx", "low.onnx", *GIVEN, "--rel-max", "0.05", "-o", "run")
    assert judged.code == 10
    (step,) = (s for s in judged.record["next_step"] if s["kind"] == "fix-quantised")
    assert step["command"][1] == "fix"
    assert "--start-from" in step["command"]
    found = call(*step["command"][1:-1], "fixed", folder="fixed")
    assert found.code == 0
    assert [one["node"] for one in found.record["plan"]["left_out"]] == ["second"]
