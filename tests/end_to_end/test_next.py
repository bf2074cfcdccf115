"""The commands under "Next" run as they are printed."""

import shlex

import numpy as np
import onnx
import pytest

from tests import models
from tests.models import signals, weights
from tests.unit.graph.sketch import Sketch


@pytest.fixture
def dynamic(tmp_path):
    """Two convolutions over any batch and size; the first gives what FP16 cannot hold."""
    s = Sketch()
    x = s.input("x", ["batch", 2, "height", "width"])
    a = s.op("Conv", x, weights(4, 2, 3, 3, seed=1, scale=1e6), name="conv_a", pads=[1] * 4)
    y = s.op("Conv", a, weights(2, 4, 3, 3, seed=2, scale=1e-5), name="conv_b", pads=[1] * 4)
    onnx.save(s.proto(y), tmp_path / "model.onnx")
    (tmp_path / "data").mkdir()
    for i, (height, width) in enumerate([(8, 8), (8, 8), (6, 10), (8, 8)]):
        np.save(tmp_path / f"data/{i}.npy", signals(2, height, width, seed=i, count=1))
    return tmp_path


def commands(ended):
    steps = [step["command"] for step in ended.record["next_step"] if step["command"]]
    assert all(shlex.join(step) in ended.out for step in steps)
    return [w for w in steps if w[0] == "trtexec" or w[:2] == ["halfwise", "export"]]


def test_engines_get_the_shapes_of_the_samples(call, dynamic):
    options = ("--inputs", "data", "--no-repair")
    ended = call("fix", "model.onnx", *options, "-o", "my run", folder="my run")
    assert ended.code == 0, ended.err
    (strong,) = commands(ended)
    shapes = [
        "--minShapes=x:1x2x6x8",
        "--optShapes=x:1x2x8x8",
        "--maxShapes=x:1x2x8x10",
    ]
    assert strong[0] == "trtexec"
    assert [word for word in strong if "Shapes" in word] == shapes
    assert strong[1] == "--onnx=my run/model.onnx"
    assert strong[-1] == "--saveEngine=my run/model.engine"
    folder = ("--trt-version", "8.6", "-o", "my run/tensorrt-8.6")
    exported = call("export", "my run", "--as", "python", *folder)
    assert exported.code == 0, exported.err
    assert "shapes of the run's samples" in exported.err
    script = (dynamic / "my run/tensorrt-8.6/build_engine.py").read_text()
    assert "'max': [1, 2, 8, 10]" in script
    assert "'keep': ['conv_a'" in script


@pytest.mark.usefixtures("dynamic")
def test_export_takes_the_profile_of_the_samples_unless_another_is_given(call):
    assert call("fix", "model.onnx", "--inputs", "data", "-o", "run").code == 0
    plain = call("export", "run", "--as", "trtexec")
    assert "--optShapes=x:1x2x8x8" in plain.out
    own = call("export", "run", "--as", "trtexec", "--engine", "maxShapes=x:8x2x9x9")
    assert "--maxShapes=x:8x2x9x9" in own.out
    assert "x:1x2x8x8" not in own.out
    assert "shapes of the run's samples" not in own.err


def test_names_that_trtexec_cannot_be_told(call, tmp_path):
    s = Sketch()
    x = s.input("x,y", ["batch", 16])
    y = s.op("MatMul", x, weights(16, 16, seed=1, scale=1e6), name="a,b")
    y = s.op("MatMul", y, weights(16, 4, seed=2, scale=1e-5), name="c")
    onnx.save(s.proto(y), tmp_path / "model.onnx")
    np.savez(tmp_path / "in.npz", **{"x,y": signals(16, seed=3, count=4)})  # type: ignore[arg-type]
    ended = call("fix", "model.onnx", "--inputs", "in.npz", "-o", "run")
    assert ended.code == 0, ended.err
    for words in commands(ended):
        assert words[:2] == ["halfwise", "export"]
        assert words[4] == "python"
        exported = call(*words[1:])
        assert exported.code == 0, exported.err


def test_kept_nodes_with_bodies_have_no_constraints(fix):
    ill = models.two_bodies()
    graph = ill.proto.graph
    large = onnx.numpy_helper.from_array(weights(64, 4096, seed=1, scale=1.0), "large")
    graph.initializer.append(large)  # what it saves makes the plan one to build
    graph.node.append(onnx.helper.make_node("MatMul", ["y", "large"], ["z"], "product"))
    graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("z", 1, [1, 8, 4096]))
    ended = fix(ill, "--keep-op", "If")
    assert ended.code == 0, ended.err
    steps = [step["kind"] for step in ended.record["next_step"]]
    assert "build" in steps
