"""PyTorch modules that leave FP16's range.  Usage: python overflowing.py FOLDER

What breaks is as models have it: the squares of an RMSNorm behind channels that training made
large (LLaMA), the sums of a global response normalisation (ConvNeXt V2), and the power of a
spectrum (speech front ends).

As a script it exports them to FOLDER by torch.onnx, with a dynamic batch, and prints, as JSON by
module, the lines of this file that compute values beyond the range, as PyTorch's own operators
give them in FP32 on the data.
"""

# mypy: disable-error-code="misc"

import json
import sys
import traceback
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

LIMIT = 65520.0
"""The smallest magnitude that rounds to infinity in FP16."""


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        power = x.pow(2).mean(-1, keepdim=True)
        return self.weight * x * torch.rsqrt(power + 1e-6)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        n, length, width = x.shape
        parts = self.qkv(x).reshape(n, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before, self.after = Norm(width), Norm(width)
        self.attention = Attention(width, 4)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.after(x))


class Transformer(nn.Module):
    def __init__(self, width=64, depth=3):
        super().__init__()
        self.embed = nn.Linear(32, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = Norm(width), nn.Linear(width, 8)
        with torch.no_grad():
            self.embed.bias[3], self.embed.bias[40] = 900.0, -700.0

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Response(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((channels, 1, 1), 0.5))

    def forward(self, x):
        norm = (x * x).sum((2, 3), keepdim=True).sqrt()
        return x + self.gamma * (x * norm / (norm.mean(1, keepdim=True) + 1e-6))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.BatchNorm2d(16), nn.ReLU())
        self.stages = nn.Sequential(
            nn.Conv2d(16, 32, 3, padding=1), nn.GELU(), Response(32), nn.Conv2d(32, 32, 1)
        )
        self.head = nn.Linear(32, 10)
        with torch.no_grad():
            self.stages[0].weight.mul_(150.0)

    def forward(self, image):
        x = self.stages(self.stem(image))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1) / 100.0)


class Speech(nn.Module):
    def __init__(self, size=128, bands=24):
        super().__init__()
        angle = 2 * torch.pi * torch.outer(torch.arange(size // 2), torch.arange(size)) / size
        window = torch.hann_window(size)
        self.register_buffer("cosines", (angle.cos() * window)[:, None])
        self.register_buffer("sines", (angle.sin() * window)[:, None])
        self.register_buffer("bands", torch.rand(bands, size // 2).softmax(-1))
        self.classify = nn.Linear(bands, 6)

    def forward(self, wave):
        x = wave[:, None] * 2048.0
        real = functional.conv1d(x, self.cosines, stride=64)
        imaginary = functional.conv1d(x, self.sines, stride=64)
        power = real.square() + imaginary.square()
        features = torch.log(self.bands @ power + 1.0)
        return self.classify(features.mean(-1))


class _Watching(TorchDispatchMode):
    """Notes the lines of this file whose operators give values that FP16 does not hold."""

    def __init__(self):
        super().__init__()
        self.lines = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = function(*args, **(kwargs or {}))
        results = given if isinstance(given, (tuple, list)) else (given,)
        floats = [r for r in results if torch.is_tensor(r) and r.is_floating_point() and r.numel()]
        if any(r.abs().max() >= LIMIT for r in floats):
            own = [f.lineno for f in traceback.extract_stack() if f.filename == __file__]
            # The last is this method.
            self.lines.add(own[-2])
        return given


def _loud(count):
    torch.manual_seed(1)
    time = torch.arange(2048) / 16000
    tones = torch.rand(count, 1) * 3000 + 200
    return 0.3 * torch.sin(2 * torch.pi * tones * time) + 0.01 * torch.randn(count, 2048)


def transformer():
    torch.manual_seed(0)
    return Transformer().eval(), (torch.randn(1, 12, 32),)


def convnet():
    torch.manual_seed(0)
    return ConvNet().eval(), (torch.rand(1, 3, 64, 64),)


def speech():
    torch.manual_seed(0)
    return Speech().eval(), (_loud(1),)


def tokens():
    """Yield what the transformer reads."""
    torch.manual_seed(2)
    yield from ({"tokens": sample[None].numpy()} for sample in torch.randn(24, 12, 32))


def images():
    """Yield smooth colours, as photographs have them."""
    torch.manual_seed(2)
    rough = torch.rand(24, 3, 6, 6)
    for sample in functional.interpolate(rough, (64, 64), mode="bicubic").clamp(0, 1):
        yield {"image": sample[None].numpy()}


def waves():
    """Yield tones in noise."""
    yield from ({"wave": sample[None].numpy()} for sample in _loud(24))


MODULES = {"transformer": tokens, "convnet": images, "speech": waves}


def main():
    """Export and print the lines."""
    folder, found = Path(sys.argv[1]), {}
    for name, samples in MODULES.items():
        module, example = globals()[name]()
        axes = ({0: torch.export.Dim("batch")},)
        path = str(folder / f"{name}.onnx")
        torch.onnx.export(module, example, path, dynamo=True, dynamic_shapes=axes, verbose=False)
        with torch.no_grad(), _Watching() as watching:
            for sample in samples():
                module(*map(torch.from_numpy, sample.values()))
        found[name] = sorted(watching.lines)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
