"""What outputs are taken for: slices with scales of their own, inner tensors, errors that rise."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.end_to_end.conftest import fixing
from tests.models import signals, weights
from tests.unit.graph.sketch import Sketch, f32

SLICES = "slices 4-7 of axis 1"


def detector(*, flat: bool = False) -> onnx.ModelProto:
    """Return a model of [1, 4, 60] twice → [1, 8, 60]: boxes in pixels, then scores.

    The scores' logits go through a sum of 4,000, where FP16 has steps of 4.

    Args:
        flat: All scores are 0.5 instead.
    """
    s = Sketch()
    boxes, features = (s.input(name, [1, 4, 60]) for name in ("boxes", "features"))
    pixels = s.op("Add", s.op("Mul", boxes, f32(300.0), name="scale"), f32(320.0), name="pixels")
    logits = s.op("Add", s.op("Mul", features, f32(3.0), name="gain"), f32(4000.0), name="up")
    logits = s.op("Sub", logits, f32(4000.0), name="down")
    if flat:
        logits = s.op("Mul", logits, f32(0.0), name="nothing")
    scores = s.op("Sigmoid", logits, name="score")
    return s.proto(s.op("Concat", pixels, scores, name="joined", axis=1))


@pytest.fixture
def boxes(tmp_path):
    walks = np.random.default_rng(0).standard_normal((2, 24, 1, 4, 60)).cumsum(-1)
    boxes, features = f32(walks / np.abs(walks).max())
    np.savez(tmp_path / "model.npz", boxes=boxes, features=features)
    onnx.save(detector(), tmp_path / "model.onnx")
    onnx.save(detector(flat=True), tmp_path / "flat.onnx")


@pytest.mark.usefixtures("boxes")
def test_scores_that_are_all_a_half_fail(call):
    ended = call("verify", "model.onnx", "flat.onnx", "--inputs", "model.npz", "-o", "run")
    assert ended.code == 10, ended.err
    verdict = ended.record["verdict"]
    (output,) = verdict["outputs"].values()
    assert output["rel_max"] < 0.01
    boxes, scores = sorted(output["groups"], key=lambda group: -group["scale"])
    assert (scores["axis"], scores["ranges"], scores["passed"]) == (1, [[4, 7]], False)
    assert (boxes["ranges"], boxes["passed"]) == ([[0, 3]], True)
    (failure,) = verdict["failures"]
    assert failure["kind"] == "tolerance"
    assert scores["worst_sample"] in failure["names"].values()
    assert SLICES in ended.out


@pytest.mark.usefixtures("boxes")
def test_what_the_scores_need_is_kept(call):
    ended = call(*fixing("model.onnx"))
    assert ended.code == 0, ended.err
    assert {"up", "down"} <= ended.kept
    assert not ended.kept & {"scale", "pixels"}
    assert SLICES in ended.out


@pytest.fixture
def every(tmp_path):
    """A model that overflows inside; its outputs bear neither type nor shape."""
    s = Sketch()
    x = s.input("x", ["n", 4])
    large = s.op("Mul", s.op("Relu", x, name="relu"), s.constant(f32([3e5] * 4), "w"), name="large")
    y = s.op("Mul", large, 1e-5, name="small")
    s.nodes.append(onnx.helper.make_node("TopK", [y, s.constant([2], "k")], ["v", "i"], name="top"))
    proto = s.proto("v")
    names = [name for node in proto.graph.node for name in node.output]
    del proto.graph.output[:]
    # Twice the same, a constant, and the input, which has a shape.
    for name in (*names, "v", "w", "x"):
        proto.graph.output.append(onnx.ValueInfoProto(name=name))
    del proto.graph.value_info[:]
    onnx.save(proto, tmp_path / "every.onnx")
    np.savez(tmp_path / "in.npz", x=signals(4, seed=3, count=8))
    return names


def test_its_tensors_are_observed(call, every):
    ended = call("observe", "every.onnx", "--inputs", "in.npz")
    assert ended.code == 0, ended.err
    assert "1 of 5 tensors reach 10000" in ended.out
    assert len(every) == 5


@pytest.mark.usefixtures("every")
def test_it_is_fixed_and_verified(call):
    fixed = call("fix", "every.onnx", "--inputs", "in.npz", "-o", "run")
    assert fixed.code == 0, fixed.err
    # Scaled, and brought back for the output that it is, the tensor would cost more.
    assert fixed.kept == {"large", "small"}
    outputs = {o.name: o.type.tensor_type for o in onnx.load(fixed.model).graph.output}
    assert {"relu_out", "large_out", "small_out", "v", "i", "w", "x"} == set(outputs)
    assert outputs["i"].elem_type == TensorProto.INT64
    judged = call("verify", "every.onnx", "run/model.onnx", "--inputs", "in.npz")
    assert judged.code == 0, judged.err


@pytest.fixture
def flow(tmp_path):
    """A convolution whose two channels are called a flow, in pixels."""
    s = Sketch()
    x = s.input("x", ["n", 3, "h", "w"])
    y = s.op("Conv", x, weights(2, 3, 3, 3, seed=1, scale=3.0), name="conv", pads=[1] * 4)
    onnx.save(s.proto(y), tmp_path / "flow.onnx")
    np.savez(tmp_path / "in.npz", x=signals(3, 8, 9, seed=2, count=4))


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
    assert "-0" not in told.partition("Task metrics")[2].partition("In figures")[0]


@pytest.mark.parametrize(("name", "told"), [("y", False), ("embedding", False), ("logits", True)])
def test_an_embedding_is_not_called_class_scores(call, tmp_path, name, told):
    s = Sketch()
    s.op("MatMul", s.input("x", ["n", 16]), weights(16, 64, seed=1, scale=1.0), name="project")
    s.nodes[-1].output[0] = name
    onnx.save(s.proto(name), tmp_path / "text.onnx")
    np.savez(tmp_path / "in.npz", x=signals(16, seed=2, count=8))
    ended = call("fix", "text.onnx", "--inputs", "in.npz", "-o", "run")
    assert ended.code == 0, ended.err
    assert ("class scores" in ended.out) == told
