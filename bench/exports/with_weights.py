"""Modules that overflow in FP16, before and after halfwise's repairs are in their weights.

    python with_weights.py export FOLDER         each as NAME.onnx, NAME.npz, NAME.safetensors
    python with_weights.py judge FOLDER NAME …   with NAME.new.safetensors; prints JSON

The largest difference of the outputs from the module's in FP32, over its largest value: `fp32` with
the new weights, `half` with them after `module.half()`, `before` after `half()` without them. CPU.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import interpolate, scaled_dot_product_attention, silu
from torch.nn.utils.fusion import fuse_conv_bn_eval

LARGE = 2.0**17
"""Times as large as drawn is what the planted layers write."""
COUNT = 16
CHANNELS, WIDTH, INNER = 32, 64, 128


class Residual(nn.Module):
    """A block of a VAE's decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.GroupNorm(8, CHANNELS, eps=1e-6) for _ in range(2))
        self.conv1, self.conv2 = (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(2))
        plant(self.conv2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(silu(self.norm1(x)))
        return x + self.conv2(silu(self.norm2(y)))


class Attention(nn.Module):
    """Attention over the places of an image, with one head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, CHANNELS, eps=1e-6)
        self.q, self.k, self.v, self.out = (nn.Linear(CHANNELS, CHANNELS) for _ in range(4))
        plant(self.out)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).flatten(2).transpose(1, 2)
        y = scaled_dot_product_attention(self.q(y)[:, None], self.k(y)[:, None], self.v(y)[:, None])
        return x + self.out(y[:, 0]).transpose(1, 2).reshape(x.shape)


class Decoder(nn.Module):
    """A VAE's decoder, whose residual stream is beyond FP16's range, as SDXL's is."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, CHANNELS, 3, padding=1)
        self.middle = nn.Sequential(Residual(), Attention(), Residual())
        self.up = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.block = Residual()
        self.norm = nn.GroupNorm(8, CHANNELS, eps=1e-6)
        self.last = nn.Conv2d(CHANNELS, 3, 3, padding=1)
        plant(self.first)
        with torch.no_grad():
            self.up.bias *= LARGE

    def forward(self, x: Tensor) -> Tensor:
        y = self.middle(self.first(x))
        y = self.block(self.up(interpolate(y, scale_factor=2.0)))
        return self.last(silu(self.norm(y)))


class RootMeanSquare(nn.Module):
    """T5's norm, which computes in FP32 whatever its input is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(1 + torch.randn(WIDTH) / 10), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps)).to(self.weight.dtype)


class FeedForward(nn.Module):
    """T5's: its inner activations are large, and what it adds to the stream is larger."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = RootMeanSquare()
        self.wi, self.wo = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)
        plant(self.wi)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.wo(torch.relu(self.wi(self.norm(x))))


class Encoder(nn.Module):
    """Feed-forward blocks of a T5."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.blocks = nn.Sequential(FeedForward(), FeedForward())
        self.norm, self.last = RootMeanSquare(), nn.Linear(WIDTH, 16)
        plant(self.first)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.blocks(self.first(x))))


class Basic(nn.Module):
    """A block of a ResNet, its BatchNorms in its convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = fused(CHANNELS), fused(CHANNELS)
        with torch.no_grad():
            self.conv1.bias *= LARGE
            self.conv2.bias *= LARGE

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.conv2(torch.relu(self.conv1(x))))


class ResNet(nn.Module):
    """A ResNet whose activations are all large."""

    def __init__(self) -> None:
        super().__init__()
        self.first = fused(3)
        self.blocks = nn.Sequential(Basic(), Basic())
        self.last = nn.Linear(CHANNELS, 10)
        plant(self.first)
        with torch.no_grad():
            self.last.weight /= LARGE

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(torch.relu(self.first(x))).mean((2, 3)))


def plant(layer: nn.Linear | nn.Conv2d) -> None:
    """Make what a layer writes large."""
    with torch.no_grad():
        layer.weight *= LARGE
        if layer.bias is not None:
            layer.bias *= LARGE


def fused(channels: int) -> nn.Conv2d:
    """Return a convolution with a BatchNorm in it."""
    norm = nn.BatchNorm2d(CHANNELS).eval()
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return fuse_conv_bn_eval(nn.Conv2d(channels, CHANNELS, 3, padding=1).eval(), norm)


MODULES = {
    "decoder": (Decoder, (4, 8, 8)),
    "feed_forward": (Encoder, (12, WIDTH)),
    "resnet": (ResNet, (3, 16, 16)),
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    """Return a module, and its inputs: samples of one each."""
    torch.manual_seed(1)
    make, shape = MODULES[name]
    return make().eval(), torch.randn(COUNT, 1, *shape)


def export(folder: Path) -> None:
    """Write what halfwise reads."""
    for name in MODULES:
        module, inputs = made(name)
        path = str(folder / f"{name}.onnx")
        torch.onnx.export(
            module, (inputs[0],), path, dynamo=True, opset_version=18, input_names=["x"]
        )
        np.savez(folder / f"{name}.npz", x=inputs.numpy())
        save_file(module.state_dict(), folder / f"{name}.safetensors")


def judge(folder: Path, name: str) -> dict[str, object]:
    """Return how far off a module is with the new weights, and what was set beside them."""
    module, inputs = made(name)
    exact = outputs(module, inputs)
    before = outputs(module.half(), inputs)
    module, _ = made(name)
    module.load_state_dict(load_file(folder / f"{name}.new.safetensors"))
    table = json.loads((folder / f"{name}.new.safetensors.json").read_text("utf-8"))
    by_hand = [row for row in table["changes"] if row["key"] is None]
    scopes = {n.name: n.metadata_props for n in onnx.load(folder / f"{name}.onnx").graph.node}
    for row in by_hand:
        for node in row["nodes"]:
            (text,) = [p.value for p in scopes[node] if p.key.endswith("name_scopes")]
            owner = [n for n in ast.literal_eval(text)[:-1] if n][-1]
            layer = module.get_submodule(owner)
            assert np.isclose(layer.eps, row["before"]), (owner, row)
            layer.eps = row["after"]
    fp32 = outputs(module, inputs)
    half = outputs(module.half(), inputs)
    most = np.abs(exact).max()
    errors = {"before": before, "fp32": fp32, "half": half}
    return {
        "changed": len(table["changes"]),
        "by_hand": [f"{row['name']} of {row['nodes']}" for row in by_hand],
        "not_folded": len(table["not_folded"]),
        **{kind: float(np.abs(array - exact).max() / most) for kind, array in errors.items()},
    }


def outputs(module: nn.Module, inputs: Tensor) -> np.ndarray:
    """Return a module's outputs in FP32."""
    dtype = next(module.parameters()).dtype
    with torch.no_grad():
        return torch.stack([module(x.to(dtype)).float() for x in inputs]).numpy()


if __name__ == "__main__":
    place = Path(sys.argv[2])
    if sys.argv[1] == "export":
        export(place)
    else:
        print(json.dumps({name: judge(place, name) for name in sys.argv[3:]}))
