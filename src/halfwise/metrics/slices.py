"""Slices of one output that have their own scales: boxes up to 640 next to scores up to 1.

Each axis is examined separately, with the samples as one more axis. The scale of a slice is its
largest finite |reference| over all samples; slices are sorted by scale and split where a scale is
more than `GAP` times the previous one. So a continuum (channels of features, rows of an image, bins
of a spectrum) is one group, and boxes next to scores are two. An element is held to the tightest of
its groups. Values on an offset are held to their span, whether they are a group or the whole
output. The thresholds come from 2,020 inner tensors of 14 models (docs/decisions/0019).

Beside that, no slice and no sample may be lost, whatever is between its scale and the others'
(`Faint`): not off by half of its own largest value.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.metrics.difference import NOTHING, Common, Lost, is_discrete
from halfwise.records import SliceGroup, replace

GAP = 4.0
"""Ratio of successive scales above which the slices of an axis are split."""
SAMPLE_GAP = 10.0
"""The same for samples: loud and quiet ones are alike, and a few samples leave gaps by chance. A
neighbour can then hide an error of at most a tenth of a sample's own scale."""
FEWEST = 8
"""Fewest values or rows that show something: the largest of 8 uniform around 0 is below a quarter
of the range with probability 4^-8, and 8 uniform rows are ordered corners with 2^-16."""
FILLED = 0.25
"""Share of nonzero values, relative to the fullest slice, that a slice needs to have a scale: a
channel after a Relu that rarely fires has none. It still fills a gap between others."""
FLOOR = 1e-4
"""Smallest scale of a group relative to the output's largest value: -80 dB. A silent recording or
frame is not held to its hiss."""
ROUNDING = 2.0**-24
"""FP32's rounding relative to the output's largest value. A larger slice has no floor if
`MOSTLY` all of its values are nonzero and its axis has at most `SHORT` slices: a quantity next to
others, in its own unit."""
MOSTLY = 0.9
"""Share that counts as nearly all: nonzero values of a slice, rows with an area, neighbouring
pixels of one class. Our choice."""
SHORT = 12
"""Most slices on an axis of quantities. There are more frames, positions, and bins of a spectrum,
which a pure tone leaves at 1e-5 (cepstra start at 13)."""
SPANS = 10.0
"""Scale of values on an offset, as a multiple of their span, if less than the largest: at 1 %,
errors of a tenth of the span pass, as with `SAMPLE_GAP`."""
LEAST = 0.2
"""Smallest scale by span, relative to the largest value: at 1 % it allows four times the 2^-11 by
which FP16 rounds the offset itself."""
SHARE = 0.1
"""Share of an axis's slices below which a group has `ROOM`; below a tenth of it, it is no group."""
ROOM = 10.0
"""Multiple of the tolerance for a group of few slices: it catches what is plainly wrong, but not
FP16's rounding of one faint channel among many."""


LOST = 0.5
"""A slice or sample that is off by more than this share of its own largest value is lost: set to
zero, of the other sign, or beneath its noise."""
FAINT = 0.1
"""Scale relative to the largest from which the tolerance of all lets nothing be lost. At 1 % it
allows a tenth of it."""
NOISE = 2.0**-17
"""Scale relative to the largest, below which FP32's own noise may be in place of values: the root
of 16,384 terms times its rounding, 2^-24. Within [0, 1] it is `FLOOR` for slices, and for samples
of one or two values: shares below a ten-thousandth are none."""
FEWEST_FAINT = 3
"""Fewest values with a largest that is no chance: of three uniform around 0, it is below 1 % of the
range with probability 10^-6."""


FEWEST_SMALL = 4
"""Fewest samples of fewer values, likewise."""


class Faint(NamedTuple):
    """Slices of one axis that are faint beside the largest, and whole numbers beside others.

    Attributes:
        axis: Their axis.
        slices: Their indices, ascending.
        scales: The largest |reference| of each; of whole numbers, such as classes in a column, 1.
    """

    axis: int
    slices: NDArray[np.intp]
    scales: NDArray[np.float64]


class Group(Struct, frozen=True):
    """Slices of one scale.

    Attributes:
        axis: Their axis; None if they are samples.
        slices: Their indices, ascending; for samples, positions among the references.
        largest: Largest finite |reference| in them, at least the floor of the output; > 0.
        room: Multiple of the tolerance, ≥ 1.
        span: Their largest value minus their smallest, for values on an offset; None if the largest
            is their scale.
    """

    axis: int | None
    slices: NDArray[np.intp]
    largest: float
    room: float
    span: float | None = None

    @property
    def scale(self) -> float:
        """What the tolerance is relative to: `largest`, or a scale by the span; > 0."""
        return self.largest if self.span is None else max(SPANS * self.span, LEAST * self.largest)

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return the slices as runs: the first and last index of each."""
        breaks = np.flatnonzero(np.diff(self.slices) > 1) + 1
        runs = np.split(self.slices, breaks)
        return tuple((int(run[0]), int(run[-1])) for run in runs)


class _Extents:
    """Extents of the slices of one axis: [size] each."""

    def __init__(self, size: int) -> None:
        self.largest = np.full(size, -np.inf)
        self.smallest = np.full(size, np.inf)
        self.filled = np.zeros(size)
        self.whole = np.full(size, size <= SHORT)
        self.values = 0

    def add(self, values: NDArray[Any], axis: int) -> None:
        others = tuple(i for i in range(values.ndim) if i != axis)
        np.maximum(self.largest, values.max(axis=others), out=self.largest)
        np.minimum(self.smallest, values.min(axis=others), out=self.smallest)
        self.filled += np.count_nonzero(values, axis=others)
        if self.whole.any():
            self.whole &= (values == np.rint(values)).all(axis=others)
        self.values += values.size // values.shape[axis]

    def quantities(self) -> NDArray[np.bool_]:
        """Return which slices may be quantities in their own units."""
        return (self.filled >= MOSTLY * self.values) & (self.filled.size <= SHORT)

    def faint(self, axis: int) -> Faint | None:
        """Return the slices with scales of their own below the others'; None if there are none."""
        if self.values < FEWEST_FAINT:
            return None
        peaks = np.maximum(self.largest, -self.smallest)
        some = (self.filled > 0) & (self.filled >= FILLED * self.filled.max())
        unit = (self.smallest >= 0) & (self.largest <= 1)
        noise = np.where(unit, FLOOR, NOISE) * peaks.max()
        some &= (peaks > noise) & (peaks < FAINT * peaks.max())
        labels = self.whole & (peaks > 0) if not self.whole.all() else np.zeros_like(self.whole)
        slices = np.flatnonzero(some | labels)
        return Faint(axis, slices, np.where(labels, 1, peaks)[slices]) if slices.size else None


class Slices:
    """Collects the scales of one output, sample by sample."""

    def __init__(self) -> None:
        self._common: tuple[int | None, ...] | None = None
        self._axes: dict[int, _Extents] = {}
        self._samples: list[tuple[float, float, float]] = []
        self._values, self._fewest = 0, FEWEST
        self._ends = (math.inf, -math.inf)

    def add(self, array: NDArray[Any]) -> None:
        """Add a sample's reference: any shape and dtype; a discrete one has no scale."""
        if is_discrete(array.dtype):
            return
        common = self._common = _common(self._common, array.shape)
        if not array.size:
            self._samples.append((0.0, 0.0, 0.0))
            return
        values = _finite(array)
        for axis, size in enumerate(array.shape):
            if size > 1 and common[axis : axis + 1] == (size,):
                self._axes.setdefault(axis, _Extents(size)).add(values, axis)
        few = array.size < FEWEST
        filled = 0.0 if few else np.count_nonzero(values) / array.size
        least, most = float(values.min()), float(values.max())
        self._samples.append((most, least, filled))
        self._values += array.size
        self._fewest = min(self._fewest, array.size)
        self._ends = min(least, self._ends[0]), max(most, self._ends[1])

    def groups(self) -> tuple[Group, ...]:
        """Return the groups of every axis that has more than one, by ascending scale."""
        groups: list[Group] = []
        for axis, size in enumerate(self._common or ()):
            extents = self._axes.get(axis)
            if size is not None and extents is not None and extents.values >= FEWEST:
                one = extents.largest, extents.smallest, extents.filled
                groups += _grouped(axis, *one, extents.quantities(), gap=GAP)
        if self._samples:
            largest, smallest, filled = np.array(self._samples).T
            if not np.all((smallest >= 0) & (largest <= 1)):
                none = np.zeros(filled.size, np.bool_)
                groups += _grouped(None, largest, smallest, filled, none, gap=SAMPLE_GAP)
        if all(group.axis is not None for group in groups) and self._values >= FEWEST:
            groups += self._on_an_offset()
        return tuple(groups)

    def faint(self) -> tuple[Faint, ...]:
        """Return the faint slices of every axis that has some."""
        sizes = enumerate(self._common or ())
        same = (axis for axis, size in sizes if size is not None and axis in self._axes)
        axes = ((axis, self._axes[axis]) for axis in same)
        some = (extents.faint(axis) for axis, extents in axes if extents.values)
        return tuple(one for one in some if one is not None)

    def quiet(self) -> tuple[float, float]:
        """Return between which largest values a sample has its own scale; none if first ≥ last.

        Beside louder ones, and above what may be noise. Few values may be small by chance, but not
        many samples of them: of values uniform around 0, a share t is below t times the largest.
        """
        peaks = np.array([max(abs(most), abs(least)) for most, least, _ in self._samples])
        top = float(peaks.max(initial=0))
        if self._fewest >= FEWEST_FAINT:
            return NOISE * top, FAINT * top
        # One or two values within [0, 1] may be probabilities.
        noise = (FLOOR if 0 <= self._ends[0] <= self._ends[1] <= 1 else NOISE) * top
        tenths = FAINT ** np.arange(1, 6)
        below = np.array([np.count_nonzero((peaks > 0) & (peaks < t * top)) for t in tenths])
        shown = tenths[below >= np.maximum(FEWEST_SMALL, 5 * tenths * peaks.size)]
        return (max(noise, FAINT * shown[-1] * top), shown[0] * top) if shown.size else (0.0, 0.0)

    def _on_an_offset(self) -> list[Group]:
        """Return all samples as one group if all values lie on an offset; else nothing."""
        if (span := _span(*self._ends)) is None:
            return []
        largest = max(map(abs, self._ends))
        return [Group(None, np.arange(len(self._samples)), largest, 1.0, span)]


def _common(
    before: tuple[int | None, ...] | None, shape: tuple[int, ...]
) -> tuple[int | None, ...]:
    """Return the sizes common to all samples; empty if their ranks differ."""
    if before is None:
        return shape
    if len(before) != len(shape):
        return ()
    return tuple(a if a == b else None for a, b in zip(before, shape, strict=True))


def _finite(array: NDArray[Any]) -> NDArray[Any]:
    """Return float32 or float64 with 0 for NaN and infinities."""
    wide = array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
    finite = np.isfinite(wide)
    return wide if finite.all() else np.where(finite, wide, 0)


def _grouped(
    axis: int | None,
    largest: NDArray[np.float64],
    smallest: NDArray[np.float64],
    filled: NDArray[np.float64],
    quantities: NDArray[np.bool_],
    *,
    gap: float,
) -> list[Group]:
    """Return the groups of one axis, by ascending scale; none if there is only one."""
    peaks = np.maximum(largest, -smallest)
    scaled = np.flatnonzero((peaks > 0) & (filled > 0) & (filled >= FILLED * filled.max()))
    if scaled.size < 2:
        return []
    floor = np.where(quantities & (peaks > ROUNDING * peaks.max()), 0, FLOOR)
    scale = np.maximum(peaks, floor * peaks.max())
    # Slices without a scale of their own fill gaps, too: what lies on both sides of them is one
    # continuum, such as channels behind a GELU.
    order = np.flatnonzero(peaks > 0)
    order = order[np.argsort(scale[order], kind="stable")]
    ascending = scale[order]
    parts = np.split(order, np.flatnonzero(ascending[1:] > gap * ascending[:-1]) + 1)
    has_scale = np.isin(np.arange(peaks.size), scaled)
    parts = [part[has_scale[part]] for part in parts if has_scale[part].any()]
    if axis is not None:
        parts = _units_joined(parts, (smallest >= 0) & (largest <= 1), scale)
    tops = np.array([scale[part].max() for part in parts])
    # A slice of nearly all zeros has no scale: it joins the smallest group that covers its values.
    label = np.full(peaks.size, -1)
    for index, part in enumerate(parts):
        label[part] = index
    rest = np.flatnonzero(label < 0)
    label[rest] = np.minimum(np.searchsorted(tops, peaks[rest]), len(parts) - 1)
    tops[-1] = scale.max()
    groups = _roomy(axis, label, tops)
    if axis is None:
        return groups
    return [
        replace(g, span=_span(float(smallest[g.slices].min()), float(largest[g.slices].max())))
        for g in groups
    ]


def _span(least: float, most: float) -> float | None:
    """Return the span of values on an offset; None for others, and within [0, 1]."""
    span = most - least
    on_an_offset = SPANS * span < max(abs(least), abs(most)) and not 0 <= least <= most <= 1
    return span if on_an_offset else None


def _units_joined(
    parts: list[NDArray[np.intp]], unit: NDArray[np.bool_], scale: NDArray[np.float64]
) -> list[NDArray[np.intp]]:
    """Return the parts, joining those whose values are all in [0, 1]: they are one kind.

    A class that never occurs, at 1e-4, is a score like the others.
    """
    units = [part for part in parts if unit[part].all()]
    others = [part for part in parts if not unit[part].all()]
    joined = [*others, np.concatenate(units)] if units else others
    return sorted(joined, key=lambda part: float(scale[part].max()))


def _roomy(axis: int | None, label: NDArray[np.intp], tops: NDArray[np.float64]) -> list[Group]:
    """Return the groups by label; those of few slices have room, or join the next."""
    groups: list[Group] = []
    waiting = np.zeros(0, np.intp)
    for index, top in enumerate(tops):
        slices = np.concatenate([waiting, np.flatnonzero(label == index)])
        share, last = slices.size / label.size, index == len(tops) - 1
        if share < SHARE / 10 and not last:
            waiting = slices
            continue
        waiting = waiting[:0]
        room = ROOM if share < SHARE and not last else 1.0
        groups.append(Group(axis, np.sort(slices), float(top), room))
    return groups if len(groups) > 1 else []


def lost_in(
    faint: Sequence[Faint],
    quiet: tuple[float, float],
    reference: NDArray[Any],
    candidate: NDArray[Any],
) -> Lost:
    """Return the largest error of a faint slice, or of a whole faint sample, over its scale.

    Args:
        faint: The faint slices of the output.
        quiet: See `Slices.quiet`.
        reference: [*shape], floats.
        candidate: [*shape], numbers; elements non-finite on either side are ignored here.
    """
    values = _finite(reference)
    peak = float(np.abs(values).max(initial=0))
    is_faint = quiet[0] < peak < quiet[1] and int(np.count_nonzero(values)) >= FILLED * values.size
    if not (faint or is_faint):
        return NOTHING
    error, most = _errors(reference, candidate), NOTHING
    if is_faint:
        most = Lost(float(error.max()) / peak, None, 0, peak)
    for axis, slices, scales in faint:
        others = tuple(i for i in range(error.ndim) if i != axis)
        shares = error.max(axis=others, initial=0)[slices] / scales
        worst = int(shares.argmax())
        one = Lost(float(shares[worst]), axis, int(slices[worst]), float(scales[worst]))
        most = max(most, one, key=lambda lost: lost.share)
    return most


def lost_classes(common: Common | None, reference: NDArray[Any], candidate: NDArray[Any]) -> Lost:
    """Return the share of a sample's whole numbers, other than the common one, that differ.

    Nothing if there are fewer than `FEWEST` of them.

    Args:
        common: The majority value of the output, over all samples.
        reference: [*shape], no floats.
        candidate: [*shape].
    """
    wrong = reference != candidate
    rare = np.full(wrong.shape, True)
    if common is not None:
        rare = np.asarray((reference != common.value) | (candidate != common.value))
    count = int(np.count_nonzero(rare))
    share = int(np.count_nonzero(wrong & rare)) / count if count >= FEWEST else 0.0
    return Lost(share, None, 0, 1.0)


def _errors(reference: NDArray[Any], candidate: NDArray[Any]) -> NDArray[np.float64]:
    """Return |candidate - reference|, 0 where either is not finite."""
    # The difference of two arrays of rank 0 is not an array.
    with np.errstate(all="ignore"):
        error = np.asarray(np.abs(reference.astype(np.float64) - candidate.astype(np.float64)))
    error[~np.isfinite(error)] = 0
    return error


def group_errors(
    groups: Sequence[Group], reference: NDArray[Any], candidate: NDArray[Any]
) -> tuple[float, ...]:
    """Return the largest error of one sample in each of the output's groups.

    A sample belongs to the smallest group of samples that covers its largest value, so samples
    outside the references have a group too.

    Args:
        groups: The output's groups, from `Slices`.
        reference: [*shape], floats.
        candidate: [*shape], numbers; elements non-finite on either side are ignored here.
    """
    if not groups:
        return ()
    error = _errors(reference, candidate)
    by_axis: dict[int, NDArray[np.float64]] = {}
    errors = []
    tops = [group.largest for group in groups if group.axis is None]
    largest = np.abs(_finite(reference)).max(initial=0)
    place = np.searchsorted(tops, float(largest)) if tops else 0
    for group in groups:
        if group.axis is None:
            here = min(int(place), len(tops) - 1) == tops.index(group.largest)
            errors.append(float(error.max(initial=0)) if here else 0.0)
            continue
        if group.axis not in by_axis:
            others = tuple(i for i in range(error.ndim) if i != group.axis)
            by_axis[group.axis] = error.max(axis=others, initial=0)
        errors.append(float(by_axis[group.axis][group.slices].max()))
    return tuple(errors)


def constant_slices(
    references: Sequence[NDArray[Any]], candidates: Sequence[NDArray[Any]]
) -> tuple[int, NDArray[np.intp], float] | None:
    """Return the slices that are constant in the candidate but vary in the reference.

    Args:
        references: One output of each sample, [*shape].
        candidates: The same, of the candidate.

    Returns:
        Their axis, the shortest that has some; their indices, ascending; and by how much they vary
        at most. None if there are none of at least `FEWEST` values, for discrete outputs, and for
        what varies less than `NOISE` of the largest value.
    """
    shapes = {array.shape for array in (*references, *candidates)}
    if len(shapes) != 1 or is_discrete(references[0].dtype):
        return None
    (shape,) = shapes
    for axis in sorted(range(len(shape)), key=lambda i: shape[i]):
        if shape[axis] == 0 or len(references) * math.prod(shape) < FEWEST * shape[axis]:
            continue
        ours, theirs = _Extents(shape[axis]), _Extents(shape[axis])
        for reference, candidate in zip(references, candidates, strict=True):
            ours.add(_finite(reference), axis)
            theirs.add(candidate.astype(np.float64), axis)  # NaN is not constant
        least = NOISE * max(ours.largest.max(), -ours.smallest.min())
        varies = ours.largest - ours.smallest
        flat = np.flatnonzero((theirs.largest == theirs.smallest) & (varies > least))
        if flat.size:
            return axis, flat, float(varies[flat].max())
    return None


def place(group: SliceGroup, samples: Sequence[str]) -> str:
    """Return a group's slices in words, such as `slices 4-83 of axis 1`.

    Args:
        group: The group.
        samples: Identifiers of the judged samples.
    """
    shown = sum(last - first + 1 for first, last in group.ranges)
    rest = f" and {group.slices - shown} more" if shown < group.slices else ""
    if group.axis is None and group.slices == 1:
        return f"sample {samples[group.ranges[0][0]]}"
    indices = f"{runs(group.ranges)}{rest}"
    if group.axis is None:
        return f"samples {indices} (from 0)"
    return f"{'slice' if group.slices == 1 else 'slices'} {indices} of axis {group.axis}"


def runs(ranges: Sequence[tuple[int, int]], most: int | None = None) -> str:
    """Return runs of slices, such as `0, 4-83`; beyond `most` runs, `…`."""
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges[:most])
    return shown if most is None or len(ranges) <= most else f"{shown} …"
