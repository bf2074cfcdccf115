"""A convolutional network of ResNet-50's size, random weights, with overflows planted in it."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.gpu.writing import Writer

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of bottlenecks of each stage (He et al. 2016, table 1)."""
EXPANSION, CLASSES, IMAGE = 4, 1000, 224
IMAGE_MEAN = np.array([0.485, 0.456, 0.406])[:, None, None]
IMAGE_DEVIATION = np.array([0.229, 0.224, 0.225])[:, None, None]
"""ImageNet's mean and deviation per channel, the usual normalisation of such inputs."""
PLANTED, FACTOR = "layer3.2", 2.0**17
"""A ReLU commutes with positive factors, so the function stays; powers of two round nothing."""


class _Writer(Writer):
    """Convolutions under construction; BatchNorm is folded into every one."""

    def conv(
        self,
        name: str,
        x: str,
        channels: tuple[int, int],
        *,
        side: int = 1,
        stride: int = 1,
        gain: float = 1.0,
        scale: tuple[float, float] = (1.0, 1.0),
    ) -> str:
        """Append a convolution; `scale` multiplies weights and bias."""
        fan_in, fan_out = channels
        # He et al. 2015: a ReLU halves the second moment; the 2 compensates.
        deviation = gain * math.sqrt(2 / (fan_in * side * side))
        weight = self.rng.standard_normal((fan_out, fan_in, side, side)) * deviation
        bias = self.rng.standard_normal(fan_out) * 0.05
        return self.op(
            "Conv",
            name,
            x,
            self.constant(f"{name}.weight", weight * scale[0]),
            self.constant(f"{name}.bias", bias * scale[1]),
            kernel_shape=[side, side],
            strides=[stride, stride],
            pads=[side // 2] * 4,
        )

    def bottleneck(
        self, name: str, x: str, channels: tuple[int, int], stride: int, factor: float
    ) -> str:
        """Append 1×1, 3×3 and 1×1 convolutions beside a shortcut; inside all is × `factor`.

        The branch has half the deviation of its input, so that the stream stays bounded after 16.
        """
        fan_in, width = channels
        fan_out = EXPANSION * width
        y = self.conv(f"{name}.conv1", x, (fan_in, width), scale=(factor, factor))
        y = self.op("Relu", f"{name}.relu1", y)
        y = self.conv(
            f"{name}.conv2", y, (width, width), side=3, stride=stride, scale=(1.0, factor)
        )
        y = self.op("Relu", f"{name}.relu2", y)
        y = self.conv(f"{name}.conv3", y, (width, fan_out), gain=0.35, scale=(1 / factor, 1.0))
        if stride > 1 or fan_in != fan_out:
            x = self.conv(f"{name}.shortcut", x, (fan_in, fan_out), stride=stride, gain=0.7)
        return self.op("Relu", f"{name}.relu3", self.op("Add", f"{name}.add", x, y))


def resnet(seed: int = 0, planted: float = FACTOR) -> onnx.ModelProto:
    """Return the model `images` float32 [batch, 3, 224, 224] → `logits` float32 [batch, 1000].

    25.6 M weights, opset 17. Inside the bottleneck `PLANTED`, activations are multiplied by
    `planted` and leave FP16's range; its last convolution divides by it.

    Args:
        seed: Seed of the weights.
        planted: The factor; with 1 the model is as drawn.
    """
    w = _Writer(seed)
    x = w.op("Relu", "relu", w.conv("conv1", "images", (3, 64), side=7, stride=2))
    x = w.op("MaxPool", "maxpool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, (width, blocks) in enumerate(STAGES, 1):
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            name = f"layer{stage}.{block}"
            factor = planted if name == PLANTED else 1.0
            x = w.bottleneck(name, x, (channels, width), stride, factor)
            channels = EXPANSION * width
    x = w.op("Flatten", "flatten", w.op("GlobalAveragePool", "pool", x))
    head = w.constant("fc.weight", w.rng.standard_normal((channels, CLASSES)) / math.sqrt(channels))
    bias = w.constant("fc.bias", w.rng.standard_normal(CLASSES) * 0.05)
    w.nodes.append(helper.make_node("Gemm", [x, head, bias], ["logits"], "fc"))
    ends = [
        helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, IMAGE, IMAGE]),
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES]),
    ]
    graph = helper.make_graph(w.nodes, "resnet50", ends[:1], ends[1:], w.constants)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="halfwise"
    )
