"""Quantised models by every command, and against the model before."""

import ml_dtypes
import numpy as np
import onnx
import pytest

from tests.models import signals
from tests.unit.graph.qdq import LAYERS, SIZE, chain, last


@pytest.fixture
def files(tmp_path):
    fine, coarse = chain(LAYERS[:1]), chain(LAYERS[:1], dtype=ml_dtypes.int4, per="tensor")
    for name, sketch in (("float", chain([])), ("fine", fine), ("coarse", coarse)):
        onnx.save(sketch.proto(last(sketch)), tmp_path / f"{name}.onnx")
    np.savez(tmp_path / "x.npz", x=signals(2, SIZE, seed=1, peak=25))


@pytest.mark.usefixtures("files")
def test_a_quantised_model_is_judged_compared_and_lowered(call):
    given = ("--inputs", "x.npz")
    loose = ("--rel-max", "0.05")
    fine = call("verify", "float.onnx", "fine.onnx", *given, *loose)
    coarse = call("verify", "float.onnx", "coarse.onnx", *given, *loose)
    assert (fine.code, coarse.code) == (0, 10)
    assert "of 3 products, 1 reads data and weights through Q/DQ" in " ".join(coarse.err.split())
    compared = call("compare", "float.onnx", *given, "--b", "coarse.onnx")
    assert compared.code == 10
    assert "Leaving first out of INT8 removes" in compared.out
    ended = call("fix", "coarse.onnx", *given, *loose, "--no-repair", "-o", "run")
    assert ended.code == 0, ended.err
    product = "MatMul: reads data and weights through Q and DQ"
    assert product in " ".join(ended.out.split())
    assert call("verify", "coarse.onnx", "run/model.onnx", *given, *loose).code == 0
