"""PyTorch modules to export, with dynamic axes; what they compute.  Usage: python ... FOLDER

FOLDER gets `NAME.npz` for each: inputs of sizes that `halfwise export-torch` does not try, and the
module's outputs on them. Kinds of layers are those of published networks, their sizes are small.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn

WIDTH, HEADS = 32, 4
LENGTH = {"tokens:0": "batch", "tokens:1": "length"}
IMAGE = {"image:0": "batch", "image:2": "height", "image:3": "width"}


class Encoder(nn.Module):
    """A transformer's encoder with a mask of padding."""

    dynamic: ClassVar = {**LENGTH, "padding:0": "batch", "padding:1": "length"}

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens, padding):
        return self.layers(self.embed(tokens), src_key_padding_mask=padding)

    def example(self, batch=2, length=7, **_):
        padding = torch.zeros(batch, length, dtype=torch.bool)
        padding[0, -2:] = True
        return torch.randint(50, (batch, length)), padding


class Decoder(nn.Module):
    """Causal attention written out, with rotary positions and RMSNorm."""

    dynamic: ClassVar = LENGTH

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(50, WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 50)

    def forward(self, tokens):
        batch, length = tokens.shape
        x = self.norm(self.embed(tokens))
        heads = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        angle = torch.arange(length)[:, None] / 10 ** torch.linspace(0, 2, WIDTH // HEADS // 2)
        q, k = (self.turned(t, angle) for t in heads[:2])
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        y = scores.masked_fill(future, float("-inf")).softmax(-1) @ heads[2]
        return self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))

    def turned(self, x, angle):
        first, second = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)

    def example(self, batch=2, length=7, **_):
        return torch.randint(50, (batch, length))


class FusedAttention(nn.Module):
    """scaled_dot_product_attention between two sequences."""

    dynamic: ClassVar = {
        "query:0": "batch",
        "query:1": "length",
        "memory:0": "batch",
        "memory:1": "other",
    }

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, query, memory):
        return self.attention(query, memory, memory, need_weights=False)[0]

    def example(self, batch=2, length=5, other=9, **_):
        return torch.randn(batch, length, WIDTH), torch.randn(batch, other, WIDTH)


class Residual(nn.Module):
    """Convolutions with BatchNorm and a classifier."""

    dynamic: ClassVar = IMAGE

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))

    def forward(self, image):
        x = self.stem(image)
        return self.head(torch.relu(x + self.body(x)))

    def example(self, batch=2, height=24, width=32, **_):
        return torch.randn(batch, 3, height, width)


class UNet(nn.Module):
    """GroupNorm, SiLU, pooling, and interpolation to the size of another tensor."""

    dynamic: ClassVar = IMAGE

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.middle = nn.Conv2d(16, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 16, 2, 2)
        self.out = nn.Conv2d(32, 2, 1)

    def forward(self, image):
        skip = self.down(image)
        x = self.up(self.middle(nn.functional.max_pool2d(skip, 4)))
        x = nn.functional.interpolate(x, skip.shape[2:], mode="bilinear", align_corners=False)
        return self.out(torch.cat([x, skip], 1)).sigmoid()

    def example(self, batch=2, height=24, width=32, **_):
        return torch.randn(batch, 3, height, width)


class ConvNeXt(nn.Module):
    """LayerNorm over the channels of NCHW, GELU, a grouped convolution, a scale of the layer."""

    dynamic: ClassVar = IMAGE

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, WIDTH, 4, 4), nn.LayerNorm(WIDTH, eps=1e-6)
        self.depthwise = nn.Conv2d(WIDTH, WIDTH, 7, padding=3, groups=WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.gamma = nn.Parameter(torch.full((WIDTH,), 0.1))

    def forward(self, image):
        x = self.stem(image)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.narrow(nn.functional.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)

    def example(self, batch=2, height=24, width=32, **_):
        return torch.randn(batch, 3, height, width)


class Windows(nn.Module):
    """Windows of a rolled image, as Swin has them: reshapes to sizes that are computed."""

    dynamic: ClassVar = {"image:0": "batch"}

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, image):
        batch, height, width, channels = image.shape
        x = torch.roll(image, (-2, -2), (1, 2))
        x = x.view(batch, height // 4, 4, width // 4, 4, channels).transpose(2, 3)
        x = self.inner(x.reshape(-1, 16, channels)).softmax(1)
        x = x.view(batch, height // 4, width // 4, 4, 4, channels).transpose(2, 3)
        return torch.roll(x.reshape(batch, height, width, channels), (2, 2), (1, 2))

    def example(self, batch=2, **_):
        return torch.randn(batch, 8, 12, WIDTH)


class Recurrent(nn.Module):
    """A bidirectional LSTM over the columns of an image, as text is recognised."""

    dynamic: ClassVar = {"columns:0": "batch", "columns:1": "time"}

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 16, 2, batch_first=True, bidirectional=True)
        self.gru, self.out = nn.GRU(WIDTH, 16, batch_first=True), nn.Linear(16, 20)

    def forward(self, columns):
        y, _ = self.lstm(columns)
        return {"logits": self.out(self.gru(y)[0]).log_softmax(-1), "features": y}

    def example(self, batch=2, time=6, **_):
        return torch.randn(batch, time, WIDTH)


class Detector(nn.Module):
    """A grid of the image's size, boxes, and the best of them."""

    dynamic: ClassVar = IMAGE

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, 8, 1)

    def forward(self, image):
        x = self.conv(image)
        height, width = x.shape[2:]
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        grid = torch.stack([columns, rows]).float()
        x = torch.cat([(x[:, :2].sigmoid() + grid) * 8, x[:, 2:4].exp() * 8, x[:, 4:]], 1)
        x = x.flatten(2).transpose(1, 2)
        scores, which = x[..., 4].topk(3)
        return x, scores, which

    def example(self, batch=2, height=24, width=32, **_):
        return torch.randn(batch, 3, height, width)


class Frozen(nn.Module):
    """A number of Python's in place of a size: TorchScript keeps that of the example."""

    dynamic: ClassVar = {"x:1": "length"}

    def forward(self, x):
        return x.sum(1) * float(x.shape[1])

    def example(self, length=4, **_):
        return torch.randn(2, length, 3)


class Branching(nn.Module):
    """What it computes depends on the data."""

    dynamic: ClassVar = {"x:0": "batch"}

    def forward(self, x):
        return x * 2 if x.sum() > 0 else x * 3

    def example(self, batch=2, **_):
        return torch.ones(batch, 3) if batch == 2 else -torch.ones(batch, 3)


MODULES: Sequence[Callable[[], nn.Module]] = (
    *(Encoder, Decoder, FusedAttention, Residual, UNet, ConvNeXt, Windows, Recurrent, Detector),
)
TRAPS = (Frozen, Branching)
OTHER = {"batch": 5, "length": 11, "other": 4, "time": 13, "height": 40, "width": 56}
"""Sizes that `export-torch` does not try by itself."""


def made(cls):
    """Return the module, with parameters and statistics drawn from one seed."""
    torch.manual_seed(0)
    module = cls()
    for name, tensor in module.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
        elif name.endswith(("running_mean", "bias")):
            tensor.normal_(0, 0.3)
    return module.eval()


def _factory(cls):
    def make():
        module = made(cls)
        return module, module.example()

    return make


globals().update({cls.__name__.lower(): _factory(cls) for cls in (*MODULES, *TRAPS)})


def main(folder: Path) -> None:
    """Write what the modules compute at other sizes."""
    for cls in (*MODULES, *TRAPS):
        module = made(cls)
        given = module.example(**OTHER)
        given = given if isinstance(given, tuple) else (given,)
        with torch.no_grad():
            results = module(*given)
        results = results.values() if isinstance(results, dict) else results
        results = results if not isinstance(results, torch.Tensor) else (results,)
        names = [name.partition(":")[0] for name in module.dynamic]
        arrays = dict(zip(dict.fromkeys(names), (g.numpy() for g in given), strict=True))
        outputs = {f"output {i}": r.numpy() for i, r in enumerate(results)}
        np.savez(folder / f"{cls.__name__.lower()}.npz", **arrays, **outputs)
        axes = " ".join(f"{axis}={symbol}" for axis, symbol in module.dynamic.items())
        print(cls.__name__.lower(), "trap" if cls in TRAPS else "module", axes)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
