"""Pipelines that differ in one, two or three ways, on photos: are all differences named?

Where images are fitted, padded or sized differently, that has to be said, and nothing else.

The photos are scikit-image's samples, resized by Pillow, OpenCV and ONNX Runtime: none of them
shares code with what is tested. Another kernel counts as "resampling", and only where the images
are framed alike can it be told at all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from bench.figures import Figure, at_least, equal, reported
from bench.runs import Workbench
from halfwise.records import replace
from halfwise.tools.preprocessing.comparing import compare_arrays

CORES = 2
SEED = 5
PAIRS, TRIPLES, SAME = 40, 30, 16
TWINS = {
    "opencv linear": "onnxruntime linear half_pixel",
    "opencv cubic": "onnxruntime cubic half_pixel",
}
"""Resizers of the same kernel, whose results differ by a level where one rounds otherwise."""
FITS = ("stretch", "shorter", "letterbox")
ALARMS = 3 * SAME + len(TWINS) * len(FITS)
PHOTOS = (
    *("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png"),
    *("hubble_deep_field.jpg", "ihc.png", "retina.jpg"),
)
SAMPLES = 5
"""Photos of each comparison."""
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NONE = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
Image = Any


@dataclass(frozen=True)
class Pipeline:
    """What a pipeline does, from a photo u8[h, w, 3] to an array.

    Attributes:
        fit: "stretch", "shorter" (to 8/7 of the size, then a crop) or "letterbox".
        resize: Library and kernel, a key of `RESIZERS`.
        size: Side of the result.
        offset: Of the crop from the middle, rows and columns.
        side: "centre" or "start" of letterboxing.
        value: Of padding.
        channels: Order, before the normalisation.
        scale: Factor of the pixels.
        mean: Taken off.
        deviation: Divided by.
        layout: "NCHW", "NHWC", "CHW" or "reshaped".
        dtype: Of the result.
    """

    fit: str = "stretch"
    resize: str = "pillow bilinear"
    size: int = 224
    offset: tuple[int, int] = (0, 0)
    side: str = "centre"
    value: int = 114
    channels: tuple[int, int, int] = (0, 1, 2)
    scale: float = 1 / 255
    mean: tuple[float, float, float] = IMAGENET[0]
    deviation: tuple[float, float, float] = IMAGENET[1]
    layout: str = "NCHW"
    dtype: str = "float32"

    def __call__(self, photos: Sequence[Image], *, other_order: bool = False) -> list[Image]:
        """Return what it makes of the photos; optionally with sums in another order."""
        return [self._one(photo, other_order=other_order) for photo in photos]

    def _one(self, photo: Image, *, other_order: bool) -> Image:
        x = self._framed(photo)
        x = x[..., list(self.channels)]
        mean, deviation = np.array(self.mean), np.array(self.deviation)
        if other_order:
            # The same function, as a gain and an offset in float32.
            gain = (self.scale / deviation).astype(np.float32)
            x = x.astype(np.float32) * gain - (mean / deviation).astype(np.float32)
        else:
            x = (x * self.scale - mean) / deviation
        x = x.astype(self.dtype)
        if self.layout == "NHWC":
            return x[None]
        if self.layout == "reshaped":
            return np.ascontiguousarray(x).reshape(1, 3, *x.shape[:2])
        x = np.ascontiguousarray(x.transpose(2, 0, 1))
        return x if self.layout == "CHW" else x[None]

    def _framed(self, photo: Image) -> Image:
        rows, columns = photo.shape[:2]
        size = self.size
        if self.fit == "stretch":
            return self._resized(photo, (size, size))
        if self.fit == "shorter":
            factor = size * 8 / 7 / min(rows, columns)
            x = self._resized(photo, (round(rows * factor), round(columns * factor)))
            top, left = ((n - size) // 2 + d for n, d in zip(x.shape[:2], self.offset, strict=True))
            return x[top : top + size, left : left + size]
        factor = size / max(rows, columns)
        x = self._resized(photo, (round(rows * factor), round(columns * factor)))
        framed = np.full((size, size, 3), float(self.value))
        free = size - x.shape[0], size - x.shape[1]
        top, left = (n // 2 if self.side == "centre" else 0 for n in free)
        framed[top : top + x.shape[0], left : left + x.shape[1]] = x
        return framed

    def _resized(self, photo: Image, shape: tuple[int, int]) -> Image:
        return np.round(np.clip(RESIZERS[self.resize](photo, shape).astype(np.float64), 0, 255))


def _pillow(kernel: str) -> Callable[[Image, tuple[int, int]], Image]:
    def resize(photo: Image, shape: tuple[int, int]) -> Image:
        from PIL import Image as Pillow  # noqa: PLC0415 - may be missing

        how = getattr(Pillow.Resampling, kernel.upper())
        return np.asarray(Pillow.fromarray(photo).resize(shape[::-1], how))

    return resize


def _opencv(kernel: str) -> Callable[[Image, tuple[int, int]], Image]:
    def resize(photo: Image, shape: tuple[int, int]) -> Image:
        import cv2  # noqa: PLC0415 - may be missing

        return cv2.resize(photo, shape[::-1], interpolation=getattr(cv2, f"INTER_{kernel.upper()}"))

    return resize


def _onnxruntime(mode: str) -> Callable[[Image, tuple[int, int]], Image]:
    def resize(photo: Image, shape: tuple[int, int]) -> Image:
        node = helper.make_node(
            "Resize",
            ["x", "", "", "sizes"],
            ["y"],
            mode=mode,
            coordinate_transformation_mode="half_pixel",
        )
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            [node],
            "g",
            [
                value("x", TensorProto.FLOAT, [1, 3, None, None]),
                value("sizes", TensorProto.INT64, [4]),
            ],
            [value("y", TensorProto.FLOAT, None)],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnxruntime.set_default_logger_severity(3)
        session = onnxruntime.InferenceSession(model.SerializeToString())
        x = photo.astype(np.float32).transpose(2, 0, 1)[None]
        sizes = np.array([1, 3, *shape], np.int64)
        return session.run(None, {"x": x, "sizes": sizes})[0][0].transpose(1, 2, 0)

    return resize


RESIZERS: dict[str, Callable[[Image, tuple[int, int]], Image]] = {
    **{
        f"pillow {k}": _pillow(k)
        for k in ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
    },
    **{f"opencv {k}": _opencv(k) for k in ("nearest", "linear", "cubic", "area")},
    **{f"onnxruntime {mode} half_pixel": _onnxruntime(mode) for mode in ("linear", "cubic")},
}
FAMILIES = {
    "pillow nearest": "nearest",
    "pillow bilinear": "bilinear with antialiasing",
    "pillow bicubic": "bicubic with antialiasing",
    "pillow lanczos": "Lanczos",
    "pillow box": "area",
    "pillow hamming": "Hamming",
    "opencv nearest": "nearest from the corner, as OpenCV's",
    "opencv linear": "bilinear",
    "opencv cubic": "bicubic",
    "opencv area": "area",
    "onnxruntime linear half_pixel": "bilinear",
    "onnxruntime cubic half_pixel": "bicubic",
}

Change = dict[str, Any]
SINGLES: tuple[tuple[str, Change, Change], ...] = (
    ("channels", {}, {"channels": (2, 1, 0)}),
    ("channels", {}, {"channels": (1, 2, 0)}),
    ("layout", {}, {"layout": "NHWC"}),
    ("layout", {}, {"layout": "reshaped"}),
    ("batch-axis", {}, {"layout": "CHW"}),
    ("dtype", {}, {"dtype": "float64"}),
    ("scale", {"mean": NONE[0], "deviation": NONE[1]}, {"scale": 1.0}),
    ("scale", {}, {"scale": 1.0}),
    ("mean", {}, {"mean": NONE[0]}),
    ("mean", {"mean": HALF[0], "deviation": NONE[1]}, {"mean": NONE[0]}),
    ("deviation", {}, {"deviation": NONE[1]}),
    ("deviation", {"mean": NONE[0], "deviation": NONE[1]}, {"deviation": IMAGENET[1]}),
    ("resampling", {}, {"resize": "pillow bicubic"}),
    ("resampling", {}, {"resize": "pillow lanczos"}),
    ("resampling", {}, {"resize": "pillow box"}),
    ("resampling", {}, {"resize": "pillow nearest"}),
    ("resampling", {"resize": "opencv linear"}, {"resize": "opencv cubic"}),
    ("resampling", {"resize": "opencv linear"}, {"resize": "opencv area"}),
    ("resampling", {"resize": "opencv linear"}, {"resize": "opencv nearest"}),
    ("resampling", {}, {"resize": "opencv linear"}),
    ("resampling", {"fit": "letterbox"}, {"resize": "onnxruntime linear half_pixel"}),
)
"""Kind, what both pipelines have, and what B has besides."""
BEYOND: tuple[tuple[Change, Change], ...] = (
    ({}, {"fit": "letterbox"}),
    ({}, {"fit": "shorter"}),
    ({"fit": "letterbox"}, {"fit": "shorter"}),
    ({}, {"size": 256}),
    ({"fit": "shorter"}, {"fit": "stretch", "size": 256}),
    ({"fit": "letterbox"}, {"side": "start"}),
    ({"fit": "letterbox"}, {"value": 0}),
    ({"fit": "shorter"}, {"offset": (-16, 14)}),
)
"""What is not taken apart: what both pipelines have, and what B has besides."""
BESIDE: tuple[Change, ...] = ({}, {"channels": (2, 1, 0)}, {"mean": NONE[0]})
"""What else B has there."""


@dataclass(frozen=True)
class Trial:
    """Two pipelines and what they differ in."""

    a: Pipeline
    b: Pipeline
    photos: tuple[int, ...]

    @property
    def truth(self) -> set[str]:
        """The kinds of differences that are to be named."""
        return _truth(self.a, self.b)


def _truth(a: Pipeline, b: Pipeline) -> set[str]:
    found = set()
    direct = {
        "channels": "channels", "scale": "scale", "mean": "mean",
        "deviation": "deviation", "dtype": "dtype",
    }  # fmt: skip
    for field, kind in direct.items():
        if getattr(a, field) != getattr(b, field):
            found.add(kind)
    lead = [p.layout != "CHW" for p in (a, b)]
    found |= {"batch-axis"} if lead[0] != lead[1] else set()
    axes = [p.layout.removeprefix("N") for p in (a, b)]
    found |= {"layout"} if axes[0] != axes[1] else set()
    return found | ({"resampling"} if FAMILIES[a.resize] != FAMILIES[b.resize] else set())


def _combined(draw: random.Random, count: int) -> Trial:
    """Return a trial of `count` differences of different kinds."""
    while True:
        chosen = draw.sample(SINGLES, count)
        common: Change = {}
        for _, base, _ in chosen:
            common |= base
        changed: Change = {}
        for _, _, change in chosen:
            changed |= change
        if sum(len(change) for _, _, change in chosen) != len(changed):
            continue
        a = Pipeline(**common)
        trial = Trial(a, replace(a, **changed), _photos(draw))
        kinds = {kind for kind, _, _ in chosen}
        if len(kinds) == count and trial.truth == kinds:
            return trial


def beyond(seed: int = SEED) -> list[Trial]:
    """Return pipelines that fit, pad or size images differently, and what else B has."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    found = []
    for (base, change), also in product(BEYOND, BESIDE):
        a = Pipeline(**base)
        found.append(Trial(a, replace(a, **change, **also), _photos(draw)))
    return found


def _photos(draw: random.Random) -> tuple[int, ...]:
    return tuple(draw.sample(range(len(PHOTOS)), SAMPLES))


def trials(seed: int = SEED) -> dict[str, list[Trial]]:
    """Return the trials: one, two and three differences."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    singles = []
    for _, base, change in SINGLES:
        a = Pipeline(**base)
        singles.append(Trial(a, replace(a, **change), _photos(draw)))
    return {
        "single": singles,
        "pairs": [_combined(draw, 2) for _ in range(PAIRS)],
        "triples": [_combined(draw, 3) for _ in range(TRIPLES)],
    }


@cache
def photos() -> list[Image]:
    """Return the photos, u8[h, w, 3].

    Raises:
        ImportError: scikit-image, OpenCV or Pillow is missing.
    """
    import cv2  # noqa: F401, PLC0415
    import skimage  # noqa: PLC0415
    from PIL import Image as Pillow  # noqa: PLC0415

    folder = Path(skimage.__file__).parent / "data"
    return [np.asarray(Pillow.open(folder / name).convert("RGB")) for name in PHOTOS]


def compare(trial: Trial, raws: Sequence[Image]) -> set[str]:
    """Return the kinds of differences that are named."""
    chosen = [raws[i] for i in trial.photos]
    report = compare_arrays(trial.a(chosen), trial.b(chosen))
    return {difference.kind for difference in report.differences}


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Compare all pairs of pipelines, and pipelines with themselves."""
    try:
        photos()
    except ImportError as error:
        return [], f"{error.name} is not installed (pip install --group bench)"
    planned, wrong, figures, seconds = trials(), [], [], 0.0
    with ProcessPoolExecutor(CORES) as pool:
        alarms = pool.submit(_false_alarms)
        for group, members in planned.items():
            right = 0
            for trial, (told, spent) in zip(members, pool.map(_timed, members), strict=True):
                seconds += spent
                right += told == trial.truth
                if told != trial.truth:
                    wrong.append(_wrong(trial, group, told))
            what = f"{group} of differences named right"
            share, note = right / len(members), f"{right} of {len(members)}"
            figures.append(reported(what, share, note))
        members = beyond()
        right = sum(kinds in ({"fit"}, {"values"}) for kinds, _ in pool.map(_timed, members))
        what = "other fits, frames and sizes said to be so, and nothing else"
        note = f"{right} of {len(members)}"
        figures.append(at_least(what, right / len(members), 0.95, note))
        what = f"false alarms on {ALARMS} pipelines that do the same"
        figures.append(equal(what, alarms.result(), 0))
    total = sum(map(len, planned.values()))
    figures.append(reported("CPU seconds for each comparison", seconds / total))
    bench.details["preprocessing"] = {"seed": SEED, "wrong": wrong}
    return figures, None


def _timed(trial: Trial) -> tuple[set[str], float]:
    """Return the kinds that are named, and the CPU time of making and comparing."""
    started = time.process_time()
    return compare(trial, photos()), time.process_time() - started


def _false_alarms() -> int:
    """Return how many comparisons name a difference although there is none.

    Each pipeline against itself, against itself with the normalisation as a gain and an offset
    in float32, and with a float noise of 1e-7; and the same kernel of two libraries.
    """
    draw = random.Random(SEED)  # noqa: S311 - no secret
    noise = np.random.default_rng(SEED)
    raws, alarms = photos(), 0
    for trial in draw.sample([t for group in trials().values() for t in group], SAME):
        pipeline = trial.b
        chosen = [raws[i] for i in trial.photos]
        made = pipeline(chosen)
        shaken = [x * (1 + 1e-7 * noise.standard_normal(x.shape)).astype(x.dtype) for x in made]
        shaken = [x.astype(made[0].dtype) for x in shaken]
        for other in (made, pipeline(chosen, other_order=True), shaken):
            alarms += bool(compare_arrays(made, other).differences)
    chosen = list(raws[:SAMPLES])
    for fit in FITS:
        for one, other_one in TWINS.items():
            pair = [Pipeline(fit=fit, resize=resize)(chosen) for resize in (one, other_one)]
            alarms += bool(compare_arrays(pair[0], pair[1]).differences)
    return alarms


def _wrong(trial: Trial, group: str, told: set[str]) -> dict[str, Any]:
    a, b = asdict(trial.a), asdict(trial.b)
    return {
        "group": group,
        "told": sorted(told),
        "truth": sorted(trial.truth),
        "photos": [PHOTOS[i] for i in trial.photos],
        "a": {k: v for k, v in a.items() if v != getattr(Pipeline(), k)},
        "b": {k: v for k, v in b.items() if v != a[k]},
    }
