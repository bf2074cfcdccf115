"""What is wrong with a quantised model, or a calibration cache, as the command line says it."""

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
def test_the_pair_that_saturates_is_named_by_verify_diagnose_and_their_records(call):
    judged = call("verify", "float.onnx", "low.onnx", *GIVEN, "--rel-max", "0.05", "-o", "run")
    assert judged.code == 10
    told = " ".join(judged.out.split())
    assert "without 1 of 6 Q/DQ pairs" in told
    assert "first/relu_out, read by second: saturated" in told
    (cause,) = judged.record["quantisation"]["causes"]
    assert (cause["node"], cause["fault"]) == ("second/dq", "saturated")
    assert call("report", "run").out == judged.out
    found = call("diagnose", "low.onnx", *GIVEN, "--rel-max", "0.05", "-o", "found", folder="found")
    assert found.code == 10
    assert "Rung 3 (model) fails: The pair at first/relu_out" in found.out
    (*_, rung) = found.record["diagnosis"]
    assert rung["nodes"] == ["second/dq", "second"]
