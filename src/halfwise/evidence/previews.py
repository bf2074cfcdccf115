"""Previews of judged samples whose inputs are images, as PNG files.

PNG (ISO/IEC 15948) with 8 bits per channel, no palette, pixels filtered: the filter predicts each
pixel from its neighbours, which halves photographs.
"""

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Case
from halfwise.records import Preview, Verdict

WORST, TYPICAL = 4, 2
"""How many samples are shown of each kind."""
_WIDEST = 128
_LEAST_SIDE = 8
_SMOOTH = 0.3
"""Smallest correlation of neighbours: photographs have 0.9 or more, unrelated features none."""

Why = Literal["worst", "typical"]


def previews(case: Case, verdict: Verdict) -> tuple[Preview, ...]:
    """Return previews of the worst judged samples and of some with median error, worst first.

    An input is shown if all its values on these samples are finite and neighbours are similar,
    with 1 or 3 channels (first or last) and at least 8 pixels per side. For a batch, the first
    entry is shown.

    Args:
        case: Supplies the samples.
        verdict: The judged samples, and their errors.
    """
    chosen = _chosen(verdict)
    samples = case.heldout + case.calibration
    places = {name: i for i, name in reversed(list(enumerate(samples.ids)))}
    found = [(i, why, samples[places[i]]) for i, why in chosen if i in places]
    names = found[0][2] if found else ()
    images = [name for name in names if _are_images([s[name] for _, _, s in found])]
    return tuple(
        Preview(sample=sample, input=name, shape=s[name].shape, why=why, png=_image(s[name]))
        for sample, why, s in found
        for name in images
    )


def _chosen(verdict: Verdict) -> list[tuple[str, Why]]:
    """Return the samples to show; none if the record has no errors per sample."""
    ids, errors = verdict.samples, verdict.excesses
    if len(errors) != len(ids):
        return []
    order = sorted(range(len(ids)), key=lambda i: -errors[i])
    middle = max(WORST, (len(order) - TYPICAL) // 2)
    worst: list[tuple[str, Why]] = [(ids[i], "worst") for i in order[:WORST]]
    return worst + [(ids[i], "typical") for i in order[middle : middle + TYPICAL]]


def _are_images(arrays: Sequence[NDArray[Any]]) -> bool:
    """Return whether an input looks like an image on all samples, and not like a constant."""
    if not any(array.size and array.min() != array.max() for array in arrays):
        return False
    pixels = [_pixels(array) for array in arrays]
    return all(p is not None and _is_smooth(p, 0) and _is_smooth(p, 1) for p in pixels)


def _pixels(array: NDArray[Any]) -> NDArray[np.float64] | None:
    """Return f64[height, width, 1 or 3]; None if shape or type are not an image's."""
    one = array[0] if array.ndim == 4 and len(array) else array
    if one.ndim != 3 or array.dtype.kind not in "fu":
        return None
    first = one.shape[0] in (1, 3) and (array.ndim == 4 or one.shape[0] == 3)
    if first:
        one = np.moveaxis(one, 0, -1)
    elif one.shape[-1] not in (1, 3):
        return None
    return one.astype(np.float64) if min(one.shape[:2]) >= _LEAST_SIDE else None


def _is_smooth(values: NDArray[np.float64], axis: int) -> bool:
    """Return whether all values are finite, and neighbours along an axis correlate or are equal."""
    if not np.isfinite(values).all():
        return False
    centred = np.moveaxis(values - values.mean((0, 1)), axis, 0)
    power = float(np.square(centred).mean())
    return power == 0 or float((centred[1:] * centred[:-1]).mean()) >= _SMOOTH * power


def _image(array: NDArray[Any]) -> str:
    """Return a reduced image, from its smallest value in black to its largest in white."""
    pixels = _pixels(array)
    assert pixels is not None
    step = -(-max(pixels.shape[:2]) // _WIDEST)
    height, width = (side // step * step for side in pixels.shape[:2])
    blocks = pixels[:height, :width].reshape(height // step, step, width // step, step, -1)
    small = blocks.mean((1, 3))
    least, most = float(small.min()), float(small.max())
    scaled = (small - least) / (most - least or 1.0) * 255
    return base64.b64encode(png(np.round(scaled).astype(np.uint8))).decode()


_COLOUR_TYPES = {1: 0, 3: 2}
"""Colour types by number of channels: grey, and red, green and blue (table 11.1)."""
_PAETH = 4
"""A filter that stores each byte's difference from its nearest neighbour (9.4)."""


def png(image: NDArray[np.uint8]) -> bytes:
    """Return an image as a PNG file.

    Args:
        image: u8[height, width, 1 or 3], of one pixel or more.
    """
    height, width, channels = image.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    rows = np.full((height, 1 + width * channels), _PAETH, np.uint8)
    rows[:, 1:] = _filtered(image).reshape(height, -1)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _filtered(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return each byte's difference from its left, upper or upper left neighbour, modulo 256."""
    around = np.pad(image.astype(np.int16), ((1, 0), (1, 0), (0, 0)))
    left, upper, corner = around[1:, :-1], around[:-1, 1:], around[:-1, :-1]
    estimate = left + upper - corner
    a, b, c = (np.abs(estimate - one) for one in (left, upper, corner))
    nearest = np.where((a <= b) & (a <= c), left, np.where(b <= c, upper, corner))
    return (image - nearest).astype(np.uint8)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
