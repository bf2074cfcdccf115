"""Positions, angles and coordinates: integers that FP16 cannot tell apart."""

import numpy as np
from onnx import TensorProto

from tests.models.illness import COUNT, Ill, illness, signals
from tests.unit.graph.sketch import Sketch, f32

FAMILY = "Positions, angles and coordinates"
SIDE = 4096


def counted() -> np.ndarray:
    """Return i64[COUNT, 1, 16]: positions up to about 4400, in steps of 11."""
    starts = np.arange(COUNT)[:, None, None] * 600
    return (starts + np.arange(16) * 11).astype(np.int64)


@illness(FAMILY, "pytorch/pytorch#81926", "huggingface/candle#3520")
def rotary() -> Ill:
    """Sines and cosines of positions up to 4365 times frequencies."""
    s = Sketch()
    positions = s.input("positions", [1, 16], TensorProto.INT64)
    column = s.op("Unsqueeze", positions, [-1], name="column")
    number = s.op("Cast", column, name="count", to=TensorProto.FLOAT)
    angle = s.op("Mul", number, f32([1.0, 0.3, 0.1, 0.03]), name="angle")
    sine, cosine = s.op("Sin", angle, name="sine"), s.op("Cos", angle, name="cosine")
    inputs = {"positions": counted()}
    return Ill(s.proto(sine, cosine), inputs, {"angle", "sine", "cosine"}, {"angle"})


@illness(FAMILY, "pytorch/pytorch#81926", "openvinotoolkit/openvino#29556")
def patch_columns() -> Ill:
    """The column of a patch, its number mod 64, for numbers above 2048."""
    s = Sketch()
    positions = s.input("positions", [1, 16], TensorProto.INT64)
    number = s.op("Cast", positions, name="count", to=TensorProto.FLOAT)
    y = s.op("Mod", number, f32(64.0), name="column", fmod=1)
    return Ill(s.proto(y), {"positions": counted()}, {"column"}, {"integer"})


@illness(FAMILY, "pytorch/pytorch#89836", "pytorch/pytorch#94816")
def grid_sample() -> Ill:
    """A grid made from pixel numbers, over an image 4096 pixels wide."""
    s = Sketch()
    image = s.input("image", [1, 1, 1, SIDE])
    pixels = s.input("pixels", [1, 1, 16], TensorProto.INT64)
    number = s.op("Cast", pixels, name="count", to=TensorProto.FLOAT)
    across = s.op("Mul", number, f32(2 / (SIDE - 1)), name="stretch")
    x = s.op("Unsqueeze", s.op("Sub", across, f32(1.0), name="shift"), [-1], name="column")
    down = s.constant(f32(np.zeros((1, 1, 16, 1))), "down")
    grid = s.op("Concat", x, down, name="grid", axis=-1)
    y = s.op("GridSample", image, grid, name="sample", align_corners=1)
    generator = np.random.default_rng(91)
    inputs: dict[str, np.ndarray] = {
        "image": f32(generator.uniform(-0.9, 0.9, (COUNT, 1, 1, 1, SIDE))),
        "pixels": generator.integers(0, SIDE, (COUNT, 1, 1, 16)),
    }
    return Ill(s.proto(y), inputs, {"stretch", "shift", "sample"}, {"grid"})


@illness(FAMILY, "pytorch/pytorch#89836", "pytorch/pytorch#96429")
def warp() -> Ill:
    """An image warped by a flow of a few pixels: stored, the sums are off by a whole pixel."""
    s = Sketch()
    image = s.input("image", [1, 1, 1, SIDE])
    flow = s.input("flow", [1, 1, 16, 1])
    pixels = s.constant(f32(np.arange(SIDE - 20, SIDE - 4).reshape(1, 1, 16, 1)), "pixels")
    moved = s.op("Add", pixels, flow, name="move")
    x = s.op("Sub", s.op("Mul", moved, f32(2 / (SIDE - 1)), name="stretch"), f32(1.0), name="shift")
    down = s.constant(f32(np.zeros((1, 1, 16, 1))), "down")
    grid = s.op("Concat", x, down, name="grid", axis=-1)
    y = s.op("GridSample", image, grid, name="sample", align_corners=1)
    generator = np.random.default_rng(93)
    inputs = {
        "image": f32(generator.uniform(-0.9, 0.9, (COUNT, 1, 1, 1, SIDE))),
        "flow": signals(1, 1, 16, 1, seed=94, peak=3),
    }
    return Ill(s.proto(y), inputs, {"move", "stretch", "shift", "sample"}, {"grid", "integer"})


@illness(FAMILY, "NVIDIA/Model-Optimizer#436", "microsoft/onnxruntime#9789")
def resize() -> Ill:
    """Upsampling to 4099 pixels: scales stay FP32 in a low Resize, so nothing is kept."""
    s = Sketch()
    x = s.input("x", [1, 1, 1, 16])
    s.constant(f32([]), "roi")
    y = s.op("Resize", x, "roi", f32([1, 1, 1, 4099 / 16]), name="resize", mode="linear")
    return Ill(s.proto(y), {"x": signals(1, 1, 1, 16, seed=92)})
