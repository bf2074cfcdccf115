"""Attention: scores beyond the range, and masks of every size."""

import numpy as np
from onnx import TensorProto

from tests.models.illness import COUNT, Ill, illness, signals
from tests.unit.graph.sketch import Sketch, f32

FAMILY = "Attention and masks"


def lengths() -> np.ndarray:
    """Return bool[COUNT, 1, 1, 8]: the first 1, 2, … of 8 keys may be seen."""
    return (np.arange(8) < 1 + np.arange(COUNT)[:, None])[:, None, None]


@illness(FAMILY, "NVIDIA/TensorRT#3999", "NVIDIA/TensorRT#4837")
def query_key() -> Ill:
    """Queries from -399 to 466 times keys as large: the scores reach 1e6 before the Softmax."""
    s = Sketch()
    query, key = s.input("query", [1, 8, 8]), s.input("key", [1, 8, 8])
    turned = s.op("Transpose", key, name="turn", perm=[0, 2, 1])
    scores = s.op("MatMul", query, turned, name="scores")
    scaled = s.op("Mul", scores, f32(8**-0.5), name="scale")
    y = s.op("Softmax", scaled, name="softmax", axis=-1)
    inputs = {
        "query": signals(1, 8, 8, seed=60, peak=466),
        "key": signals(1, 8, 8, seed=61, peak=466),
    }
    return Ill(s.proto(y), inputs, {"scores", "scale", "softmax"}, {"overflow"})


@illness(FAMILY, "NVIDIA/TensorRT#2466")
def mask() -> Ill:
    """Attention scores plus (1 - mask) · -3.4e38: the constant saturates, and that is enough."""
    s = Sketch()
    scores = s.input("scores", [1, 8, 8])
    allowed = s.input("allowed", [1, 1, 8])
    hidden = s.op("Sub", f32(1.0), allowed, name="hidden")
    lowest = s.constant(f32(np.finfo(np.float32).min), "lowest")
    added = s.op("Add", scores, s.op("Mul", hidden, lowest, name="fill"), name="add")
    y = s.op("Softmax", added, name="softmax", axis=-1)
    return Ill(s.proto(y), {"scores": signals(1, 8, 8, seed=8, peak=6), "allowed": f32(lengths())})


@illness(FAMILY, "NVIDIA/TensorRT#2466")
def mask_of_a_billion() -> Ill:
    """Masks of -1e9 saturate at -65504: no score comes near."""
    s = Sketch()
    scores = s.input("scores", [1, 8, 8])
    allowed = s.input("allowed", [1, 1, 8])
    hidden = s.op("Sub", f32(1.0), allowed, name="hidden")
    added = s.op("Add", scores, s.op("Mul", hidden, f32(-1e9), name="fill"), name="add")
    y = s.op("Softmax", added, name="softmax", axis=-1)
    return Ill(s.proto(y), {"scores": signals(1, 8, 8, seed=62, peak=6), "allowed": f32(lengths())})


@illness(FAMILY, "NVIDIA/TensorRT#2466")
def mask_infinite() -> Ill:
    """Masked scores are replaced by -inf, which FP16 has too."""
    s = Sketch()
    scores = s.input("scores", [1, 8, 8])
    allowed = s.input("allowed", [1, 1, 8], TensorProto.BOOL)
    chosen = s.op("Where", allowed, scores, f32(-np.inf), name="choose")
    y = s.op("Softmax", chosen, name="softmax", axis=-1)
    return Ill(s.proto(y), {"scores": signals(1, 8, 8, seed=63, peak=6), "allowed": lengths()})


@illness(FAMILY, "NVIDIA/TensorRT#2466", "huggingface/transformers#17306")
def mask_at_the_edge() -> Ill:
    """-65504 plus a score of -16 is -inf, and a fully masked row becomes NaN."""
    s = Sketch()
    scores = s.input("scores", [1, 8, 8])
    bias = s.input("bias", [1, 8, 8])
    fill = s.op("Mul", bias, f32(-65_504), name="fill")
    y = s.op("Softmax", s.op("Add", scores, fill, name="add"), name="softmax", axis=-1)
    hidden = np.broadcast_to(~lengths(), (COUNT, 1, 8, 8)).copy()
    hidden[:, :, 5] = True
    inputs = {"scores": f32(signals(1, 8, 8, seed=64, peak=6) - 30), "bias": f32(hidden)}
    return Ill(s.proto(y), inputs, {"add", "softmax"}, {"mask"})


@illness(FAMILY, "NVIDIA/TensorRT#2466", "huggingface/transformers#17306")
def mask_of_whole_rows() -> Ill:
    """-3.4e38 in whole rows: FP32 gives equal weights there, FP16 0/0."""
    s = Sketch()
    scores = s.input("scores", [1, 8, 8])
    bias = s.input("bias", [1, 8, 8])
    lowest = s.constant(f32(np.finfo(np.float32).min), "lowest")
    fill = s.op("Mul", bias, lowest, name="fill")
    y = s.op("Softmax", s.op("Add", scores, fill, name="add"), name="softmax", axis=-1)
    hidden = np.broadcast_to(~lengths(), (COUNT, 1, 8, 8)).copy()
    hidden[:, :, 5] = True
    inputs = {"scores": f32(signals(1, 8, 8, seed=65, peak=6) - 30), "bias": f32(hidden)}
    return Ill(s.proto(y), inputs, {"fill", "add", "softmax"}, {"mask"})
