"""How two pipelines differ in resizing, cropping and padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halfwise.records import DifferenceKind, InputDifference
from halfwise.records.diagnosis import difference
from halfwise.tools.preprocessing.images import Box, boxes
from halfwise.tools.preprocessing.registration import Alignment, sharpness
from halfwise.tools.preprocessing.resizing import Axis, Method, Resizing, differ, fit_resizing
from halfwise.tools.preprocessing.tone import Tone
from halfwise.wording import dimensions, fixed, number

Array = NDArray[np.float64]

_ROUNDED = 2
"""Pixels by which two roundings of a size may differ."""


@dataclass(frozen=True)
class Frames:
    """Frames of the same samples in A and in B.

    Attributes:
        a: Boxes of A's images.
        b: Boxes of B's images.
        same_size: Whether images fill the same part of the frame in both, up to rounding.
    """

    a: tuple[Box, ...]
    b: tuple[Box, ...]
    same_size: bool

    @property
    def value_a(self) -> tuple[float, ...]:
        """A's padding value by channel; empty without padding."""
        return next((box.value for box in self.a if box.value), ())

    @property
    def value_b(self) -> tuple[float, ...]:
        """B's padding value by channel; empty without padding."""
        return next((box.value for box in self.b if box.value), ())


def frames(a: Sequence[Array], b: Sequence[Array]) -> Frames:
    """Return the frames of A's and B's images; f64[c, h, w] each, equally many."""
    left, right = boxes(a), boxes(b)
    down, along = (n / m for n, m in zip(b[0].shape[1:], a[0].shape[1:], strict=True))
    same = all(
        abs(x.rows * down - y.rows) <= _ROUNDED and abs(x.columns * along - y.columns) <= _ROUNDED
        for x, y in zip(left, right, strict=True)
    )
    return Frames(tuple(left), tuple(right), same)


def frame_differences(
    found: Frames, shape_a: Sequence[int], shape_b: Sequence[int]
) -> list[InputDifference]:
    """Describe padding on different sides, or in only one of the two.

    Args:
        found: The frames.
        shape_a: Rows and columns of A's images with their frame.
        shape_b: B's, likewise.
    """
    if not (found.value_a or found.value_b):
        return []
    if not found.same_size:
        return [_fit(found)]
    if bool(found.value_a) != bool(found.value_b):
        who = "A" if found.value_a else "B"
        return [
            difference(
                "fit",
                f"Only {who} pads the image.",
                "padded" if found.value_a else "not padded",
                "padded" if found.value_b else "not padded",
                f"frames are {dimensions(shape_a)} and {dimensions(shape_b)}",
            )
        ]
    down, along = (n / m for n, m in zip(shape_b, shape_a, strict=True))
    moved = max(
        max(abs(x.top * down - y.top), abs(x.left * along - y.left))
        for x, y in zip(found.a, found.b, strict=True)
    )
    if moved <= _ROUNDED:
        return []
    sides_a, sides_b = (sides(each, s) for each, s in ((found.a, shape_a), (found.b, shape_b)))
    return [
        difference(
            "padding-side",
            f"The image is placed differently in its padding: {_where(sides_b)} in B, "
            f"{_where(sides_a)} in A.",
            _where(sides_a),
            _where(sides_b),
            f"up to {fixed(moved, 0)} pixels apart",
        )
    ]


def sides(found: Sequence[Box], shape: Sequence[int]) -> tuple[str, str]:
    """Return where images lie in their frames, rows and columns: "start", "centre" or "end".

    "centre-up" puts an odd pixel before the image, "centre" after it.
    """
    offsets = [
        [(box.top, shape[0] - box.rows) for box in found],
        [(box.left, shape[1] - box.columns) for box in found],
    ]
    said = []
    for axis in offsets:
        room = [(offset, free) for offset, free in axis if free > 1]
        if all(offset == 0 for offset, _ in room):
            said.append("start" if room else "centre")
        elif all(offset == free for offset, free in room):
            said.append("end")
        else:
            up = all(offset == (free + 1) // 2 for offset, free in room)
            down = all(offset == free // 2 for offset, free in room)
            said.append("centre-up" if up and not down else "centre")
    return said[0], said[1]


def _fit(found: Frames) -> InputDifference:
    names = {
        (True, False): ("letterboxed (padded)", "not padded: stretched or cropped"),
        (False, True): ("not padded: stretched or cropped", "letterboxed (padded)"),
        (True, True): ("padded", "padded, in another size"),
    }
    a, b = names[bool(found.value_a), bool(found.value_b)]
    first = next((i for i, (x, y) in enumerate(zip(found.a, found.b, strict=True)) if x != y), 0)
    return difference(
        "fit",
        f"The image is fitted to the frame differently: it is {b} in B, {a} in A.",
        a,
        b,
        f"the image itself is {dimensions((found.a[first].rows, found.a[first].columns))} in A and "
        f"{dimensions((found.b[first].rows, found.b[first].columns))} in B",
    )


def _where(places: tuple[str, str]) -> str:
    words = {"start": ("at the top", "left"), "end": ("at the bottom", "right")}
    rows, columns = (words.get(place, ("centred", "centred"))[i] for i, place in enumerate(places))
    return "centred" if (rows, columns) == ("centred", "centred") else f"{rows}, {columns}"


Contents = tuple[Sequence[Array], Sequence[Array]]
Fitted = tuple[Resizing | None, Resizing | None]

_GEOMETRY: dict[DifferenceKind, str] = {
    "fit": "The image is fitted to the frame differently.",
    "crop": "The crop starts elsewhere.",
}
_MOST_FITTED = 3
_TRUSTED = 4.0
"""Residual of a good fit in raw levels; a wrong kernel leaves 1 to 20, wrong geometry more."""
_WIDENING = ("bilinear", "bicubic", "lanczos")
_REDUCES = 1.02
_SHARPER = 1.3
_AS_SHARP = (0.75, 1.33)
"""Bounds on the ratio of fine detail after a shift by half a pixel alone."""


def resampling_differences(
    alignment: Alignment,
    contents: Contents,
    tone: Tone,
    raws: Sequence[Array] | None,
    *,
    padded: bool,
) -> tuple[list[InputDifference], Fitted]:
    """Return differences in geometry and kernel, and how A and B resize, if fitted.

    Args:
        alignment: How B's images lie in A's.
        contents: A's and B's images without frames.
        tone: How A's values become B's.
        raws: The raw images of the same samples, turned like them; None if unknown.
        padded: Whether A or B has a frame.
    """
    if alignment.kind == "unlike":
        correlation = min(place.correlation for place in alignment.places)
        sentence, evidence = (
            "A and B do not show the same images.",
            f"correlation {fixed(correlation, 2)}",
        )
        unlike = difference("values", sentence, "other images", "other images", evidence)
        return [unlike], (None, None)
    if alignment.exact and tone.explained and alignment.kind == "same":
        return [], (None, None)
    if raws is not None:
        fits = [fit_resizing(raws[:_MOST_FITTED], side[:_MOST_FITTED]) for side in contents]
        a, b = fits
        if a is not None and b is not None and max(a.error, b.error) < _TRUSTED:
            return _fitted(a, b, padded=padded), (a, b)
    return _apart(alignment, contents, tone, padded=padded), (None, None)


def _fitted(a: Resizing, b: Resizing, *, padded: bool) -> list[InputDifference]:
    found = []
    views = [
        _axis(*axes) for x, y in zip(a.axes, b.axes, strict=True) for axes in zip(x, y, strict=True)
    ]
    geometry = next((kind for kind in _GEOMETRY if kind in views), None)
    if geometry is not None and not padded:
        sentence = _GEOMETRY[geometry]
        found.append(difference(geometry, sentence, _view(a.axes[0]), _view(b.axes[0])))
    if differ(a, b):
        reduced = any(axis.kept / axis.resized > _REDUCES for pair in a.axes for axis in pair)
        evidence = (
            f"residual in A: {number(a.error)} of 255 levels with A's own method, "
            f"{number(a.errors.get(b.method, float('inf')))} with B's; in B: "
            f"{number(b.error)} with its own, "
            f"{number(b.errors.get(a.method, float('inf')))} with A's"
        )
        kinds = method_kinds(a.method, b.method, reduced=reduced)
        found += [_method(kind, a.method, b.method, evidence) for kind in kinds]
    return found


def method_kinds(a: Method, b: Method, *, reduced: bool) -> list[DifferenceKind]:
    """Return how two methods differ.

    Args:
        a: One.
        b: The other.
        reduced: Whether images shrink; otherwise antialiasing has no effect.
    """
    found: list[DifferenceKind] = []
    if (a.kernel, a.parameter) != (b.kernel, b.parameter):
        found.append("kernel")
    widening = a.kernel in _WIDENING and b.kernel in _WIDENING
    if reduced and widening and a.antialias != b.antialias:
        found.append("antialias")
    alike = (a.kernel == "nearest") == (b.kernel == "nearest")
    if alike and a.convention != b.convention:
        found.append("half-pixel")
    return found or ["kernel"]


def _method(kind: DifferenceKind, a: Method, b: Method, evidence: str) -> InputDifference:
    sentences = {
        "kernel": f"Images are resized with different kernels: {b.kernel} in B, {a.kernel} in A.",
        "antialias": f"Only {'B' if b.antialias else 'A'} is resized with antialiasing.",
        "half-pixel": f"The convention for pixel centres is {b.convention} in B, {a.convention} "
        "in A.",
    }
    sentence = sentences[kind]
    if kind == "kernel" and a.kernel == b.kernel:
        parameters = f"{number(b.parameter)} in B, {number(a.parameter)} in A"
        sentence = f"The parameter of the {a.kernel} kernel is {parameters}."
    return difference(kind, sentence, str(a), str(b), evidence)


def _axis(a: Axis, b: Axis) -> DifferenceKind | None:
    """Return how two views along one axis differ: in extent, or in origin."""
    steps = [axis.kept / axis.resized for axis in (a, b)]
    begins = [axis.cut + axis.start * step for axis, step in zip((a, b), steps, strict=True)]
    extents = [axis.length * step for axis, step in zip((a, b), steps, strict=True)]
    if abs(extents[0] - extents[1]) > _ROUNDED * max(steps):
        return "fit"
    # Half of an odd number of pixels may round either way.
    slack = 0.6 if a.length == b.length else 1.6
    return "crop" if abs(begins[0] - begins[1]) > slack * max(steps) else None


def _view(axes: tuple[Axis, Axis]) -> str:
    rows, columns = axes
    cut = ""
    if (rows.kept, columns.kept) != (rows.raw, columns.raw):
        cut = f"{rows.kept}×{columns.kept} at ({rows.cut}, {columns.cut}), "
    crop = ""
    if (rows.length, columns.length) != (rows.resized, columns.resized):
        crop = f", {rows.length}×{columns.length} at ({rows.start}, {columns.start})"
    return f"{cut}resized to {rows.resized}×{columns.resized}{crop}"


def _apart(
    alignment: Alignment, contents: Contents, tone: Tone, *, padded: bool
) -> list[InputDifference]:
    """Return the differences that show without raw images."""
    found = []
    place = alignment.places[0]
    where = (
        f"pixel (0, 0) of B lies at ({fixed(place.start[0], 2)}, {fixed(place.start[1], 2)}) "
        f"in A; one pixel of B covers {fixed(place.step[0], 4)}×{fixed(place.step[1], 4)} "
        "pixels of A"
    )
    kind = alignment.kind
    if kind == "crop":
        down, along = alignment.shift
        found.append(
            difference(
                "crop",
                f"B is cropped {down} rows further down and {along} columns further right.",
                "(0, 0)",
                f"({down}, {along})",
                where,
            )
        )
    elif kind in ("half-pixel", "align-corners"):
        how = (
            "shifted by a fraction of a pixel"
            if kind == "half-pixel"
            else "stretched about the centre"
        )
        found.append(
            difference(
                "half-pixel",
                f"B is {how}: the conventions for pixel centres differ.",
                "half-pixel",
                "asymmetric" if kind == "half-pixel" else "align-corners",
                where,
            )
        )
    elif kind == "fit" and not padded:
        a, b = (dimensions(side[0].shape[1:]) for side in contents)
        found.append(difference("fit", _GEOMETRY["fit"], a, b, where))
    if kind in ("same", "crop", "half-pixel", "align-corners"):
        found += _kernel(alignment, contents, tone)
    return found


def _kernel(alignment: Alignment, contents: Contents, tone: Tone) -> list[InputDifference]:
    ratio = sharpness(*contents)
    if alignment.exact and tone.explained:
        return []
    if alignment.kind not in ("same", "crop") and _AS_SHARP[0] < ratio < _AS_SHARP[1]:
        return []
    if ratio > _SHARPER:
        b = "sharper or not antialiased"
    elif ratio < 1 / _SHARPER:
        b = "softer or antialiased"
    else:
        b = "about as sharp"
    return [
        difference(
            "resampling",
            f"The resize kernel or the antialiasing differs: B is {b}.",
            "reference",
            b,
            f"B has {fixed(ratio, 2)} times A's fine detail; give raw samples to name the kernels",
        )
    ]
