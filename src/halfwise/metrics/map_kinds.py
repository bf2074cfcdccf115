"""Outputs that are maps: masks, segmentations, optical flow, images, heat maps.

- Mask: one channel within [0, 1], with little between its two values. Not an alpha matte, a depth
  map, or a scanned page, where an input has the same shape.
- Segmentation: channels that sum to 1; logits of the image's size, of which one is far ahead; whole
  numbers of that size; all in regions. Not features, whose sizes are multiples of 32.
- Flow: two channels beyond [0, 1], and a name or two images as inputs. Not two classes.
- Image: three channels (or one, if enlarged) at the input's size or a multiple, in the range of
  images, with similar neighbours. Not normals, of length 1, or regions with hard edges.
- Heat map: a name, and values of peaks. Nothing else distinguishes it from features.
"""

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.evidence import Arrays, Look, Seen, image_sizes, sums_to_one, within_unit
from halfwise.metrics.row_kinds import BINS
from halfwise.records import Evidence

_SHARP = 0.5
"""Least share above 0.9 of a mask's values above 0.1. A Gaussian peak has 5 %, uniform values in
[0, 1] have 11 %."""
_SMALLEST = 8
"""Least height and width of a map."""
_REGIONS = 0.9
"""Least share of neighbouring pixels of one class: noise over n classes has 1/n."""
_AHEAD = 1.0
"""Margin of the largest logit over the next at half of the pixels: e times as probable."""
_SPACE = 32
"""Features have sizes in multiples of it."""
_FEWEST_LOGITS = 5
_MOST_CLASSES = 1000
"""Larger whole numbers are not classes of pixels."""
_SCALES = (1, 2, 3, 4, 8)
"""Factors by which an image may be larger than its input."""
_RANGES = ((-0.1, 1.1, 0.5), (-1.1, 1.1, 1.0), (-20.0, 275.0, 100.0))
"""Smallest value, largest value and least span of images in [0, 1], [-1, 1] and [0, 255]."""
_OPPOSITE = -0.5
"""A flow's channels correlate by more than this; logits of two classes are near -1."""
_ALIKE = 0.5
"""Least correlation of neighbouring pixels in an image; natural images have 0.9, noise 0."""


def mask(seen: Seen) -> Look | None:
    """Recognise masks: single channels that tell inside from outside."""
    one = all(a.ndim == 4 and 1 in (a.shape[1], a.shape[-1]) for a in seen.arrays)
    if seen.discrete or not one or not all(map(within_unit, seen.arrays)):
        return None
    # Two-valued outputs with the exact shape of an input may be restored pages.
    own, tiny = seen.shape in seen.inputs.values(), sorted(seen.shape[1:])[1] < _SMALLEST
    shown = not (own or tiny or _has_no_image(seen)) and _is_sharp(seen.arrays)
    return seen.look("mask", ("one-channel", *(("two-valued",) if shown else ())), shown=shown)


def class_map(seen: Seen) -> Look | None:
    """Recognise the class of each pixel as a whole number."""
    sizes, shape = image_sizes(seen.inputs), seen.shape
    if not seen.discrete or len(shape) not in (3, 4) or shape[-2:] not in sizes or shape[1] == 3:
        return None
    found = all(a.min() >= 0 and a.max() < _MOST_CLASSES and _in_regions(a) for a in seen.arrays)
    return seen.look("segmentation", ("size-of-input", "in-regions"), shown=True) if found else None


def segmentation(seen: Seen) -> Look | None:
    """Recognise class scores per pixel [N, classes, height, width]."""
    if seen.discrete or not all(_is_maps(array, 2) for array in seen.arrays):
        return None
    if not all(_in_regions(array.argmax(axis=1)) for array in seen.arrays):
        return None
    if all(sums_to_one(array, 1) for array in seen.arrays):
        return seen.look("segmentation", ("channels-sum", "in-regions"), shown=True)
    named = seen.called("seg", "semantic")
    fits = seen.shape[1] >= _FEWEST_LOGITS and seen.shape[1] % _SPACE
    if not (named or (fits and seen.shape[2:] in image_sizes(seen.inputs))):
        return None
    if any(map(within_unit, seen.arrays)) or not all(map(_one_is_ahead, seen.arrays)):
        return None
    why: Evidence = "by-name" if named else "size-of-input"
    return seen.look("segmentation", (why, "in-regions", "one-ahead"), shown=True)


def flow(seen: Seen) -> Look | None:
    """Recognise two channels of shifts in pixels."""
    if seen.discrete:
        return None
    if all(map(_is_two_maps, seen.arrays)):
        two = _are_pair(seen) and all(map(_are_shifts, seen.arrays))
        pair: tuple[Evidence, ...] = ("pair-of-images",) if two else ()
        named: tuple[Evidence, ...] = ("by-name",) if seen.called("flow") else ()
        return seen.look("flow", ("two-channels", *named, *pair), shown=bool(pair or named))
    if all(map(_is_two_maps, map(_channels_first, seen.arrays))):
        return seen.look("flow", ("two-channels", "channels-last"), shown=False)
    return None


def image(seen: Seen) -> Look | None:
    """Recognise an image made from an image."""
    last = seen.arrays[0].ndim == 4 and seen.shape[1] not in (1, 3)
    maps = [_channels_first(array) if last else array for array in seen.arrays]
    if seen.discrete or not all(_is_maps(array, 1) for array in maps):
        return None
    channels, *size = maps[0].shape[1:]
    sizes = image_sizes(seen.inputs)
    times = [n for n in _SCALES for h, w in sizes if (h * n, w * n) == tuple(size)]
    if not times or not (channels == 3 or (channels == 1 and times[0] > 1)):
        return None
    if not _is_in_range(maps):
        return None
    if _is_sharp(maps) or any(map(_are_directions, maps)) or not all(map(_is_smooth, maps)):
        return None
    return seen.look("image", ("times-input", "range-of-images", "smooth"), shown=True)


def heat_map(seen: Seen) -> Look | None:
    """Recognise maps of peaks by their name."""
    if (
        seen.discrete
        or not seen.called("heat", "hmap")
        or not all(_is_maps(a, 1) for a in seen.arrays)
    ):
        return None
    fits = all(array.min() >= -0.5 and 0.1 <= array.max() <= 1.5 for array in seen.arrays)
    return seen.look("heat-map", ("by-name",), shown=True) if fits else None


def _is_maps(array: NDArray[np.float64], channels: int) -> bool:
    """Return whether the shape is [N, ≥ channels, height, width] and all values are finite."""
    return (
        array.ndim == 4
        and array.shape[1] >= channels
        and min(array.shape[2:]) >= _SMALLEST
        and bool(np.isfinite(array).all())
    )


def _is_sharp(arrays: Arrays) -> bool:
    """Return whether maps have an inside and an outside, and little in between."""
    if not all(map(within_unit, arrays)):
        return False
    risen = sum(int((array > 0.1).sum()) for array in arrays)
    inside = sum(int((array > 0.9).sum()) for array in arrays)
    return 0 < inside >= _SHARP * risen and risen < sum(array.size for array in arrays)


def _in_regions(classes: NDArray[np.generic]) -> bool:
    """Return whether neighbours mostly share a class, and there is more than one class."""
    if classes.ndim < 2 or min(classes.shape[-2:]) < _SMALLEST or not np.ptp(classes):
        return False
    across = classes[..., 1:] == classes[..., :-1]
    down = classes[..., 1:, :] == classes[..., :-1, :]
    return float((across.mean() + down.mean()) / 2) >= _REGIONS


def _one_is_ahead(scores: NDArray[np.float64]) -> bool:
    two = np.partition(scores, -2, axis=1)[:, -2:]
    return float(np.median(two[:, 1] - two[:, 0])) >= _AHEAD


def _channels_first(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return NHWC as NCHW; arrays without four axes unchanged."""
    return np.moveaxis(array, -1, 1) if array.ndim == 4 else array


def _is_two_maps(array: NDArray[np.float64]) -> bool:
    is_map = array.ndim == 4 and array.shape[1] == 2 and min(array.shape[2:]) >= _SMALLEST
    # Two classes per pixel have the same shape, but stay within [0, 1] as probabilities.
    return is_map and not within_unit(array)


def _are_pair(seen: Seen) -> bool:
    images = [shape for shape in seen.inputs.values() if len(shape) == 4 and 3 in shape[1::2]]
    return len(images) == 2 and images[0] == images[1]


def _are_shifts(array: NDArray[np.float64]) -> bool:
    """Distinguish shifts from scores of two classes, one of which falls as the other rises.

    Both channels have both signs: a disparity and its confidence do not.
    """
    both_ways = (array.min(axis=(0, 2, 3)) < 0).all() and (array.max(axis=(0, 2, 3)) > 0).all()
    if not (both_ways and np.isfinite(array).all()):
        return False
    return _correlation(array[:, 0].ravel(), array[:, 1].ravel()) > _OPPOSITE


def _has_no_image(seen: Seen) -> bool:
    """Return whether no input is a map, or the output has spectrum bins that no input has."""
    maps = [shape for shape in seen.inputs.values() if len(shape) == 4 and min(shape[2:]) > 1]
    bins = not BINS.isdisjoint(seen.shape[1:])
    sizes = {length for shape in maps for length in shape[1:]}
    return bool(seen.inputs) and (not maps or (bins and BINS.isdisjoint(sizes)))


def _is_in_range(maps: Arrays) -> bool:
    low, high = min(float(a.min()) for a in maps), max(float(a.max()) for a in maps)
    return any(
        least <= low and high <= most and high - low >= span for least, most, span in _RANGES
    )


def _are_directions(array: NDArray[np.float64]) -> bool:
    return bool(np.all(np.abs(np.linalg.norm(array, axis=1) - 1) <= 0.05))


def _is_smooth(array: NDArray[np.float64]) -> bool:
    pairs = ((array[..., 1:], array[..., :-1]), (array[..., 1:, :], array[..., :-1, :]))
    return all(_correlation(one.ravel(), other.ravel()) >= _ALIKE for one, other in pairs)


def _correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.corrcoef(one, other)[0, 1]) if np.ptp(one) and np.ptp(other) else 0.0
