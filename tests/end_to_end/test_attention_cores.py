"""Attention in strong typing: what its Softmax needs, its core gets as a whole."""

import numpy as np
import onnx
import pytest

from tests.models.illness import COUNT, Ill
from tests.unit.graph.sketch import Sketch, f32

KEPT = ["scores", "scale", "add", "softmax", "mix"]


def masked() -> Ill:
    """A row is masked as a whole by -65504, and its scores are below -16: NaN in FP16."""
    s, rng = Sketch(), np.random.default_rng(0)
    x, hidden = s.input("x", [1, 8, 16]), s.input("hidden", [1, 8, 8])
    weights = [f32(rng.normal(size=(16, 16), scale=0.25)) for _ in range(3)]
    query = s.op("MatMul", x, weights[0], name="q")
    key = s.op("MatMul", x, -weights[0], name="k")
    value = s.op("MatMul", x, weights[1], name="v")
    turned = s.op("Transpose", key, name="turn", perm=[0, 2, 1])
    scaled = s.op("Mul", s.op("MatMul", query, turned, name="scores"), f32(4.0), name="scale")
    fill = s.op("Mul", hidden, f32(-65_504), name="fill")
    softmax = s.op("Softmax", s.op("Add", scaled, fill, name="add"), name="softmax", axis=-1)
    mixed = s.op("MatMul", softmax, value, name="mix")
    y = s.op("MatMul", mixed, weights[2], name="out")
    # All rows alike: each score is minus a square.
    row = rng.normal(size=(COUNT, 1, 1, 16)).astype(np.float32)
    x_data = row + rng.normal(size=(COUNT, 1, 8, 16), scale=0.05).astype(np.float32)
    rows = np.zeros((COUNT, 1, 8, 8), np.float32)
    rows[:, :, 5] = 1
    return Ill(s.proto(y), {"x": f32(x_data), "hidden": rows}, {"add", "softmax"})


@pytest.mark.parametrize("version", ["10.0.1", "11.4.0"])
def test_a_core_is_kept_whole(engines, version):
    ended = engines(masked(), version=version)
    assert ended.code == 0, ended.err
    found = ended.record["engines"]
    assert found["keep"] == KEPT
    # What the engine was built from: Q, K and V are low and cast up.
    graph = onnx.load(ended.folder / "model.onnx").graph
    made = {name: node for node in graph.node for name in node.output}
    low = onnx.TensorProto.FLOAT16
    types = {
        v.name: v.type.tensor_type.elem_type
        for v in onnx.shape_inference.infer_shapes(
            onnx.load(ended.folder / "model.onnx")
        ).graph.value_info
    }
    for name in ("scores", "mix"):
        (node,) = (n for n in graph.node if n.name == name)
        casts = [made[value] for value in node.input if made[value].op_type == "Cast"]
        assert len(casts) == (2 if name == "scores" else 1)
        assert {types[cast.input[0]] for cast in casts} == {low}


def test_in_weak_typing_engines_decide(engines):
    ended = engines(masked(), version="8.6.1")
    assert ended.code == 0, ended.err
    assert ended.record["engines"]["keep"] == ["add", "softmax"]
