"""Resizing as libraries do it, and a fit of a pipeline's method on raw images.

Each method is one weight matrix per axis. Formulas: Pillow's `src/libImaging/Resample.c` (the
kernel is widened by the reduction factor, weights beyond the border are dropped and the rest
renormalised), OpenCV's `modules/imgproc/src/resize.cpp` and PyTorch's `UpSample.h` (no widening,
replicated border; cubic with a = −0.75), ONNX's Resize for the convention names. Why they are
reimplemented: docs/decisions/0025-resize-kernels.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from halfwise.tools.preprocessing.photometry import photometry
from halfwise.tools.preprocessing.registration import BLUR, Placement, grey, register, sampled

Convention = Literal["half-pixel", "asymmetric", "align-corners"]
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)
Array = NDArray[np.float64]

_NEAR = 0.6
"""Pixels by which a placement may miss a hypothesis; nearest neighbour misses by half a pixel."""
_MOST_PER_AXIS = 3
_FIT = 0.9
"""Least correlation of a raw image and a sample of the same scene."""


@dataclass(frozen=True)
class Method:
    """One way to resize.

    Attributes:
        kernel: "nearest", "bilinear", "bicubic", "lanczos", "area", "box" or "hamming".
        antialias: Whether the kernel is widened when the image shrinks.
        convention: Maps pixel i of the result to the source.
        parameter: a of a cubic kernel, lobes of a Lanczos kernel; else 0.
        used_by: Libraries that resize this way.
    """

    kernel: str
    antialias: bool
    convention: Convention
    parameter: float
    used_by: str

    def __str__(self) -> str:
        """Return a name in words."""
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
"""Methods tried; most common first."""


def positions(source: int, target: int, convention: Convention) -> tuple[float, float]:
    """Return (step, start): pixel i of `target` lies at start + i · step in the source."""
    step = source / target
    if convention == "half-pixel":
        return step, step / 2 - 0.5
    if convention == "asymmetric":
        return step, 0.0
    return (source - 1) / max(target - 1, 1), 0.0


def weights(source: int, target: int, method: Method) -> Array:
    """Return the weights of one axis, f64[target, source]; rows sum to 1."""
    step, start = positions(source, target, method.convention)
    if method.kernel == "nearest":
        return _nearest(source, target, method.convention)
    if method.kernel == "area":
        return _coverage(step, source, target)
    widened = max(step, 1.0) if method.antialias else 1.0
    kernel, support = _kernel(method)
    margin = 0 if method.antialias else int(np.ceil(support)) + 1
    columns = np.arange(-margin, source + margin)
    centres = (step * (np.arange(target) + 0.5) + start + 0.5 - step / 2)[:, None]
    found = kernel((columns - centres + 0.5) * (1 / widened))
    if method.antialias:
        # Pillow's window (`precompute_coeffs`) decides which result a pixel on its edge goes to.
        low, high = (np.floor(centres + side * support * widened + 0.5) for side in (-1, 1))
        found = np.where((columns >= low) & (columns < high), found, 0)
    # Replicate the border.
    found = np.add.reduceat(found, [0, *range(margin + 1, margin + source)], axis=1)
    normed: Array = found / found.sum(axis=1, keepdims=True)
    return normed


def resize(image: Array, shape: tuple[int, int], method: Method) -> Array:
    """Return `image`, f64[..., h, w], resized to `shape`, neither rounded nor clipped."""
    rows, columns = map(weights, image.shape[-2:], shape, (method, method))
    resized: Array = rows @ image @ columns.T
    return resized


def _nearest(source: int, target: int, convention: Convention) -> Array:
    step, start = positions(source, target, convention)
    if convention == "half-pixel":
        # Pillow accumulates steps (`ImagingScaleAffine`); that decides ties at borders.
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
    low, columns = step * np.arange(target)[:, None], np.arange(source)
    shared = np.minimum(low + step, columns + 1) - np.maximum(low, columns)
    shares: Array = np.clip(shared, 0, None) / step
    return shares


def _kernel(method: Method) -> tuple[Callable[[Array], Array], float]:
    a = method.parameter
    kernels: dict[str, tuple[Callable[[Array], Array], float]] = {
        "bilinear": (lambda x: np.clip(1 - np.abs(x), 0, None), 1),
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


@dataclass(frozen=True)
class Axis:
    """How one axis of a raw image maps to the result.

    Attributes:
        raw: Its length.
        cut: Start of a crop before resizing.
        kept: Length of that crop; `raw` without one.
        resized: Length after resizing.
        start: Start of a crop after resizing.
        length: Length of that crop; `resized` without one.
    """

    raw: int
    cut: int
    kept: int
    resized: int
    start: int
    length: int

    def matrix(self, method: Method) -> csr_array:
        """Return the weights of this axis, f64[length, kept]; sparse for photos."""
        whole = weights(self.kept, self.resized, method)
        places = np.clip(np.arange(self.start, self.start + self.length), 0, self.resized - 1)
        return csr_array(whole[places])


@dataclass(frozen=True)
class Resizing:
    """How a pipeline resizes.

    Attributes:
        method: Kernel, antialiasing and convention.
        axes: (rows, columns) of each sample.
        error: Root mean square of the residual, in raw levels.
        errors: The same for every method with its best geometry.
    """

    method: Method
    axes: tuple[tuple[Axis, Axis], ...]
    error: float
    errors: dict[Method, float]

    def __str__(self) -> str:
        """Describe the first sample's resizing."""
        rows, columns = self.axes[0]
        said = []
        if (rows.kept, columns.kept) != (rows.raw, columns.raw):
            said.append(
                f"crop {rows.kept}×{columns.kept} at row {rows.cut}, column {columns.cut} of "
                f"{rows.raw}×{columns.raw}"
            )
        said.append(
            f"resize {rows.kept}×{columns.kept} to {rows.resized}×{columns.resized}: {self.method}"
        )
        if (rows.length, columns.length) != (rows.resized, columns.resized):
            said.append(
                f"crop {rows.length}×{columns.length} at row {rows.start}, column {columns.start}"
            )
        return "; ".join(said)


def fit_resizing(raws: Sequence[Array], images: Sequence[Array]) -> Resizing | None:
    """Return how raw images were resized to `images`, None if they show other scenes.

    Registration leaves few hypotheses of size, crop and convention; each is tried with every
    kernel, and the smallest error wins.

    Args:
        raws: f64[c, h, w] each, from 0 to 255, turned like the images.
        images: f64[c', h', w'] each, equally many, without frames, in any unit and channel order.
    """
    placements = [register(grey(raw), grey(image)) for raw, image in zip(raws, images, strict=True)]
    if min(place.correlation for place in placements) < _FIT:
        return None
    scenes = list(zip(raws, images, placements, strict=True))
    views = [_view(*scene) for scene in scenes]
    best: dict[Method, tuple[float, list[tuple[Axis, Axis]]]] = {}
    for convention in CONVENTIONS:
        methods = [method for method in METHODS if method.convention == convention]
        axes = [
            _pairs(raw.shape[1:], image.shape[1:], place, convention)
            for raw, image, place in scenes
        ]
        if not all(axes):
            continue
        chosen = [_likeliest(pairs, view, methods) for pairs, view in zip(axes, views, strict=True)]
        for method in methods:
            each = [_error(*view, pair, method) for view, pair in zip(views, chosen, strict=True)]
            best[method] = (float(np.sqrt(np.mean(np.square(each)))), chosen)
    if not best:
        return None
    method = min(best, key=lambda m: best[m][0])
    error, found = best[method]
    return Resizing(method, tuple(found), error, {m: e for m, (e, _) in best.items()})


def _likeliest(
    pairs: Sequence[tuple[Axis, Axis]], view: tuple[Array, Array], methods: Sequence[Method]
) -> tuple[Axis, Axis]:
    """Return the best size and placement, on which smooth kernels hardly differ."""
    tried = (methods[0], *(method for method in methods if method.kernel == "nearest"))
    return min(pairs, key=lambda pair: min(_error(*view, pair, method) for method in tried))


def _view(raw: Array, image: Array, place: Placement) -> tuple[Array, Array]:
    """Return one channel of an image and its raw source: green, the sharpest."""
    whole = np.stack([sampled(plane, image.shape[1:], place)[0] for plane in raw])
    if len(raw) != len(image):
        return raw.mean(axis=0), image.mean(axis=0)
    channels = photometry([whole], [image], BLUR).channels
    middle = len(image) // 2
    return raw[channels[middle]], image[middle]


def _pairs(
    raw: Sequence[int], image: Sequence[int], place: Placement, convention: Convention
) -> list[tuple[Axis, Axis]]:
    rows, columns = (
        _hypotheses(raw[axis], image[axis], place.step[axis], place.start[axis], convention)
        for axis in (0, 1)
    )
    return list(product(rows[:_MOST_PER_AXIS], columns[:_MOST_PER_AXIS]))


def _hypotheses(
    raw: int, length: int, step: float, start: float, convention: Convention
) -> list[Axis]:
    """Return axes that could explain a placement, nearest first."""
    shift = (step - 1) / 2 if convention == "half-pixel" else 0.0
    target = (raw - 1) / step + 1 if convention == "align-corners" else raw / step
    found = []
    for resized in {length, *(round(target) + d for d in (-1, 0, 1) if round(target) + d > 0)}:
        offsets = {0, *(round((start - shift) / step) + d for d in (-1, 0, 1))}
        found += [
            Axis(raw, 0, raw, resized, offset, length)
            for offset in sorted(offsets)
            if 0 <= offset <= resized - length
        ]
    if convention == "half-pixel":
        cut = max(round(start - shift), 0)
        kept = min(round(step * length), raw - cut)
        if kept < raw:
            found.append(Axis(raw, cut, kept, length, 0, length))
    missed = [(_miss(axis, step, start, convention), axis) for axis in found]
    near = sorted((m for m in missed if m[0] < _NEAR), key=lambda m: m[0])
    return [axis for _, axis in near]


def _miss(axis: Axis, step: float, start: float, convention: Convention) -> float:
    """Return how far an axis' ends are from the placement found, in its own pixels."""
    factor, first = positions(axis.kept, axis.resized, convention)
    begin = axis.cut + first + factor * axis.start
    ends = np.array([0, axis.length - 1])
    return float(np.abs(begin + factor * ends - start - step * ends).max() / step)


def _error(raw: Array, image: Array, pair: tuple[Axis, Axis], method: Method) -> float:
    """Return the error of a method on one channel, in raw levels."""
    rows, columns = pair
    kept = raw[rows.cut : rows.cut + rows.kept, columns.cut : columns.cut + columns.kept]
    made: Array = (columns.matrix(method) @ (rows.matrix(method) @ kept).T).T
    # Pipelines on bytes clip a kernel's overshoot; others do not.
    return min(_left(made, image), _left(np.clip(made, 0, 255), image))


def _left(made: Array, image: Array) -> float:
    x, y = made - made.mean(), image - image.mean()
    gain = float((x * y).mean() / ((x * x).mean() or 1.0)) or 1.0
    return float(np.sqrt(np.mean((y / gain - x) ** 2)))


def differ(a: Resizing, b: Resizing, ratio: float = 1.25, least: float = 0.1) -> bool:
    """Return whether the methods really differ: one fits the other's images clearly worse.

    Args:
        a: One pipeline.
        b: The other.
        ratio: Factor by which the error must grow; ties are below 1.05.
        least: Least growth of the error in raw levels.
    """
    return a.method != b.method and any(
        own.errors.get(other.method, np.inf) > max(ratio * own.error, own.error + least)
        for own, other in ((a, b), (b, a))
    )
