"""What a pipeline may do to its inputs: each change in words, and as the Python that makes it.

In that Python, `x` is one sample in FP64; of images, one image [channels, rows, columns]. What is
shown to users is what is run. Normalisations that people use are those of torchvision and timm
(ImageNet; 0.5; CLIP of OpenAI), of Caffe (means of ILSVRC 2012) and of Keras' `imagenet_utils`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.records import InputDifference
from halfwise.records.diagnosis import difference
from halfwise.wording import number

Array = NDArray[np.float64]
Triple = tuple[float, float, float]
Order = Literal["CHW", "HWC", "HW"]

MOST_CHANNELS, SMALLEST_SIDE = 4, 8
"""An image has two axes of at least 8, and before or after them at most four channels."""
_SMOOTHER = 0.7
"""Roughness ratio for a buffer read in the other order; photos fall to a half or less."""


@dataclass(frozen=True)
class Change:
    """What B does differently, and the lines that make `x` of A as it is in B."""

    differences: tuple[InputDifference, ...] = ()
    lines: tuple[str, ...] = ()

    def __add__(self, other: "Change") -> "Change":
        """Return both, one after the other."""
        return Change(self.differences + other.differences, self.lines + other.lines)


def run(lines: Sequence[str], x: NDArray[Any]) -> Array:
    """Return `x`, any shape, after the lines of changes, which hold only numbers and NumPy."""
    names: dict[str, Any] = {"np": np, "x": np.asarray(x, np.float64)}
    exec("\n".join(lines), names)  # noqa: S102 - no text of a user's is in it
    made: Array = names["x"]
    return made


def written(lines: Sequence[str], dtype: np.dtype[Any], order: Sequence[int] | None = None) -> str:
    """Return Python with a function `a_to_b` that returns `dtype`; `order` says which sample."""
    ends = [f"return np.ascontiguousarray(x, np.{dtype.name})"]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        ends.insert(0, f"x = np.clip(np.round(x), {limits.min}, {limits.max})")
    body = "\n".join(f"    {line}" for line in ("x = np.asarray(a, np.float64)", *lines, *ends))
    remark = (
        ""
        if order is None
        else (f"# Sample i of B is sample ORDER[i] of A.\nORDER = {list(order)}\n\n\n")
    )
    say = '"""Turn one sample of A into one of B."""'
    return f"import numpy as np\n\n{remark or chr(10)}def a_to_b(a):\n    {say}\n{body}\n"


def code_of(codes: Mapping[str, str]) -> str:
    """Return the Python for all inputs: `a_to_b`, or `a_to_b_0` and so on if several.

    Args:
        codes: Python by input name; empty text if A and B are the same.
    """
    parts = [code for code in codes.values() if code] or ["# A and B are the same.\n"]
    if len(parts) > 1:
        # Input names are untrusted, so they are quoted.
        parts = [
            f"# Input {name!a}\n{code.replace('def a_to_b(', f'def a_to_b_{i}(')}"
            for i, (name, code) in enumerate(codes.items())
            if code
        ]
    return "\n\n".join(parts)


def transformation(text: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return the function in a text of `written`."""
    names: dict[str, Any] = {}
    exec(text, names)  # noqa: S102 - no text of a user's is in it
    made: Callable[[NDArray[Any]], NDArray[Any]] = names["a_to_b"]
    return made


@dataclass(frozen=True)
class Layout:
    """The layout of an image in a sample.

    Attributes:
        order: The axes after any leading ones of length 1.
        lead: Number of leading axes of length 1.
        reshaped: The buffer is in the other order: reshaped instead of transposed.
    """

    order: Order
    lead: int
    reshaped: bool = False

    def __str__(self) -> str:
        """Return a name such as NCHW."""
        name = ("N" if self.lead else "") + self.order
        return f"{name}, reshaped instead of transposed" if self.reshaped else name

    @property
    def read(self) -> tuple[str, ...]:
        """The lines from a sample to [channels, rows, columns]."""
        lines = (f"x = x.reshape(x.shape[{self.lead}:])",) if self.lead else ()
        return (
            lines
            + {
                ("CHW", False): (),
                ("HWC", False): ("x = x.transpose(2, 0, 1)",),
                ("HW", False): ("x = x[None]",),
                ("CHW", True): ("x = x.reshape(x.shape[1:] + x.shape[:1]).transpose(2, 0, 1)",),
                ("HWC", True): ("x = x.reshape(x.shape[2:] + x.shape[:2])",),
            }[self.order, self.reshaped]
        )

    @property
    def write(self) -> tuple[str, ...]:
        """The lines back."""
        lines = {
            ("CHW", False): (),
            ("HWC", False): ("x = x.transpose(1, 2, 0)",),
            ("HW", False): ("x = x[0]",),
            ("CHW", True): ("x = x.transpose(1, 2, 0).reshape(x.shape)",),
            ("HWC", True): ("x = x.reshape(x.shape[1:] + x.shape[:1])",),
        }[self.order, self.reshaped]
        return lines + ((f"x = x.reshape({(1,) * self.lead} + x.shape)",) if self.lead else ())


def layout_of(sample: NDArray[Any]) -> Layout | None:
    """Return the layout of the image in a sample, None if there is none.

    Roughness shows whether the buffer is in the other order.
    """
    lead = max(0, sample.ndim - 3)
    shape = sample.shape[lead:]
    if sample.dtype.kind not in "biuf" or any(n != 1 for n in sample.shape[:lead]):
        return None
    if len(shape) == 2 and min(shape) >= SMALLEST_SIDE:
        return Layout("HW", lead)
    channels: dict[Order, int] = {"CHW": 0, "HWC": -1}
    for order, axis in channels.items() if len(shape) == 3 else ():
        sides = shape[1:] if axis == 0 else shape[:2]
        if shape[axis] <= MOST_CHANNELS and min(sides) >= SMALLEST_SIDE:
            plain, other = Layout(order, lead), Layout(order, lead, reshaped=True)
            if shape[axis] == 1 or math.prod(sides) == SMALLEST_SIDE**2:
                return plain
            rough = [_roughness(run(each.read, sample)) for each in (plain, other)]
            return other if rough[1] < _SMOOTHER * rough[0] else plain
    return None


def _roughness(image: Array) -> float:
    spread = float(image.std(axis=(1, 2)).mean()) or 1.0
    steps = np.abs(np.diff(image, axis=1)).mean() + np.abs(np.diff(image, axis=2)).mean()
    return float(steps) / spread


def relaid(a: Layout, b: Layout) -> InputDifference:
    """Describe a difference in layout."""
    return difference("layout", f"B is laid out as {b}, A as {a}.", str(a), str(b))


TURNS = {
    "flipped left to right": "x[..., ::-1]",
    "flipped upside down": "x[..., ::-1, :]",
    "rotated by 180°": "x[..., ::-1, ::-1]",
    "transposed (rows and columns exchanged)": "np.swapaxes(x, -1, -2)",
    "rotated by 90° clockwise": "np.swapaxes(x, -1, -2)[..., ::-1]",
    "rotated by 90° counterclockwise": "np.swapaxes(x, -1, -2)[..., ::-1, :]",
    "transposed along the other diagonal": "np.swapaxes(x, -1, -2)[..., ::-1, ::-1]",
}
"""What B is beside A, and the Python for it."""


def turned(turn: str) -> Change:
    """Return a flip or quarter turn of `TURNS`."""
    return Change(
        (difference("flip", f"B is A {turn}.", "as it is", turn),), (f"x = {TURNS[turn]}",)
    )


def reordered(channels: Sequence[int], count: int) -> Change:
    """Return the change to channels `channels` of `count`; nothing if they are all in order."""
    before, after = ", ".join(map(str, range(count))), ", ".join(map(str, channels))
    if before == after:
        return Change()
    what = "B has the channels in another order."
    if len(channels) != count:
        what = f"B has {len(channels)} channels where A has {count}."
    elif tuple(channels) == (2, 1, 0):
        what = "B has the channels in reverse order: one is RGB, the other BGR."
    return Change((difference("channels", what, before, after),), (f"x = x[{list(channels)}]",))


@dataclass(frozen=True)
class Normalisation:
    """value = (pixel · scale − mean) / deviation, with pixels from 0 to 255.

    Attributes:
        name: Usual name.
        scale: Factor of the pixels.
        mean: By channel in RGB order, in scaled units.
        deviation: Likewise.
    """

    name: str
    scale: float
    mean: Triple = (0.0, 0.0, 0.0)
    deviation: Triple = (1.0, 1.0, 1.0)

    def line(self, count: int) -> tuple[Array, Array]:
        """Return gain and offset from pixels to values, f64[count] each."""
        places = np.arange(count) % 3
        mean, deviation = np.array(self.mean)[places], np.array(self.deviation)[places]
        return self.scale / deviation, -mean / deviation

    def admits(self, low: float, high: float, count: int, least: float) -> bool:
        """Return whether it makes `low` to `high` of pixels that lie `least` levels apart."""
        gain, offset = self.line(count)
        darkest, lightest = ((low - offset) / gain).max(), ((high - offset) / gain).min()
        # A cubic kernel overshoots by up to 40 levels.
        return bool(darkest >= -40 and lightest <= 295 and lightest - darkest >= least)


_SETS: dict[str, tuple[Triple, Triple]] = {
    "ImageNet's": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CLIP's": (
        (0.48145466, 0.4578275, 0.40821073),
        (0.26862954, 0.26130258, 0.27577711),
    ),
    "0.5 as": ((0.5,) * 3, (0.5,) * 3),
}


def _combined(scale: float, said: str, *, whole: bool) -> Iterator[Normalisation]:
    """Yield the mean and deviation of one source or only one of both, or those of two sources."""
    for (one, (mean, _)), (other, (_, deviation)) in product(_SETS.items(), repeat=2):
        both = f"{one} mean" if one == other else f"{one} mean, {other}"
        if whole == (one == other):
            yield Normalisation(f"{said}, {both} and deviation", scale, mean, deviation)
    for one, (mean, deviation) in _SETS.items() if whole else ():
        yield Normalisation(f"{said}, {one} mean", scale, mean)
        yield Normalisation(f"{said}, {one} deviation", scale, deviation=deviation)


def _both_orders(some: Sequence[Normalisation]) -> tuple[Normalisation, ...]:
    return (
        *some,
        *(
            Normalisation(f"{n.name} in BGR order", n.scale, n.mean[::-1], n.deviation[::-1])
            for n in some
            if len(set(n.mean)) > 1 or len(set(n.deviation)) > 1
        ),
    )


_USUAL = (
    Normalisation("pixels from 0 to 255", 1.0),
    Normalisation("pixels scaled by 1/255", 1 / 255),
    *_combined(1 / 255, "scaled by 1/255", whole=True),
    Normalisation("Caffe's mean, no scale", 1.0, (123.68, 116.779, 103.939)),
    Normalisation("(x − 127.5)/128", 1.0, (127.5,) * 3, (128.0,) * 3),
    Normalisation("mean 127.5, no scale", 1.0, (127.5,) * 3),
)
_UNSCALED = tuple(_combined(1.0, "not scaled", whole=True))
KNOWN = _both_orders(
    (
        *_USUAL,
        Normalisation("mean 128, no scale", 1.0, (128.0,) * 3),
        Normalisation("scaled by 1/256", 1 / 256),
        Normalisation("scaled by 1/128", 1 / 128),
        Normalisation("scaled by 1/255 twice", 1 / 255**2),
        *_combined(1 / 255, "scaled by 1/255", whole=False),
    )
) + _both_orders(_UNSCALED)
USUAL = _both_orders((*_USUAL, *_UNSCALED))


@dataclass(frozen=True)
class Pair:
    """The normalisations of A and B, each in the order of its channels.

    Attributes:
        a: A's.
        b: B's.
        channels: The channel of A for each of B.
        count: Channels of A.
    """

    a: Normalisation
    b: Normalisation
    channels: tuple[int, ...]
    count: int

    @cached_property
    def line(self) -> tuple[Array, Array]:
        """Gain and offset from A to B, by channel of B."""
        gain_a, offset_a = (each[list(self.channels)] for each in self.a.line(self.count))
        gain, offset = self.b.line(len(self.channels))
        return gain / gain_a, offset - gain / gain_a * offset_a

    @property
    def differences(self) -> tuple[InputDifference, ...]:
        """The parts that differ; the first one says both names."""
        a, b = self.a, self.b
        parts: list[InputDifference] = []
        if not np.isclose(a.scale, b.scale, rtol=1e-3):
            factors = f"pixels × {number(a.scale, 4)}", f"× {number(b.scale, 4)}"
            parts.append(difference("scale", f"B is {b.name}, A {a.name}.", *factors))
        for kind, one, other in (
            ("mean", a.mean, b.mean),
            ("deviation", a.deviation, b.deviation),
        ):
            if not np.allclose(one, other, rtol=1e-3, atol=1e-4):
                what = f"The {'subtracted mean' if kind == 'mean' else 'divisor'} differs"
                what += "." if parts else f": B is {b.name}, A {a.name}."
                parts.append(difference(kind, what, row(one), row(other)))  # type: ignore[arg-type]
        return tuple(parts)

    @property
    def cost(self) -> float:
        """How unlikely it is: the parts that differ, then the places among the known."""
        places = KNOWN.index(self.a) + KNOWN.index(self.b)
        return 0.5 * len(self.differences) + 0.02 * places


def row(values: Sequence[float] | Array) -> str:
    """Return numbers in words: one if all are equal."""
    numbers = [number(float(value), 4) for value in values]
    return numbers[0] if len(set(numbers)) == 1 else f"({', '.join(numbers)})"


def scaled(gain: Array, offset: Array, pair: Pair | None = None) -> Change:
    """Return the change to gain · x + offset, f64[channels] each, in the words of `pair`."""
    if (gain == 1).all() and not offset.any():
        return Change()
    column = "[:, None, None]"
    lines = [f"x = x * np.array({_numbers(gain)}){column}"] if (gain != 1).any() else []
    lines += [f"x = x + np.array({_numbers(offset)}){column}"] if offset.any() else []
    return Change(pair.differences if pair else affine(gain, offset), tuple(lines))


def affine(gain: Array, offset: Array) -> tuple[InputDifference, ...]:
    """Describe B = gain · A + offset, f64[channels] each, in numbers."""
    found, level = [], np.abs(gain).max()
    evidence = f"B = {row(gain)} · A + {row(offset)}"
    if np.abs(gain - 1).max() > 0.005:
        what = f"B's values are {row(gain)} times A's."
        kind: Literal["scale", "deviation"] = (
            "scale" if np.ptp(gain) < 0.01 * level else "deviation"
        )
        found.append(difference(kind, what, "1", row(gain), evidence))
    if np.abs(offset).max() > 0.005 * level:
        what = f"B's values are offset by {row(offset)}."
        found.append(difference("mean", what, "0", row(offset), evidence))
    return tuple(found)


def _numbers(values: Array) -> str:
    return f"[{', '.join(f'{float(value):.9g}' for value in values)}]"


OWN = Change(
    (
        difference(
            "normalisation",
            "B is normalised by each sample's own mean and deviation, A by fixed numbers.",
            "by fixed numbers",
            "by its own mean and deviation",
        ),
    ),
    ("x = x - x.mean()", "x = x / x.std()"),
)
_REVERSED = {3: (2, 1, 0), 4: (2, 1, 0, 3)}
"""RGB to BGR and back, with and without alpha."""
_LEAST = 128.0
"""Levels between the darkest and the lightest pixel of a likely normalisation."""
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
                made = [change(image) for image in _images(sample[name])]
                changed[name] = made[0] if len(made) == 1 else np.concatenate(made)
        return changed

    @cached_property
    def _functions(self) -> dict[str, Callable[[NDArray[Any]], NDArray[Any]]]:
        return {name: transformation(text) for name, text in self.code.items()}


def hypotheses(samples: Samples) -> list[Hypothesis]:
    """Return input changes that people make or forget, simplest first, without duplicates.

    Images (inputs in one layout change together): reversed channels, usual normalisations that fit
    the range of values, reshaped or permuted axes, flips and turns, each image's own mean and
    deviation; then reversed channels with each of these. Other floats: a few factors, and the
    sample's own mean and deviation. Integers: plus or minus one.

    Args:
        samples: At least one, finite; each is loaded once.
    """
    first, ranges = samples[0], _ranges(samples)
    groups: dict[tuple[int, Layout], list[str]] = {}
    found: list[Hypothesis] = []
    for name, array in first.items():
        image = _images(array)[0]
        layout = layout_of(image)
        if layout is None:
            found += _plain(name, array, ranges.get(name, (0.0, 0.0)))
        else:
            groups.setdefault((len(run(layout.read, image)), layout), []).append(name)
    pictures = []
    for (count, layout), names in groups.items():
        floats = all(first[name].dtype.kind == "f" for name in names)
        low, high = min(ranges[n][0] for n in names), max(ranges[n][1] for n in names)
        for change in _changes(count, layout, (low, high) if floats else None):
            code = {name: written(change.lines, first[name].dtype) for name in names}
            pictures.append(Hypothesis(change.differences, code))
    return pictures + found


def _changes(count: int, layout: Layout, limits: tuple[float, float] | None) -> Iterator[Change]:
    """Yield changes from sample to sample."""
    reverse = reordered(_REVERSED.get(count, range(count)), count)
    read, write = Change(lines=layout.read), Change(lines=layout.write)

    def values(channels: Sequence[int]) -> Iterator[Change]:
        yield from (*_normalised(tuple(channels), *limits), OWN) if limits else ()

    moved = [turned(turn) + write for turn in TURNS]
    if layout.order != "HW" and count > 1:
        other = Layout(layout.order, layout.lead, not layout.reshaped)
        turned_axes = Layout("HWC" if layout.order == "CHW" else "CHW", layout.lead)
        moved += [Change((relaid(layout, each),), each.write) for each in (other, turned_axes)]
        if not layout.reshaped:
            moved.append(
                Change((relaid(other, layout),), (*layout.write, *other.read, *write.lines))
            )
    simple = [change + write for change in values(range(count))]
    yield from ([read + reverse + write] if reverse.lines else [])
    yield from (read + change for change in (*simple, *moved))
    for change in (*values(_REVERSED[count]),) if reverse.lines else ():
        yield read + reverse + change + write
    yield from (read + reverse + change for change in moved if reverse.lines)


def _normalised(channels: tuple[int, ...], low: float, high: float) -> Iterator[Change]:
    """Yield the lines from what A may be to what B may be, likeliest first, each once."""
    count = len(channels)
    pairs = [
        Pair(a, b, channels, count)
        for a, b in product(USUAL, USUAL)
        if a is not b and a.admits(low, high, count, _LEAST)
    ]
    seen = {_key(np.ones(count), np.zeros(count))}
    for pair in sorted(pairs, key=lambda pair: pair.cost):
        if (key := _key(*pair.line)) not in seen:
            seen.add(key)
            yield scaled(*pair.line, pair)


def _key(gain: Array, offset: Array) -> tuple[float, ...]:
    """Return the line to five digits: two ways to the same values differ by rounding."""
    return tuple(float(f"{value:.5g}") for value in (*gain, *offset))


def _plain(name: str, array: NDArray[Any], limits: tuple[float, float]) -> Iterator[Hypothesis]:
    changes: list[Change] = []
    if array.dtype.kind == "f" and array.size >= _FEWEST_VALUES:
        for gain in _GAINS:
            told = affine(np.array([gain]), np.zeros(1))
            changes.append(Change(told, (f"x = x * {gain:.9g}",)))
        changes.append(OWN)
    # Masks hold only 0 and 1.
    if array.dtype.kind in "iu" and array.ndim > 0 and limits[1] > 1:
        for step in (1.0, -1.0):
            told = affine(np.ones(1), np.array([step]))
            changes.append(Change(told, (f"x = x + {step:g}",)))
    for change in changes:
        yield Hypothesis(change.differences, {name: written(change.lines, array.dtype)})


def _images(array: NDArray[Any]) -> list[NDArray[Any]]:
    """Return each image of a batch, [1, …]; the array itself if it is none."""
    return np.split(array, len(array)) if array.ndim == 4 and len(array) > 1 else [array]


def _ranges(samples: Samples) -> dict[str, tuple[float, float]]:
    """Return the smallest and largest value of each numeric input."""
    found: dict[str, tuple[float, float]] = {}
    for sample in samples:
        for name, array in sample.items():
            if array.dtype.kind in "fiu" and array.size:
                low, high = found.get(name, (np.inf, -np.inf))
                found[name] = min(low, float(array.min())), max(high, float(array.max()))
    return found
