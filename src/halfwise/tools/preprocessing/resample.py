"""What two pipelines do differently where they resize and crop."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from halfwise.records import DifferenceKind, InputDifference
from halfwise.tools.preprocessing.alignment import Alignment, sharpness
from halfwise.tools.preprocessing.findings import difference
from halfwise.tools.preprocessing.resampling import Method
from halfwise.tools.preprocessing.resizing import Axis, Resizing, differ, fit_resizing
from halfwise.tools.preprocessing.tone import Tone

Array = NDArray[np.float64]
Contents = tuple[Sequence[Array], Sequence[Array]]
Fitted = tuple[Resizing | None, Resizing | None]

_MOST_FITTED = 3
_TRUSTED = 4.0
"""Raw levels that a fit may leave; the wrong kernel leaves 1 to 20, the wrong geometry more."""
_ROUNDED = 2
_WIDENING = ("bilinear", "bicubic", "lanczos")
_REDUCES = 1.02
_SHARPER = 1.3
_AS_SHARP = (0.75, 1.33)
"""Ratio of fine detail that a shift by half a pixel alone stays within."""


def resampling_differences(
    alignment: Alignment,
    contents: Contents,
    tone: Tone,
    raws: Sequence[Array] | None,
    *,
    padded: bool,
) -> tuple[list[InputDifference], Fitted]:
    """Return what differs in geometry and kernel, and how A and B resize where that was fitted.

    Args:
        alignment: How B's images lie in A's.
        contents: A's and B's images without frames.
        tone: How A's values become B's.
        raws: The raw images of the same samples, turned as they are; None where unknown.
        padded: Whether A or B has a frame.
    """
    if alignment.kind == "unlike":
        return [_unlike(alignment)], (None, None)
    if alignment.exact and tone.explained and alignment.kind == "same":
        return [], (None, None)
    if raws is not None:
        fits = [fit_resizing(raws[:_MOST_FITTED], side[:_MOST_FITTED]) for side in contents]
        a, b = fits
        if a is not None and b is not None and max(a.error, b.error) < _TRUSTED:
            return _fitted(a, b, padded=padded), (a, b)
    return _apart(alignment, contents, tone, padded=padded), (None, None)


def _unlike(alignment: Alignment) -> InputDifference:
    correlation = min(place.correlation for place in alignment.places)
    return difference(
        "values",
        "A and B do not show the same images.",
        "other images",
        "other images",
        f"correlation {correlation:.2f}",
    )


def _fitted(a: Resizing, b: Resizing, *, padded: bool) -> list[InputDifference]:
    found = []
    geometry = _geometry(a.axes, b.axes)
    if geometry is not None and not padded:
        words = {
            "fit": "The image is fitted to the frame in another way.",
            "crop": "The crop begins elsewhere.",
        }
        found.append(difference(geometry, words[geometry], _view(a.axes[0]), _view(b.axes[0])))
    if differ(a, b):
        reduced = any(axis.kept / axis.resized > _REDUCES for pair in a.axes for axis in pair)
        evidence = (
            f"A's own leaves {a.error:.2g} of 255 levels in A, B's leaves "
            f"{a.errors.get(b.method, float('inf')):.2g}; in B, {b.error:.2g} and "
            f"{b.errors.get(a.method, float('inf')):.2g}"
        )
        kinds = method_kinds(a.method, b.method, reduced=reduced)
        found += [_method(kind, a.method, b.method, evidence) for kind in kinds]
    return found


def method_kinds(a: Method, b: Method, *, reduced: bool) -> list[DifferenceKind]:
    """Return in what two methods differ.

    Args:
        a: One.
        b: The other.
        reduced: Whether images become smaller; else antialiasing does nothing.
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
        "kernel": f"Images are resized with another kernel: B is {b.kernel}, A {a.kernel}.",
        "antialias": f"Only {'B' if b.antialias else 'A'} is resized with antialiasing.",
        "half-pixel": f"Pixel centres are taken as {b.convention} in B, as {a.convention} in A.",
    }
    sentence = sentences[kind]
    if kind == "kernel" and a.kernel == b.kernel:
        sentence = (
            f"The {a.kernel} kernel has another parameter: {b.parameter:g}, not {a.parameter:g}."
        )
    return difference(kind, sentence, str(a), str(b), evidence)


def _geometry(
    a: Sequence[tuple[Axis, Axis]], b: Sequence[tuple[Axis, Axis]]
) -> DifferenceKind | None:
    kinds = {
        kind for x, y in zip(a, b, strict=True) for kind in map(_axis, x, y) if kind is not None
    }
    order: tuple[DifferenceKind, ...] = ("fit", "crop")
    return next((kind for kind in order if kind in kinds), None)


def _axis(a: Axis, b: Axis) -> DifferenceKind | None:
    """Return in what two views along one axis differ: their extent, or where they begin."""
    steps = [axis.kept / axis.resized for axis in (a, b)]
    begins = [axis.cut + axis.start * step for axis, step in zip((a, b), steps, strict=True)]
    extents = [axis.length * step for axis, step in zip((a, b), steps, strict=True)]
    if abs(extents[0] - extents[1]) > _ROUNDED * max(steps):
        return "fit"
    # Half of an odd number of pixels is rounded in either direction.
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
    """Tell what can be told without raw images."""
    found = []
    place = alignment.places[0]
    where = (
        f"pixel (0, 0) of B lies at ({place.start[0]:.2f}, {place.start[1]:.2f}) of A, and a pixel "
        f"of B is {place.step[0]:.4f}×{place.step[1]:.4f} of A's"
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
        how = "moved by a part of a pixel" if kind == "half-pixel" else "stretched about the middle"
        found.append(
            difference(
                "half-pixel",
                f"B is {how}: another convention of pixel centres.",
                "half-pixel",
                "asymmetric" if kind == "half-pixel" else "align-corners",
                where,
            )
        )
    elif kind == "fit" and not padded:
        sentence = "The image is fitted to the frame in another way."
        found.append(difference("fit", sentence, *_sizes(contents), where))
    if kind in ("same", "crop", "half-pixel", "align-corners"):
        found += _kernel(alignment, contents, tone)
    return found


def _kernel(alignment: Alignment, contents: Contents, tone: Tone) -> list[InputDifference]:
    ratio = sharpness(*contents)
    if alignment.exact and tone.explained:
        return []
    still = alignment.kind in ("same", "crop")
    if not still and _AS_SHARP[0] < ratio < _AS_SHARP[1]:
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
            f"Resize kernel or antialiasing differs: B is {b}.",
            "reference",
            b,
            f"B has {ratio:.2f} times A's fine detail; give raw samples to name the kernels",
        )
    ]


def _sizes(contents: Contents) -> tuple[str, str]:
    first = [side[0].shape for side in contents]
    return f"{first[0][1]}×{first[0][2]}", f"{first[1][1]}×{first[1][2]}"
