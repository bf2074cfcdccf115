"""A worker that answers as if TensorRT were there."""

import sys

import numpy as np
import onnx
import pytest

from halfwise.tensorrt import link
from halfwise.tensorrt.client import Worker
from tests.workers import told_source


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The worker's folder for files."""
    monkeypatch.setenv("HALFWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def worker(monkeypatch, cache):  # noqa: ARG001 - the folder that it uses
    """A worker named "told", up."""
    monkeypatch.setattr(link, "worker_source", told_source)
    with Worker("told", [sys.executable], limit=600) as worker:
        yield worker


@pytest.fixture
def model(tmp_path):
    """A path of an ONNX model with external data."""
    weights = onnx.numpy_helper.from_array(np.ones((40, 2), "float32"), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="n")],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [1, 40])],
        [onnx.helper.make_tensor_value_info("y", 1, [1, 2])],
        [weights],
    )
    folder = tmp_path / "model"
    folder.mkdir()
    onnx.save(
        onnx.helper.make_model(graph),
        folder / "m.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    return folder / "m.onnx"
