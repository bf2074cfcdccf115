"""What an output is: evidence from its shape, its values, its name and the inputs.

An output is of a kind if the evidence leaves hardly any other: a metric that does not fit would
accept wrong results. A single sample that does not fit rules a kind out, and so does a name that
says otherwise (`evidence`). docs/metrics.md says what each rule goes by, and what rules it out.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.difference import is_discrete
from halfwise.metrics.evidence import (
    SUM_SLACK,
    Arrays,
    Inputs,
    Seen,
    correlation,
    image_sizes,
    is_against,
    is_weights,
    sums_to_one,
    whole_numbers,
    within_unit,
)
from halfwise.metrics.grids import cells_in
from halfwise.metrics.keypoints import keypoints_in
from halfwise.metrics.layouts import boxes_in
from halfwise.metrics.measures import Outputs
from halfwise.metrics.peaks import LOGITS, VISIBLE, heights, maps_of
from halfwise.metrics.slices import FEWEST, MOSTLY
from halfwise.metrics.targets import SIDE, class_axis, without_trailing_ones
from halfwise.records import Evidence, Recognised

_CLASSES = ("logit", "prob", "score", "class", "cls", "softmax", "pred")
"""Words in the names of outputs with one number per class."""
_VECTORS = ("embed", "feat", "hidden", "pool", "latent", "vector", "repr", "token", "encod")
"""Words in the names of embeddings."""
_SURELY_VECTORS = ("embed", "hidden", "pooled", "pooler", "latent", "representation")
_TOKENS = ("token", "sequence", "ids")
_SPACE = 32
"""Embeddings and features have dimensions in multiples of it; sets of classes rarely do."""
_FEWEST_DIMENSIONS = 16
"""Fewest dimensions of an embedding: quaternions and directions have length 1 as well."""
_FEWEST_CLASSES = 10
"""Fewest classes of logits. Our choice."""
_SURELY = ("logit", "prob", "class", "cls", "softmax", "token")
_SERIES = 0.8
"""Least correlation of numbers with their neighbours in a series; ImageNet's classes, with breeds
of dogs as neighbours, have less."""
_KNOWN_COUNTS = (1000, 1001, 21841, 21843)
"""Class counts of ImageNet-1k and ImageNet-21k, without and with a background class: of images."""


def class_scores(seen: Seen) -> Recognised | None:
    """Recognise probabilities and logits; those of a sequence are tokens."""
    rows = seen.rows()
    # A set of classes is as large for every sample.
    if seen.discrete or len({array.shape[-1:] for array in rows}) > 1:
        return None
    if all(map(_are_probabilities, rows)):
        if rows[0].ndim > 2:
            taken = _is_length_of_input(seen, rows[0].shape[-1]) and not seen.called(*_SURELY)
            fits = rows[0].ndim == 3 and not taken and not _are_of_anchors(seen)
            return seen.shows("tokens", "rows-sum") if fits else None
        # A few one-hot rows may be anything.
        whole = whole_numbers(rows)
        few = sum(array.size // array.shape[-1] for array in rows) < FEWEST
        fits = not (whole and few) and not _are_shares(seen, rows)
        return seen.shows("class-scores", "rows-sum") if fits else None
    if all(array.ndim == 3 and array.shape[-1] >= _FEWEST_CLASSES for array in rows):
        evidence = tuple(_of_logits(seen, rows))
        if evidence and not _are_of_anchors(seen):
            return seen.shows("tokens", *evidence)
    evidence = tuple(_of_logits(seen, rows)) if _may_be_logits(seen, rows) else ()
    return seen.shows("class-scores", *evidence) if evidence else None


def token_ids(seen: Seen) -> Recognised | None:
    """Recognise token ids by their name."""
    fits = seen.discrete and len(seen.shape) in (1, 2, 3) and seen.called(*_TOKENS)
    return seen.shows("tokens", "by-name") if fits else None


def embeddings(seen: Seen) -> Recognised | None:
    """Recognise vectors [*, dimensions] whose direction matters."""
    rows = seen.rows()
    if seen.discrete or seen.is_state:
        return None
    if any(a.ndim not in (2, 3) or a.shape[-1] < _FEWEST_DIMENSIONS for a in rows):
        return None
    if not all(np.isfinite(array).all() for array in rows) or any(map(within_unit, rows)):
        return None
    lengths = np.concatenate([np.linalg.norm(a, axis=-1).ravel() for a in rows])
    unit: tuple[Evidence, ...] = ()
    if np.all(np.abs(lengths - 1) <= SUM_SLACK):
        unit = ("unit-length",)
    named: tuple[Evidence, ...] = ("by-name",) if seen.called(*_SURELY_VECTORS) else ()
    if named and seen.shape in seen.inputs.values():
        named = ()
    return seen.shows("embedding", *unit, *named) if unit or named else None


def _are_probabilities(array: NDArray[np.float64]) -> bool:
    if array.ndim == 0 or array.shape[-1] < 2:
        return False
    if array.ndim > 2 and array.shape[-1] == array.shape[-2]:
        return False  # [..., L, L]: attention among L positions
    return sums_to_one(array, -1)


def _are_shares(seen: Seen, rows: list[NDArray[np.float64]]) -> bool:
    """Return whether rows sum to 1 but are no choice: bins of an axis, state transitions."""
    if seen.called(*_SURELY):
        return False
    square = rows[0].ndim == 2 and rows[0].shape[0] == rows[0].shape[1] > 2
    return square or _is_series(rows)


def _is_series(rows: list[NDArray[np.float64]]) -> bool:
    """Return whether numbers correlate with those 1 to 3 places on, unlike scores of classes.

    Coordinates of points in two or three dimensions correlate with those of the next point.
    """
    each = np.concatenate([array.reshape(-1, array.shape[-1]) for array in rows])
    if each.shape[-1] < _FEWEST_DIMENSIONS or not np.isfinite(each).all():
        return False
    return any(_goes_with(each, step) for step in (1, 2, 3))


def _goes_with(rows: NDArray[np.float64], step: int) -> bool:
    one, other = (
        part - part.mean(axis=1, keepdims=True) for part in (rows[:, step:], rows[:, :-step])
    )
    length = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    return bool(
        np.median(np.divide((one * other).sum(axis=1), length, out=0 * length, where=length > 0))
        >= _SERIES
    )


def _is_length_of_input(seen: Seen, length: int) -> bool:
    """Return whether rows are as long as an axis of an input, like attention over its positions."""
    return any(length in shape[1:] for shape in seen.inputs.values() if len(shape) < 4)


def _are_of_anchors(seen: Seen) -> bool:
    """Return whether another output has four numbers per row: boxes to be decoded."""
    two = seen.shape[:2]
    return any(shape[:2] == two and shape[-1] == 4 for shape in seen.beside.values())


def _may_be_logits(seen: Seen, rows: list[NDArray[np.float64]]) -> bool:
    """Distinguish class scores [N, classes] from embeddings [N, dimensions]."""
    if any(array.ndim != 2 or array.shape[-1] < _FEWEST_CLASSES for array in rows):
        return False
    if seen.mentions(*_VECTORS):
        return False
    if seen.mentions(*_CLASSES):
        return True
    steps = len(seen.shape) == 3  # [N, steps, 1]: a number for each step, of no class
    if steps or not all(np.isfinite(array).all() for array in rows):
        return False
    lengths = np.concatenate([np.linalg.norm(array, axis=-1) for array in rows])
    mean, other = lengths.mean(), {array.tobytes() for array in rows}
    if abs(mean - 1) <= SUM_SLACK or (len(other) > 1 and np.ptp(lengths) <= SUM_SLACK * mean):
        return False
    return bool(rows[0].shape[-1] % _SPACE) and not _is_series(rows)


def _of_logits(seen: Seen, rows: list[NDArray[np.float64]]) -> Iterator[Evidence]:
    """Yield the evidence for logits: scores within [0, 1] may be multi-label."""
    if all(map(within_unit, rows)):
        return
    if seen.called("logit"):
        yield "by-name"
    counted = rows[0].ndim == 2 and rows[0].shape[-1] in _KNOWN_COUNTS
    if counted and image_sizes(seen.inputs) and not _is_series(rows):
        yield "known-count"
    with np.errstate(over="ignore", invalid="ignore"):
        sums = [np.abs(np.exp(array).sum(axis=-1) - 1) <= SUM_SLACK for array in rows]
    if all(array.all() for array in sums):
        yield "log-sum"


BINS = frozenset(2**k + 1 for k in range(6, 13))
"""Bins of a spectrum of 2^(k + 1) samples."""


_SHARP = 0.5
"""Least share above 0.9 of a mask's values above 0.1. A Gaussian peak has 5 %, uniform values in
[0, 1] have 11 %."""
_AHEAD = 1.0
"""Margin of the largest logit over the next at half of the pixels: e times as probable."""
_MOST_CLASSES = 1000
"""Larger whole numbers are not classes of pixels."""
_RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))
"""Ranges of images."""
_OUTSIDE, _FILLED = 0.1, 0.5
"""Shares of its range: how far an image's values may leave it, and the least that they span."""
_OPPOSITE = -0.5
"""A flow's channels correlate by more than this; logits of two classes are near -1."""
_VARIED = 0.15
"""Least standard deviation of a grey image of the input's size, as a share of its range; uniform
values have 0.29, a map that is set at one pixel in 100 has 0.1."""
SMOOTH = 0.5
"""Least correlation of neighbouring pixels in an image; natural images have 0.9, noise 0."""


def mask(seen: Seen) -> Recognised | None:
    """Recognise masks: single channels that tell inside from outside."""
    one = all(a.ndim == 4 and 1 in (a.shape[1], a.shape[-1]) for a in seen.arrays)
    if seen.discrete or not one or not all(map(within_unit, seen.arrays)):
        return None
    # Two-valued outputs with the exact shape of an input may be restored pages.
    restored, tiny = seen.shape in seen.inputs.values(), sorted(seen.shape[1:])[1] < SIDE
    fits = not (restored or tiny or _has_no_image(seen)) and _is_sharp(seen.arrays)
    return seen.shows("mask", "one-channel", "two-valued") if fits else None


def class_map(seen: Seen) -> Recognised | None:
    """Recognise the class of each pixel as a whole number."""
    maps = [without_trailing_ones(array) for array in seen.arrays]
    sizes, shape = image_sizes(seen.inputs), maps[0].shape
    if not seen.discrete or len(shape) not in (3, 4) or shape[-2:] not in sizes or shape[1] == 3:
        return None
    classes = all(a.min() >= 0 and a.max() < _MOST_CLASSES and _in_regions(a) for a in maps)
    return seen.shows("segmentation", "size-of-input", "in-regions") if classes else None


def segmentation(seen: Seen) -> Recognised | None:
    """Recognise class scores per pixel [N, classes, height, width] or with the classes last."""
    last = seen.arrays[0].ndim == 4 and class_axis(seen.shape) == 3
    maps = [_channels_first(array) if last else array for array in seen.arrays]
    if seen.discrete or not all(_is_maps(array, 2) for array in maps):
        return None
    if not all(_in_regions(array.argmax(axis=1)) for array in maps):
        return None
    if all(sums_to_one(array, 1) for array in maps):
        return seen.shows("segmentation", "channels-sum", "in-regions")
    named = seen.called("seg", "semantic")
    # An image may have four channels.
    classes, *size = maps[0].shape[1:]
    fits = classes > 4 and classes % _SPACE
    if not (named or (fits and tuple(size) in image_sizes(seen.inputs))):
        return None
    if any(map(within_unit, maps)) or not all(map(_one_is_ahead, maps)):
        return None
    why: Evidence = "by-name" if named else "size-of-input"
    return seen.shows("segmentation", why, "in-regions", "one-ahead")


def flow(seen: Seen) -> Recognised | None:
    """Recognise two channels of shifts in pixels."""
    if seen.discrete or not all(map(_is_two_maps, seen.arrays)):
        return None
    evidence: list[Evidence] = ["by-name"] if seen.called("flow") else []
    if _are_pair(seen) and all(map(_are_shifts, seen.arrays)):
        evidence.append("pair-of-images")
    return seen.shows("flow", "two-channels", *evidence) if evidence else None


def image(seen: Seen) -> Recognised | None:
    """Recognise an image made from an image; one of 8 bits has three channels."""
    last = seen.arrays[0].ndim == 4 and seen.shape[1] not in (1, 3)
    if seen.discrete and seen.arrays[0].dtype != np.uint8:
        return None
    arrays = [array.astype(np.float64) for array in seen.arrays]
    maps = [_channels_first(array) if last else array for array in arrays]
    if not all(_is_maps(array, 1) for array in maps):
        return None
    channels, *size = maps[0].shape[1:]
    sizes = image_sizes(seen.inputs)
    times = [size[0] // h for h, w in sizes if size[0] % h == 0 and size[0] * w == size[1] * h]
    fits = bool(times) and (channels == 3 or _is_grey(seen, maps, times[0]))
    if not fits or any(map(_are_directions, maps)):
        return None
    # Whatever tells something of each pixel has no more pixels than there are.
    if channels == 3 and times[0] > 1:
        return seen.shows("image", "times-input")
    # A blank image is as smooth as it is rough.
    rough = any(np.ptp(array) and not _is_smooth(array) for array in maps)
    if rough or _is_sharp(maps) or not _is_in_range(maps):
        return None
    return seen.shows("image", "times-input", "range-of-images", "smooth")


_HEAT = ("heat", "hm", "keypoint", "kpt", "center", "centre")
"""Words in the names of heat maps."""
_SHARPEST = 0.15
"""Largest share above 0.9 of their height of what is above 0.1 in peaks: a Gaussian has 5 %, 7 % at
whole pixels, the softest mask of an object a third."""
_FEWEST_JOINTS = 4
"""Fewest maps that may be those of joints without a name that says so. Our choice."""
_SPREAD = 0.25
"""Largest extent of a single peak above 0.3 of its height, as a share of the map's longer side."""


def heatmap(seen: Seen) -> Recognised | None:
    """Recognise maps [N, maps, height, width] with few peaks, by name or with one peak each."""
    named = seen.called(*_HEAT)
    shaped = seen.arrays[0].ndim == 4 and all(_is_maps(maps_of(a), 1) for a in seen.arrays)
    if seen.discrete or not shaped:
        return None
    if not named and any((array < LOGITS).any() for array in seen.arrays):
        return None  # logits may be of anything
    maps = heights(seen.arrays)
    low, high = min(float(a.min()) for a in maps), max(float(a.max()) for a in maps)
    if low < -0.1 or not VISIBLE <= high <= 1.1 or not _are_few_peaks(maps, high):
        return None
    one = maps[0].shape[1] >= _FEWEST_JOINTS and _has_one_peak_each(maps, high)
    each: tuple[Evidence, ...] = ("peak-each",) if one else ()
    name: tuple[Evidence, ...] = ("by-name",) if named else ()
    return seen.shows("heatmap", "few-peaks", *name, *each) if named or one else None


def _are_few_peaks(maps: Arrays, high: float) -> bool:
    """Return whether most values are near 0, and others fall off as from a peak."""
    size = sum(array.size for array in maps)
    risen = sum(int((array > 0.1 * high).sum()) for array in maps)
    above = inside = 0
    for array in maps:
        # Each map by its own height: those of unsure joints are lower.
        top = array.max(axis=(2, 3), keepdims=True)
        shown = top >= VISIBLE * high
        above += int((shown & (array > 0.1 * top)).sum())
        inside += int((shown & (array > 0.9 * top)).sum())
    return risen <= (1 - MOSTLY) * size and inside <= _SHARPEST * above


def _has_one_peak_each(maps: Arrays, high: float) -> bool:
    """Return whether each map has one peak or none, a quarter as many places as there are maps."""
    places, count = set(), 0
    for array in maps:
        reach = _SPREAD * max(array.shape[2:])
        for each in array.reshape(-1, *array.shape[2:]):
            count += 1
            rows, columns = np.nonzero(each >= VISIBLE * high)
            if rows.size:
                if max(np.ptp(rows), np.ptp(columns)) > reach:
                    return False
                places.add(int(each.argmax()))
    return len(places) >= max(_FEWEST_JOINTS, count / 4)


def _is_grey(seen: Seen, maps: Arrays, times: int) -> bool:
    """Return whether a single channel may be an image: larger than the input, or as grey as it.

    Of the input's size it may also be a map of something in it, and that is mostly of one value.
    """
    channels, *size = maps[0].shape[1:]
    if channels != 1 or seen.discrete:
        return False
    if times > 1:
        return True
    span = max(float(array.max()) for array in maps) - min(float(array.min()) for array in maps)
    varied = all(float(array.std()) >= _VARIED * span for array in maps)
    return varied and tuple(size) in image_sizes(seen.inputs, (1,)) and BINS.isdisjoint(size)


def _is_maps(array: NDArray[np.float64], channels: int) -> bool:
    """Return whether the shape is [N, ≥ channels, height, width] and all values are finite."""
    return (
        array.ndim == 4
        and array.shape[1] >= channels
        and min(array.shape[2:]) >= SIDE
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
    if classes.ndim < 2 or min(classes.shape[-2:]) < SIDE or not np.ptp(classes):
        return False
    across = classes[..., 1:] == classes[..., :-1]
    down = classes[..., 1:, :] == classes[..., :-1, :]
    return float((across.mean() + down.mean()) / 2) >= MOSTLY


def _one_is_ahead(scores: NDArray[np.float64]) -> bool:
    two = np.partition(scores, -2, axis=1)[:, -2:]
    return float(np.median(two[:, 1] - two[:, 0])) >= _AHEAD


def _channels_first(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return NHWC as NCHW; arrays without four axes unchanged."""
    return np.moveaxis(array, -1, 1) if array.ndim == 4 else array


def _is_two_maps(array: NDArray[np.float64]) -> bool:
    is_map = array.ndim == 4 and array.shape[1] == 2 and min(array.shape[2:]) >= SIDE
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
    return correlation(array[:, 0].ravel(), array[:, 1].ravel()) > _OPPOSITE


def _has_no_image(seen: Seen) -> bool:
    """Return whether no input is a map, or the output has spectrum bins that no input has."""
    maps = [
        shape
        for shape in seen.inputs.values()
        if len(shape) == 4 and (min(shape[2:]) > 1 or (shape[3] in (1, 3) and min(shape[1:3]) > 1))
    ]
    bins = not BINS.isdisjoint(seen.shape[1:])
    sizes = {length for shape in maps for length in shape[1:]}
    return bool(seen.inputs) and (not maps or (bins and BINS.isdisjoint(sizes)))


def _is_in_range(maps: Arrays) -> bool:
    low, high = min(float(a.min()) for a in maps), max(float(a.max()) for a in maps)
    return any(
        max(least - low, high - most) <= _OUTSIDE * (most - least)
        and high - low >= _FILLED * (most - least)
        for least, most in _RANGES
    )


def _are_directions(array: NDArray[np.float64]) -> bool:
    return bool(np.all(np.abs(np.linalg.norm(array, axis=1) - 1) <= 0.05))


def _is_smooth(array: NDArray[np.float64]) -> bool:
    pairs = ((array[..., 1:], array[..., :-1]), (array[..., 1:, :], array[..., :-1, :]))
    return all(correlation(one.ravel(), other.ravel()) >= SMOOTH for one, other in pairs)


_RULES: tuple[Callable[[Seen], Recognised | None], ...] = (
    class_scores,
    token_ids,
    embeddings,
    class_map,
    heatmap,
    segmentation,
    mask,
    flow,
    image,
)
"""The first rule that shows a kind counts."""
LOOKED_AT = 8
"""Samples examined where a few may show what all do, as for a mask or feature map. Our choice."""
_LOOKED_AT_ELEMENTS = 2**22
"""Elements of all outputs examined, 32 MiB as f64; of larger outputs, one sample is examined."""


def recognise(
    references: Sequence[Outputs], inputs: Inputs, suppressed: Collection[str] = ()
) -> tuple[Recognised, ...]:
    """Return the outputs whose kind the evidence shows, boxes first; may be empty.

    Outputs with NaN, constants and attention weights are of no kind.

    Args:
        references: FP32 outputs by sample; the first eight are examined. May be empty.
        inputs: Shape of every input, on the first sample; if it is unknown, less is shown.
        suppressed: Outputs with what a suppression of overlapping boxes chose.
    """
    if not len(references):
        return ()
    floats, discrete = _seen(references)
    boxes = boxes_in(floats, discrete, inputs, suppressed)
    recognised = [boxes] if boxes is not None and boxes.boxes is not None else []
    taken = {name for one in recognised for name in one.outputs}
    rest = {name: arrays for name, arrays in floats.items() if name not in taken}
    recognised += cells_in(rest, inputs)
    points = keypoints_in(rest, discrete, inputs)
    recognised += [points] if points is not None else []
    # What looks like boxes that cannot be read is nothing else, unless these are their cells.
    taken = {name for one in (*recognised, *([boxes] if boxes else [])) for name in one.outputs}
    shapes = {name: array.shape for name, array in references[0].items()}
    for name in references[0]:
        if name in taken:
            continue
        arrays: Arrays = floats.get(name) or discrete.get(name) or ()
        if arrays and _tells(arrays):
            beside = {other: shape for other, shape in shapes.items() if other != name}
            seen = Seen(name, arrays, name in discrete, inputs, beside)
            readings = (rule(seen) for rule in _RULES)
            recognised += [one for one in readings if one and not is_against(one.kind, name)][:1]
    return tuple(recognised)


def looked_at(first: Outputs, samples: int) -> int:
    """Return how many of the samples are examined, given the outputs of the first."""
    fit = _LOOKED_AT_ELEMENTS // max(1, sum(array.size for array in first.values()))
    return min(LOOKED_AT, max(1, fit), samples)


def first_of(references: Sequence[Outputs]) -> list[Outputs]:
    """Return the outputs of the examined samples."""
    return [references[index] for index in range(looked_at(references[0], len(references)))]


def _seen(
    references: Sequence[Outputs],
) -> tuple[dict[str, list[NDArray[np.float64]]], dict[str, list[NDArray[Any]]]]:
    """Return the non-empty float outputs, widened, and the integer ones.

    Attention weights are excluded.
    """
    first = first_of(references)
    floats: dict[str, list[NDArray[np.float64]]] = {}
    discrete: dict[str, list[NDArray[Any]]] = {}
    for name in first[0]:
        arrays = [outputs[name] for outputs in first if outputs[name].size]
        if not arrays:
            continue
        if not is_discrete(arrays[0].dtype):
            if not is_weights(name):
                floats[name] = [array.astype(np.float64) for array in arrays]
        elif arrays[0].dtype.kind in "iu":
            discrete[name] = arrays
    return floats, discrete


def _tells(arrays: Arrays) -> bool:
    """Return whether an output holds no NaN, and two different numbers unless it is one alone."""
    values = np.concatenate([array.ravel() for array in arrays])
    finite = values[np.isfinite(values)]
    varies = values.size == 1 or (finite.size > 0 and bool(np.ptp(finite)))
    return finite.size > 0 and varies and not np.isnan(values).any()
