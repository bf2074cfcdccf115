"""What a framework may have received instead of the samples, simplest first."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.records import InputDifference
from halfwise.tools.preprocessing.images import (
    TURNS,
    Layout,
    Order,
    layout_difference,
    layout_of,
    turn_difference,
)
from halfwise.tools.preprocessing.normalisation import (
    normalisation_differences,
    own_difference,
    usual_pairs,
)
from halfwise.tools.preprocessing.photometry import channel_difference
from halfwise.tools.preprocessing.plain import plain_code
from halfwise.tools.preprocessing.program import Program, transformation

_REVERSED: dict[int, tuple[int, ...]] = {3: (2, 1, 0), 4: (2, 1, 0, 3)}
"""RGB to BGR and back, with and without alpha."""
_GAINS = (32768.0, 1 / 32768.0, 255.0, 1 / 255.0)
"""Sound as 16-bit integers or from -1 to 1; bytes or from 0 to 1."""
_FEWEST_VALUES = 64
"""Float inputs with fewer elements are not signals but scalar options or sizes."""


@dataclass(frozen=True)
class Hypothesis:
    """A change to some inputs; A is the samples, B the result.

    Attributes:
        differences: What B does differently.
        code: Python of `a_to_b` by input, for one sample; for images, for one image.
    """

    differences: tuple[InputDifference, ...]
    code: Mapping[str, str]

    def __call__(self, sample: Sample) -> Sample:
        """Return the changed sample; batched images are changed one by one."""
        changed = dict(sample)
        # Images without contrast have zero deviation.
        with np.errstate(all="ignore"):
            for name, change in self._functions.items():
                array = sample[name]
                rows = np.split(array, len(array)) if _is_batch(array) else [array]
                made = [change(row) for row in rows]
                changed[name] = np.concatenate(made) if _is_batch(array) else made[0]
        return changed

    @cached_property
    def _functions(self) -> dict[str, Callable[[NDArray[Any]], NDArray[Any]]]:
        return {name: transformation(text) for name, text in self.code.items()}


@dataclass(frozen=True)
class _Change:
    """A change to images.

    Attributes:
        differences: In words.
        steps: Program steps, in order.
        layouts: Layouts before and after; None if the axes stay.
    """

    differences: tuple[InputDifference, ...]
    steps: tuple[Callable[[Program], None], ...] = ()
    layouts: tuple[Layout, Layout] | None = None

    def then(self, other: "_Change") -> "_Change":
        """Return this change followed by `other`, which leaves axes alone."""
        differences = (*self.differences, *other.differences)
        return _Change(differences, (*self.steps, *other.steps), self.layouts)

    def code(self, layout: Layout, sample: NDArray[Any]) -> str:
        """Return the change as Python for one input."""
        before, after = self.layouts or (layout, layout)
        program = Program()
        program.read(before)
        for step in self.steps:
            step(program)
        program.write(after, sample)
        return program.text


def hypotheses(samples: Samples) -> list[Hypothesis]:
    """Return input changes that people make or forget, without duplicates, simplest first.

    Images (inputs with equally many channels change together): reversed channels, factors and usual
    normalisations that fit the range of values, reshaped or permuted axes, flips and turns, each
    image's own mean and deviation; then reversed channels with each of these. Other floats: a few
    factors, and the sample's own mean and deviation. Integers: plus or minus one.

    Args:
        samples: At least one, finite; each is loaded once.
    """
    first = samples[0]
    ranges = _ranges(samples)
    groups: dict[tuple[int, Order, int], list[str]] = {}
    plain = []
    for name, array in first.items():
        layout = layout_of(array[:1] if _is_batch(array) else array)
        if layout is None:
            plain.append(name)
        else:
            image = layout.image(array[:1] if _is_batch(array) else array)
            groups.setdefault((len(image), layout.order, layout.lead), []).append(name)
    found: list[Hypothesis] = []
    for (count, order, lead), names in groups.items():
        low = min(ranges[name][0] for name in names)
        high = max(ranges[name][1] for name in names)
        floats = all(first[name].dtype.kind == "f" for name in names)
        layout = Layout(order, lead)
        for change in _changes(layout, count, (low, high) if floats else None):
            code = {name: change.code(layout, first[name]) for name in names}
            found.append(Hypothesis(change.differences, code))
    for name in plain:
        found += _plain(name, first[name], ranges[name])
    return found


def _changes(layout: Layout, count: int, limits: tuple[float, float] | None) -> Iterator[_Change]:
    own = _Change((own_difference(None, "moments"),), (partial(Program.own, how="moments"),))

    def values(channels: Sequence[int]) -> Iterator[_Change]:
        if limits is None:
            return
        for line in usual_pairs(channels, *limits):
            told = normalisation_differences(line.gain, line.offset, line)
            step = partial(Program.affine, gain=line.gain, offset=line.offset)
            yield _Change(tuple(told), (step,))
        yield own

    order = _REVERSED.get(count)
    reverse = None
    if order is not None:
        step = partial(Program.channels, channels=order)
        reverse = _Change((channel_difference(order, count),), (step,))
        yield reverse
    yield from values(range(count))
    moved = [_Change((layout_difference(*pair),), (), pair) for pair in _stored(layout, count)]
    moved += [
        _Change((turn_difference(turn),), (partial(Program.turn, turn=turn),)) for turn in TURNS[1:]
    ]
    yield from moved
    if order is not None and reverse is not None:
        yield from (reverse.then(change) for change in values(order))
        yield from (change.then(reverse) for change in moved)


def _stored(layout: Layout, count: int) -> Iterator[tuple[Layout, Layout]]:
    """Yield the layouts that A and B may have."""
    if layout.order == "HW" or count == 1:
        return
    reshaped = Layout(layout.order, layout.lead, reshaped=True)
    yield reshaped, layout
    yield layout, reshaped
    yield layout, Layout("HWC" if layout.order == "CHW" else "CHW", layout.lead)


def _plain(name: str, array: NDArray[Any], limits: tuple[float, float]) -> Iterator[Hypothesis]:
    if array.dtype.kind == "f" and array.size >= _FEWEST_VALUES:
        for gain in _GAINS:
            told = normalisation_differences((gain,), (0.0,), None)
            yield _plainly(name, array, told, f"x = x * {gain:.9g}")
        lines = ("x = x - x.mean()", "x = x / x.std()")
        yield _plainly(name, array, [own_difference(None, "moments")], *lines)
    # Masks hold only 0 and 1.
    if array.dtype.kind in "iu" and array.ndim > 0 and limits[1] > 1:
        for step in (1.0, -1.0):
            told = normalisation_differences((1.0,), (step,), None)
            yield _plainly(name, array, told, f"x = x + {step:g}")


def _plainly(
    name: str, array: NDArray[Any], told: Sequence[InputDifference], *lines: str
) -> Hypothesis:
    return Hypothesis(tuple(told), {name: plain_code(lines, array.dtype.name)})


def _is_batch(array: NDArray[Any]) -> bool:
    return array.ndim == 4 and len(array) > 1


def _ranges(samples: Samples) -> dict[str, tuple[float, float]]:
    """Return the smallest and largest value of each numeric input."""
    found: dict[str, tuple[float, float]] = {}
    for sample in samples:
        for name, array in sample.items():
            if array.dtype.kind not in "fiu" or not array.size:
                found.setdefault(name, (0.0, 0.0))
                continue
            low, high = found.get(name, (np.inf, -np.inf))
            found[name] = min(low, float(array.min())), max(high, float(array.max()))
    return found
