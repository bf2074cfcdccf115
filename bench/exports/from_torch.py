"""Export norms and GELUs with both exporters of PyTorch.  Usage: python from_torch.py FOLDER"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from torch import nn

WIDTH = 24


def seeded(module):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + 1)
    return module.eval()


class Written(nn.Module):
    """A norm as models write it: a function of x, weight and bias."""

    def __init__(self, function, shape=(WIDTH,)):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.ones(shape)) for _ in range(2))
        self.function = function

    def forward(self, x):
        return self.function(x, self.weight, self.bias)


def by_variance(x, w, b):
    centred = x - x.mean(-1, keepdim=True)
    variance = x.var(-1, unbiased=False, keepdim=True)
    return centred / torch.sqrt(variance + 1e-5) * w + b


def by_pow(x, w, b):
    centred = x - x.mean(-1, keepdim=True)
    return w * (centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-6)) + b


def by_moments(x, w, b):
    mean = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mean * mean
    return (x - mean) * (w / torch.sqrt(variance + 1e-5)) + b


def without_keepdim(x, w, b):
    mean = x.mean(-1)
    variance = ((x - mean[..., None]) ** 2).mean(-1)
    return (x - mean[..., None]) / torch.sqrt(variance[..., None] + 1e-5) * w + b


def by_unbiased(x, w, b):
    return w * (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5) + b


def by_deviation(x, w, b):
    return w * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + b


def channels_first(x, w, b):
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    return w[:, None, None] * ((x - mean) / torch.sqrt(variance + 1e-6)) + b[:, None, None]


def permuted(x, w, b):
    y = nn.functional.layer_norm(x.permute(0, 2, 3, 1), (WIDTH,), w, b, 1e-6)
    return y.permute(0, 3, 1, 2)


def root_mean_square(x, w, _):
    x = x.float()
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def modulated(x, w, b):
    y = nn.functional.layer_norm(x, (WIDTH,), None, None, 1e-6)
    return y * (1 + x.mean(1, keepdim=True) * w) + b


def tanh_gelu(x, _, __):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3))))


def quick_gelu(x, _, __):
    return x * torch.sigmoid(1.702 * x)


ROWS, IMAGES = (2, 5, WIDTH), (2, WIDTH, 6, 4)
MODULES = {
    "layer_norm": (nn.LayerNorm(WIDTH), ROWS),
    "layer_norm_two_axes": (nn.LayerNorm((5, WIDTH)), ROWS),
    "layer_norm_plain": (nn.LayerNorm(WIDTH, elementwise_affine=False), ROWS),
    "layer_norm_by_variance": (Written(by_variance), ROWS),
    "layer_norm_by_pow": (Written(by_pow), ROWS),
    "layer_norm_by_moments": (Written(by_moments), ROWS),
    "layer_norm_without_keepdim": (Written(without_keepdim), ROWS),
    "layer_norm_unbiased": (Written(by_unbiased), ROWS),
    "layer_norm_by_deviation": (Written(by_deviation), ROWS),
    "layer_norm_channels_first": (Written(channels_first), IMAGES),
    "layer_norm_permuted": (Written(permuted), IMAGES),
    "layer_norm_modulated": (Written(modulated), ROWS),
    "rms_norm": (nn.RMSNorm(WIDTH, eps=1e-6), ROWS),
    "rms_norm_written": (Written(root_mean_square), ROWS),
    "group_norm": (nn.GroupNorm(6, WIDTH), IMAGES),
    "instance_norm": (nn.InstanceNorm2d(WIDTH, affine=True), IMAGES),
    "batch_norm": (nn.BatchNorm2d(WIDTH), IMAGES),
    "gelu": (nn.GELU(), ROWS),
    "gelu_tanh": (nn.GELU("tanh"), ROWS),
    "gelu_written": (Written(tanh_gelu), ROWS),
    "quick_gelu": (Written(quick_gelu), ROWS),
}


def export(module, shape, path, opset):
    """Export with a dynamic batch; opset None is the dynamo exporter's own."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if opset is None:
        batch = torch.export.Dim("batch", min=1)
        torch.onnx.export(
            module, (x,), path, dynamo=True, dynamic_shapes=({0: batch},), external_data=False
        )
    else:
        axes = {"x": {0: "batch"}}
        torch.onnx.export(
            module,
            (x,),
            path,
            dynamo=False,
            opset_version=opset,
            input_names=["x"],
            dynamic_axes=axes,
        )


def main() -> int:
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    for name, (module, shape) in MODULES.items():
        for opset in (12, 16, 17, None):
            exporter = f"torchscript{opset}" if opset else "dynamo"
            path = folder / f"torch.{exporter}.{name}.onnx"
            try:
                export(seeded(module), shape, str(path), opset)
            except Exception as error:  # noqa: BLE001 - an exporter may fail in any way
                path.unlink(missing_ok=True)
                print(f"{path.stem}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
