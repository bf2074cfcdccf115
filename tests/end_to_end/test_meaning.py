"""What halfwise takes inputs and outputs for: layouts, embeddings, errors that rise."""

import numpy as np
import onnx
import pytest

from tests.models import signals, weights
from tests.unit.graph.sketch import Sketch


@pytest.fixture
def flow(tmp_path):
    """A convolution whose two channels are called a flow, in pixels."""
    s = Sketch()
    x = s.input("x", ["n", 3, "h", "w"])
    y = s.op("Conv", x, weights(2, 3, 3, 3, seed=1, scale=3.0), name="conv", pads=[1] * 4)
    onnx.save(s.proto(y), tmp_path / "flow.onnx")
    np.savez(tmp_path / "in.npz", x=signals(3, 8, 9, seed=2, count=4))
    np.savez(tmp_path / "nhwc.npz", x=np.moveaxis(signals(3, 8, 9, seed=2, count=4), 1, -1))


@pytest.mark.usefixtures("flow")
def test_channels_that_are_last_are_called_so(refused):
    told = refused(3, "fix", "flow.onnx", "--inputs", "nhwc.npz", "-o", "run")
    assert "The data is NHWC, but the model takes NCHW" in told
    assert "np.moveaxis(x, -1, -3)" in told


def test_channels_that_are_first_are_called_so(refused, tmp_path):
    s = Sketch()
    onnx.save(s.proto(s.op("Relu", s.input("x", [1, 8, 9, 3]))), tmp_path / "tf.onnx")
    np.save(tmp_path / "x.npy", signals(1, 3, 8, 9, seed=2, count=1)[0])
    told = refused(3, "observe", "tf.onnx", "--inputs", "x.npy")
    assert "The data is NCHW, but the model takes NHWC" in told
    np.save(tmp_path / "x.npy", signals(1, 8, 7, 3, seed=2, count=1)[0])
    assert "Resize or crop" in refused(3, "observe", "tf.onnx", "--inputs", "x.npy")


@pytest.mark.usefixtures("flow")
def test_an_end_point_error_rises_as_it_gets_worse(call):
    options = ("--inputs", "in.npz", "--metric", "epe")
    low = call("fix", "flow.onnx", *options, "--metric-drop", "1", "-o", "low")
    assert low.code == 0, low.err
    assert "epe may rise by 1" in " ".join(low.out.split())
    judged = call("verify", "flow.onnx", "low/model.onnx", *options, "--metric-drop", "1e-9")
    assert judged.code == 10
    told = " ".join(judged.out.split())
    assert "epe rose from 0 to 0.0" in told
    assert "a rise of 1e−9 is allowed" in told
    assert "fell" not in told
    assert "-0" not in told.partition("Task metric")[2].partition("In figures")[0]


@pytest.mark.parametrize(("name", "told"), [("y", False), ("embedding", False), ("logits", True)])
def test_an_embedding_is_not_called_class_scores(call, tmp_path, name, told):
    s = Sketch()
    s.op("MatMul", s.input("x", ["n", 16]), weights(16, 64, seed=1, scale=0.2), name="project")
    s.nodes[-1].output[0] = name
    onnx.save(s.proto(name), tmp_path / "text.onnx")
    np.savez(tmp_path / "in.npz", x=signals(16, seed=2, count=8))
    ended = call("fix", "text.onnx", "--inputs", "in.npz", "-o", "run")
    assert ended.code == 0, ended.err
    assert ("class scores" in ended.out) == told
