"""Small models in the manner of those that users bring: what they are made of, and how they fail.

Every one is a function of no argument, drawn from a seed of its own. The sizes are those at which
a run takes seconds.
"""

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.models import Ill, signals
from tests.unit.graph.sketch import Sketch, f32

COUNT = 12
"""Samples of each."""
IMAGE = (3, 32, 48)
"""Channels, height and width of an image."""


def images(seed: int) -> NDArray[np.float32]:
    """Return f32[COUNT, *IMAGE], smooth along both axes, 0 to 255."""
    rows = np.cumsum(signals(*IMAGE, seed=seed, count=COUNT), axis=-2)
    low, high = (f(rows, axis=(1, 2, 3), keepdims=True) for f in (np.min, np.max))
    return f32(255 * (rows - low) / (high - low))


class Layers(Sketch):
    """Adds layers as PyTorch's exporter writes them out; weights are normal, from the seed."""

    def __init__(self, opset: int, seed: int, *, width: int = 16) -> None:
        """Begin a graph whose tokens have `width` channels."""
        super().__init__(opset)
        self.rng, self.width = np.random.default_rng(seed), width

    def weights(self, *shape: int, gain: float = 1.0) -> NDArray[np.float32]:
        """Return weights that multiply the variance by `gain`²; all but the last axis are summed.

        A convolution's `shape` begins with the channels that it gives, which are not summed.
        """
        summed = shape[:-1] if len(shape) == 2 else shape[1:]
        return f32(self.rng.normal(0, gain * np.prod(summed) ** -0.5, shape))

    def conv(
        self, x: str, name: str, inside: int, outside: int, *, stride: int = 1, gain: float = 1.4
    ) -> str:
        w, bias = self.weights(outside, inside, 3, 3, gain=gain), self.vector(outside, 0.05)
        return self.op("Conv", x, w, bias, name=name, pads=[1] * 4, strides=[stride] * 2)

    def vector(self, size: int, spread: float, mean: float = 0.0) -> NDArray[np.float32]:
        return f32(self.rng.normal(mean, spread, size))

    def linear(self, x: str, name: str, inside: int, outside: int, *, gain: float = 1.0) -> str:
        product = self.op(
            "MatMul", x, self.weights(inside, outside, gain=gain), name=f"{name}/MatMul"
        )
        return self.op("Add", product, self.vector(outside, 0.02), name=f"{name}/Add")

    def layer_norm(self, x: str, name: str) -> str:
        gamma, beta = self.vector(self.width, 0.1, 1.0), self.vector(self.width, 0.1)
        if self.opset >= 17:
            return self.op("LayerNormalization", x, gamma, beta, name=name, axis=-1)
        mean = self.op("ReduceMean", x, name=f"{name}/ReduceMean", axes=[-1])
        centred = self.op("Sub", x, mean, name=f"{name}/Sub")
        square = self.op("Pow", centred, 2.0, name=f"{name}/Pow")
        variance = self.op("ReduceMean", square, name=f"{name}/ReduceMean_1", axes=[-1])
        shifted = self.op("Add", variance, f32(1e-5), name=f"{name}/Add")
        normal = self.op("Div", centred, self.op("Sqrt", shifted, name=f"{name}/Sqrt"))
        return self.op("Add", self.op("Mul", normal, gamma, name=f"{name}/Mul"), beta)

    def attention(self, x: str, other: str, name: str, *, mask: str = "") -> str:
        """Add attention of `x` over `other`, both [n, t, width], with one head."""
        size = self.width
        query, key, value = (
            self.linear(source, f"{name}/{part}", size, size)
            for source, part in ((x, "q"), (other, "k"), (other, "v"))
        )
        turned = self.op("Transpose", key, name=f"{name}/Transpose", perm=[0, 2, 1])
        scores = self.op("MatMul", query, turned, name=f"{name}/MatMul")
        scores = self.op("Div", scores, f32(size**0.5), name=f"{name}/Div")
        if mask:
            scores = self.op("Add", scores, mask, name=f"{name}/Add")
        shares = self.op("Softmax", scores, name=f"{name}/Softmax", axis=-1)
        mixed = self.op("MatMul", shares, value, name=f"{name}/MatMul_1")
        return self.linear(mixed, f"{name}/o", size, size)

    def tokens(self, x: str, name: str) -> str:
        """Return [n, width, h, w] as [n, h · w, width]."""
        flat = self.op("Reshape", x, [0, self.width, -1], name=f"{name}/Reshape")
        return self.op("Transpose", flat, name=f"{name}/Transpose", perm=[0, 2, 1])

    def gelu(self, x: str, name: str) -> str:
        erf = self.op("Erf", self.op("Div", x, f32(2**0.5), name=f"{name}/Div"), name=f"{name}/Erf")
        product = self.op("Mul", x, self.op("Add", erf, f32(1.0)), name=f"{name}/Mul")
        return self.op("Mul", product, f32(0.5), name=f"{name}/Mul_1")


def convs() -> Ill:
    """Convolutions without norms, each of which makes values larger: the last ones overflow."""
    s = Layers(13, seed=1)
    x = s.input("x", ["n", 3, "h", "w"])
    for i in range(7):
        x = s.conv(x, f"/c.{i}/Conv", 3 if i == 0 else 12, 12, gain=7.0)
        x = s.op("Relu", x, name=f"/Relu_{i}")
    y = s.op("Conv", x, s.weights(3, 12, 3, 3, gain=1e-5), name="/head/Conv", pads=[1] * 4)
    return Ill(s.proto(y), {"x": images(1) / f32(255)})


def text_encoder() -> Ill:
    """A text encoder in the manner of CLIP: two channels of the tokens are outliers, LayerNorms are
    written out, the mask is FP32's lowest value, and the last token is found by ArgMax.
    """
    length, words, layers = 12, 200, 3
    s = Layers(14, seed=2, width=32)
    text = s.input("text", ["n", length], onnx.TensorProto.INT64)
    table = s.weights(words, s.width, gain=words**0.5)
    table[:, :2] += f32([900.0, -500.0])
    lowest = float(np.finfo(np.float32).min)
    mask = s.constant(f32(np.triu(np.full((length, length), lowest), 1)), "mask")
    x = s.op("Gather", f32(table), text, name="/tok/Gather")
    x = s.op("Add", x, s.weights(length, s.width), name="/Add")
    for i in range(layers):
        x = s.op("Add", x, _causal(s, x, i, mask), name=f"/Add_{i}")
        wide = s.linear(s.layer_norm(x, f"/ln2.{i}"), f"/f1.{i}", s.width, 4 * s.width)
        gate = s.op("Sigmoid", s.op("Mul", wide, f32(1.702)), name=f"/Sigmoid_{i}")
        active = s.op("Mul", wide, gate, name=f"/Mul_{i}")
        x = s.op("Add", x, s.linear(active, f"/f2.{i}", 4 * s.width, s.width), name=f"/Add_f.{i}")
    x = s.layer_norm(x, "/lnf")
    last = s.op("ArgMax", text, name="/ArgMax", axis=-1, keepdims=0)
    hot = s.op("OneHot", last, np.asarray(length), f32([0, 1]), name="/OneHot")
    chosen = s.op("MatMul", s.op("Unsqueeze", hot, [1]), x, name="/MatMul")
    pooled = s.op("MatMul", s.op("Squeeze", chosen, [1]), s.weights(s.width, 16), name="/pooled")
    texts = np.random.default_rng(3).integers(1, words - 1, (COUNT, 1, length))
    texts[np.arange(COUNT), 0, np.random.default_rng(4).integers(3, length, COUNT)] = words - 1
    return Ill(s.proto(pooled, x), {"text": texts})


def _causal(s: Layers, x: str, i: int, mask: str) -> str:
    normal = s.layer_norm(x, f"/ln1.{i}")
    return s.attention(normal, normal, f"/attn.{i}", mask=mask)


def flow(opset: int) -> Ill:
    """A flow transformer in the manner of UniMatch: InstanceNorms, attention within and across two
    images, LayerNorms (written out below opset 17), and the global correlation of both.
    """
    s = Layers(opset, seed=5)
    sides = []
    kernels = [(s.weights(12, 3, 3, 3), 3), (s.weights(s.width, 12, 3, 3, gain=1.4), 12)]
    for k in range(2):
        x = s.input(f"img{k}", ["n", *IMAGE])
        x = s.op("Div", s.op("Sub", s.op("Div", x, f32(255)), f32(0.45)), f32(0.22))
        for j, (kernel, _) in enumerate(kernels):
            x = s.op("Conv", x, kernel, name=f"/enc.{j}_{k}/Conv", pads=[1] * 4, strides=[2, 2])
            rows = (f32(np.ones(len(kernel))), f32(np.zeros(len(kernel))))
            x = s.op("InstanceNormalization", x, *rows, name=f"/enc.{j}_{k}/InstanceNormalization")
            x = s.op("Relu", x, name=f"/enc.{j}_{k}/Relu") if j == 0 else x
        sides.append(s.tokens(x, f"/tokens_{k}"))
    for i in range(2):
        for across in (False, True):
            at = f"/layers.{i}/{'cross' if across else 'self'}"
            others = sides[::-1] if across else sides
            sides = [
                _crossed(s, x, y, f"{at}_{k}")
                for k, (x, y) in enumerate(zip(sides, others, strict=True))
            ]
    turned = s.op("Transpose", sides[1], name="/Transpose", perm=[0, 2, 1])
    scores = s.op("MatMul", sides[0], turned, name="/MatMul")
    shares = s.op("Softmax", s.op("Div", scores, f32(s.width**0.5), name="/Div"), name="/Softmax")
    height, width = IMAGE[1] // 4, IMAGE[2] // 4
    grid = np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1).reshape(-1, 2)
    moved = s.op("MatMul", shares, f32(grid), name="/MatMul_1")
    y = s.op("Sub", moved, f32(grid), name="/Sub")
    y = s.op("Reshape", s.op("Transpose", y, perm=[0, 2, 1]), [0, 2, height, width])
    y = s.op("Mul", s.op("Resize", y, "", f32([1, 1, 4, 4]), name="/Resize"), f32(4), name="/flow")
    first = images(6)
    return Ill(s.proto(y), {"img0": first, "img1": f32(np.roll(first, 4, axis=-1))})


def _crossed(s: Layers, x: str, other: str, name: str) -> str:
    mixed = s.layer_norm(s.attention(x, other, name), f"{name}/n1")
    both = s.op("Concat", x, mixed, name=f"{name}/Concat", axis=-1)
    wide = s.op("MatMul", both, s.weights(2 * s.width, 4 * s.width, gain=60.0), name=f"{name}/f1")
    narrow = s.op("MatMul", s.gelu(wide, f"{name}/act"), s.weights(4 * s.width, s.width, gain=20.0))
    return s.op("Add", x, s.layer_norm(narrow, f"{name}/n2"), name=f"{name}/Add_1")


def flow16() -> Ill:
    """`flow` with LayerNorms written out."""
    return flow(16)


def flow17() -> Ill:
    """`flow` with the LayerNormalization operator."""
    return flow(17)


def detector() -> Ill:
    """A detector in the manner of RT-DETR: backbone, encoder, and queries that attend to it."""
    queries = 8
    s = Layers(16, seed=7)
    x = s.input("images", ["n", *IMAGE])
    x = s.op("Div", x, f32(255), name="/Div")
    for i, (inside, outside) in enumerate(((3, 12), (12, 24), (24, s.width))):
        x = s.conv(x, f"/b.{i}/Conv", inside, outside, stride=2)
        x = s.op("Relu", x, name=f"/b.{i}/Relu")
    x = s.tokens(x, "/tokens")
    x = s.layer_norm(s.op("Add", x, s.attention(x, x, "/enc"), name="/enc/Add"), "/enc/n1")
    wide = s.gelu(s.linear(x, "/enc/f1", s.width, 4 * s.width), "/enc/act")
    x = s.layer_norm(s.op("Add", x, s.linear(wide, "/enc/f2", 4 * s.width, s.width)), "/enc/n2")
    asked = s.constant(s.weights(1, queries, s.width, gain=4.0), "queries")
    found = s.layer_norm(s.attention(asked, x, "/dec"), "/dec/n1")
    scores = s.op("Sigmoid", s.linear(found, "/cls", s.width, 10, gain=3.0), name="/scores")
    boxes = s.op("Sigmoid", s.linear(found, "/box", s.width, 4), name="/boxes")
    return Ill(s.proto(scores, boxes), {"images": images(8)})


def cast_int() -> Ill:
    """A Cast to integers, whose result steps where rounding reaches a whole number."""
    s = Sketch()
    x = s.op("Relu", s.input("x", ["n", 8]), name="/relu")
    whole = s.op("Cast", x, name="/to_int", to=onnx.TensorProto.INT64)
    back = s.op("Cast", whole, name="/to_float", to=onnx.TensorProto.FLOAT)
    y = s.op("Mul", back, f32(0.125), name="/mul")
    values = signals(8, seed=9, peak=8.0, count=24)
    values[:, ::3] = np.floor(values[:, ::3]) + f32(0.9999)
    return Ill(s.proto(y), {"x": values})


def frozen() -> Ill:
    """An export at batch 2, declared dynamic: it runs at no other batch."""
    s = Layers(17, seed=10, width=8)
    x = s.linear(s.input("x", ["n", 6, 8]), "/mix", 8, 8)
    heads = s.op("Reshape", x, [2, 6, 2, -1], name="/split")
    turned = s.op("Transpose", heads, name="/turn", perm=[0, 1, 3, 2])
    y = s.linear(s.op("Reshape", turned, [2, 6, -1], name="/join"), "/last", 8, 8)
    return Ill(s.proto(y), {"x": signals(6, 8, seed=11, count=COUNT)})
