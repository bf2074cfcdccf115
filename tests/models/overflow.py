"""Values that leave the range between two that fit, and sums that do."""

import numpy as np

from tests.models.illness import Ill, illness, signals, weights
from tests.unit.graph.sketch import Sketch, f32


@illness("Overflow on the way")
def conv_chain() -> Ill:
    """The second of three convolutions gives 1e6, which the third brings back."""
    s = Sketch()
    x = s.input("x", [1, 2, 8, 8])
    a = s.op("Conv", x, weights(4, 2, 3, 3, seed=1, scale=0.2), name="conv_a", pads=[1] * 4)
    b = s.op("Conv", a, weights(4, 4, 3, 3, seed=2, scale=1e5), name="conv_b", pads=[1] * 4)
    r = s.op("Relu", b, name="relu")
    c = s.op("Conv", r, weights(2, 4, 3, 3, seed=3, scale=1e-4), name="conv_c", pads=[1] * 4)
    inputs = {"x": signals(1, 2, 8, 8, seed=4)}
    return Ill(s.proto(c), inputs, {"conv_b", "relu", "conv_c"}, {"overflow"})


@illness("Overflow on the way")
def two_readers() -> Ill:
    """A tensor that overflows has two readers: one scales it back, the other is a tanh."""
    s = Sketch()
    x = s.input("x", [1, 16])
    hidden = s.op("MatMul", x, f32(np.eye(16) * 2e5), name="enlarge")
    scaled = s.op("MatMul", hidden, f32(np.eye(16) / 4096), name="reduce")
    y = s.op("Add", scaled, s.op("Tanh", hidden, name="tanh"), name="add")
    inputs = {"x": signals(1, 16, seed=23)}
    return Ill(s.proto(y), inputs, {"enlarge", "reduce"}, {"constant-range", "overflow"})


@illness("Overflow on the way")
def root_mean_square() -> Ill:
    """Squares of values up to 50 fit; sample 3 is twenty times as large, and its squares do not."""
    s = Sketch()
    x = s.input("x", [1, 2, 16])
    square = s.op("Mul", x, x, name="square")
    mean = s.op("ReduceMean", square, name="mean", axes=[-1])
    inputs = {"x": signals(1, 2, 16, seed=18, peak=50)}
    inputs["x"][3] *= 20
    y = s.op("Sqrt", mean, name="root")
    return Ill(s.proto(y), inputs, {"square", "mean", "root"}, {"square", "overflow"})


@illness("Overflow on the way", "huggingface/transformers#5651")
def feed_forward() -> Ill:
    """Gate times up-projection reaches 160,000; the down-projection brings it back."""
    s = Sketch()
    x = s.input("x", [1, 4, 8])
    up = s.op("MatMul", x, weights(8, 16, seed=31, scale=100), name="up")
    gate = s.op("Relu", s.op("MatMul", x, weights(8, 16, seed=32, scale=100), name="gate"))
    product = s.op("Mul", gate, up, name="product")
    y = s.op("MatMul", product, weights(16, 8, seed=33, scale=1e-3), name="down")
    inputs = {"x": signals(1, 4, 8, seed=34, peak=2)}
    return Ill(s.proto(y), inputs, {"product", "down"}, {"overflow"})


@illness("Overflow on the way", "vllm-project/vllm#17364")
def residual_sum() -> Ill:
    """A stream of 58,820 and a block's 33,760 both fit, their sum does not; a norm reads it."""
    s = Sketch()
    x = s.input("x", [1, 4, 8])
    stream = s.op("Mul", x, f32(58_820), name="stream")
    block = s.op("Mul", x, f32(33_760), name="block")
    total = s.op("Add", stream, block, name="add")
    y = s.op("LayerNormalization", total, f32(np.ones(8)), name="norm")
    inputs = {"x": signals(1, 4, 8, seed=35)}
    # Twice their range leaves FP16's too: without headroom the sum alone is the illness.
    return Ill(
        s.proto(y), inputs, {"add", "norm"}, {"overflow"}, options=("--require", "headroom=1")
    )


@illness("Overflow on the way", "vllm-project/vllm#40290")
def large_bias() -> Ill:
    """Standardising: subtracting the bias -53,760 leaves the range, which the bias itself fits."""
    s = Sketch()
    x = s.input("x", [1, 32])
    shifted = s.op("Sub", x, f32(-53_760), name="subtract")
    y = s.op("Mul", shifted, f32(1 / 8192), name="scale")
    inputs = {"x": f32(14_000 + signals(1, 32, seed=36, peak=2000))}
    return Ill(s.proto(y), inputs, {"subtract", "scale"}, {"overflow"})


@illness("Overflow on the way", "NVIDIA/TensorRT#1954")
def sum_then_divide() -> Ill:
    """A global mean that sums 4096 pixels first and divides afterwards."""
    s = Sketch()
    x = s.input("x", [1, 2, 64, 64])
    total = s.op("ReduceSum", x, [2, 3], name="sum")
    y = s.op("Div", total, f32(4096), name="divide")
    inputs = {"x": f32(np.abs(signals(1, 2, 64, 64, seed=37, peak=100)) + 20)}
    return Ill(s.proto(y), inputs, {"sum", "divide"}, {"overflow"})


@illness("Beyond the calibrated range")
def near_the_edge(peak: float = 40_000) -> Ill:
    """A hidden tensor that reaches 40,000, which fits, and would matter if it did not."""
    s = Sketch()
    x = s.input("x", [1, 16])
    hidden = s.op("MatMul", x, f32(np.eye(16) * peak), name="enlarge")
    y = s.op("MatMul", hidden, f32(np.eye(16) / 4096), name="reduce")
    inputs = {"x": signals(1, 16, seed=17)}
    return Ill(s.proto(y), inputs, {"enlarge", "reduce"}, {"headroom"})


@illness("Beyond the calibrated range")
def small_token() -> Ill:
    """RMSNorm of tokens of which the one with an outlier hardly counts: infinite, and it passes.

    Each counts a little less than the one before, so all are of one scale, and the last ones count
    too little to be held to scales of their own.
    """
    s = Sketch()
    x = s.input("x", [1, 16, 16])
    mean = s.op("ReduceMean", s.op("Pow", x, f32(2.0), name="square"), name="mean", axes=[-1])
    root = s.op("Sqrt", s.op("Add", mean, f32(1e-5), name="eps"), name="root")
    normal = s.op("Div", x, root, name="divide")
    y = s.op("Mul", normal, f32(64 * 2.5 ** -np.arange(16.0)[:, None]), name="count")
    inputs = {"x": signals(1, 16, 16, seed=150)}
    inputs["x"][:, :, 15, 5] = 3000
    return Ill(s.proto(y), inputs, {"square", "mean", "eps", "root"}, {"infinite"})
