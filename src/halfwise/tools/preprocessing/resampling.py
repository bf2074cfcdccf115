"""Resizing as libraries do it: each method is one weight matrix per axis.

Formulas: Pillow's `src/libImaging/Resample.c` (the kernel is widened by the factor of reduction,
weights beyond the border are dropped and the rest normalised), OpenCV's
`modules/imgproc/src/resize.cpp` and PyTorch's `UpSample.h` (no widening, the border is repeated;
cubic with a = −0.75), ONNX's Resize for the names of the conventions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Convention = Literal["half-pixel", "asymmetric", "align-corners"]
CONVENTIONS: tuple[Convention, ...] = ("half-pixel", "asymmetric", "align-corners")
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Method:
    """One way to resize.

    Attributes:
        kernel: "nearest", "bilinear", "bicubic", "lanczos", "area", "box" or "hamming".
        antialias: Whether the kernel is widened where the image becomes smaller.
        convention: Where pixel i of the result lies in the source.
        parameter: a of a cubic, lobes of a Lanczos kernel; else 0.
        used_by: Who resizes that way.
    """

    kernel: str
    antialias: bool
    convention: Convention
    parameter: float
    used_by: str

    def __str__(self) -> str:
        """Name it in words."""
        if self.kernel in ("nearest", "area", "box"):
            smooth = ""
        else:
            smooth = " with antialiasing" if self.antialias else " without antialiasing"
        return f"{self.kernel}{smooth}, {self.convention} ({self.used_by})"


METHODS = (
    Method("bilinear", True, "half-pixel", 0, "Pillow, torchvision with antialias=True"),
    Method("bilinear", False, "half-pixel", 0, "OpenCV, PyTorch's interpolate, TensorFlow 2"),
    Method("bilinear", False, "asymmetric", 0, "TensorFlow 1, ONNX asymmetric"),
    Method("bilinear", False, "align-corners", 0, "align_corners=True"),
    Method("bicubic", True, "half-pixel", -0.5, "Pillow, torchvision with antialias=True"),
    Method("bicubic", False, "half-pixel", -0.75, "OpenCV, PyTorch's interpolate"),
    Method("bicubic", False, "half-pixel", -0.5, "TensorFlow 2"),
    Method("bicubic", False, "asymmetric", -0.75, "ONNX asymmetric"),
    Method("bicubic", False, "align-corners", -0.75, "align_corners=True"),
    Method("area", True, "half-pixel", 0, "OpenCV's INTER_AREA"),
    Method("box", True, "half-pixel", 0, "Pillow's BOX"),
    Method("hamming", True, "half-pixel", 0, "Pillow's HAMMING"),
    Method("lanczos", True, "half-pixel", 3, "Pillow"),
    Method("lanczos", False, "half-pixel", 4, "OpenCV's INTER_LANCZOS4"),
    Method("nearest", False, "half-pixel", 0, "Pillow, nearest-exact"),
    Method("nearest", False, "asymmetric", 0, "OpenCV, PyTorch's nearest"),
    Method("nearest", False, "align-corners", 0, "align_corners=True"),
)
"""What is tried; the most usual first."""


def positions(source: int, target: int, convention: Convention) -> tuple[float, float]:
    """Return (step, start): pixel i of `target` lies at start + i · step in the source."""
    step = source / target
    if convention == "half-pixel":
        return step, step / 2 - 0.5
    if convention == "asymmetric":
        return step, 0.0
    return (source - 1) / max(target - 1, 1), 0.0


def weights(source: int, target: int, method: Method) -> Array:
    """Return the weights of one axis, f64[target, source]; every row has the sum 1."""
    step, start = positions(source, target, method.convention)
    centres: Array = start + step * np.arange(target, dtype=np.float64)
    if method.kernel == "nearest":
        return _nearest(source, target, method.convention)
    if method.kernel == "area" and step > 1:
        return _coverage(step, source, target)
    widened = max(step, 1.0) if method.antialias else 1.0
    kernel, support = _kernel(method)
    margin = 0 if method.antialias else int(np.ceil(support)) + 1
    columns = np.arange(-margin, source + margin)
    found = kernel((columns - centres[:, None]) / widened)
    if margin:
        # What lies beyond the border repeats the border.
        folded = found[:, margin : source + margin].copy()
        folded[:, 0] += found[:, :margin].sum(axis=1)
        folded[:, -1] += found[:, source + margin :].sum(axis=1)
        found = folded
    normed: Array = found / found.sum(axis=1, keepdims=True)
    return normed


def resize(image: Array, shape: tuple[int, int], method: Method) -> Array:
    """Return `image`, f64[..., h, w], resized to `shape`, neither rounded nor clipped."""
    rows = weights(image.shape[-2], shape[0], method)
    columns = weights(image.shape[-1], shape[1], method)
    resized: Array = rows @ image @ columns.T
    return resized


def _nearest(source: int, target: int, convention: Convention) -> Array:
    step, start = positions(source, target, convention)
    if convention == "half-pixel":
        # Pillow adds step by step (`ImagingScaleAffine`), which decides where it meets a border.
        places = np.add.accumulate(np.concatenate(([step / 2], np.full(target - 1, step))))
    elif convention == "asymmetric":
        places = np.arange(target) * (1 / (target / source))
    else:
        places = start + step * np.arange(target) + 0.5
    chosen = np.clip(np.floor(places), 0, source - 1).astype(int)
    picked: Array = np.zeros((target, source))
    picked[np.arange(target), chosen] = 1
    return picked


def _coverage(step: float, source: int, target: int) -> Array:
    low = step * np.arange(target)[:, None]
    columns = np.arange(source)
    shared = np.minimum(low + step, columns + 1) - np.maximum(low, columns)
    shares: Array = np.clip(shared, 0, None) / step
    return shares


def _kernel(method: Method) -> tuple[Callable[[Array], Array], float]:
    a = method.parameter
    kernels: dict[str, tuple[Callable[[Array], Array], float]] = {
        "bilinear": (lambda x: np.clip(1 - np.abs(x), 0, None), 1),
        "area": (lambda x: np.clip(1 - np.abs(x), 0, None), 1),
        "bicubic": (lambda x: _cubic(np.abs(x), a), 2),
        "lanczos": (lambda x: np.where(np.abs(x) < a, np.sinc(x) * np.sinc(x / (a or 1)), 0), a),
        "box": (lambda x: ((x > -0.5) & (x <= 0.5)).astype(np.float64), 0.5),
        "hamming": (
            lambda x: np.where(np.abs(x) < 1, np.sinc(x) * (0.54 + 0.46 * np.cos(np.pi * x)), 0),
            1,
        ),
    }
    return kernels[method.kernel]


def _cubic(x: Array, a: float) -> Array:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    cubic: Array = np.where(x < 1, near, np.where(x < 2, far, 0))
    return cubic
