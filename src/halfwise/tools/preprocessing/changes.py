"""What a pipeline may do to its inputs: each change in words, and as the Python that makes it.

In that Python, `x` is one sample in FP64; of images, one image [channels, rows, columns]. What is
shown to users is what is run. Normalisations that people use are those of torchvision and timm
(ImageNet; 0.5; CLIP of OpenAI), of Caffe (means of ILSVRC 2012) and of Keras' `imagenet_utils`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.records import DifferenceKind, InputDifference
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

    @classmethod
    def of(
        cls, kind: DifferenceKind, what: str, a: object, b: object, *lines: str, evidence: str = ""
    ) -> "Change":
        """Return a change of one difference; without lines where no code makes it."""
        return cls((difference(kind, what, str(a), str(b), evidence),), lines)


def run(lines: Sequence[str], x: NDArray[Any]) -> Array:
    """Return `x`, any shape, after the lines of changes, which hold only numbers and NumPy."""
    return transformation(written(lines, np.dtype(np.float64)))(x)


def written(lines: Sequence[str], dtype: np.dtype[Any]) -> str:
    """Return Python with a function `a_to_b` that returns `dtype`."""
    ends = [f'return np.asarray(x, np.{dtype.name}, order="C")']
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        ends.insert(0, f"x = np.clip(np.round(x), {limits.min}, {limits.max})")
    body = "\n".join(f"    {line}" for line in ("x = np.asarray(a, np.float64)", *lines, *ends))
    say = '"""Turn one sample of A into one of B."""'
    return f"import numpy as np\n\n\ndef a_to_b(a):\n    {say}\n{body}\n"


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


_AXES: dict[tuple[Order, bool], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("CHW", False): ((), ()),
    ("HWC", False): (("x = x.transpose(2, 0, 1)",), ("x = x.transpose(1, 2, 0)",)),
    ("HW", False): (("x = x[None]",), ("x = x[0]",)),
    ("CHW", True): (
        ("x = x.reshape(x.shape[1:] + x.shape[:1]).transpose(2, 0, 1)",),
        ("x = x.transpose(1, 2, 0).reshape(x.shape)",),
    ),
    ("HWC", True): (
        ("x = x.reshape(x.shape[2:] + x.shape[:2])",),
        ("x = x.reshape(x.shape[1:] + x.shape[:1])",),
    ),
}
"""The lines to [channels, rows, columns] and back, by order and whether it is reshaped."""


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
        lead = (f"x = x.reshape(x.shape[{self.lead}:])",) if self.lead else ()
        return lead + _AXES[self.order, self.reshaped][0]

    @property
    def write(self) -> tuple[str, ...]:
        """The lines back."""
        lead = (f"x = x.reshape({(1,) * self.lead} + x.shape)",) if self.lead else ()
        return _AXES[self.order, self.reshaped][1] + lead


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
    orders: dict[Order, int] = {"CHW": 0, "HWC": 2}
    for order, axis in orders.items() if len(shape) == 3 else ():
        channels = shape[axis]
        if channels <= MOST_CHANNELS and min(shape[:axis] + shape[axis + 1 :]) >= SMALLEST_SIDE:
            plain, other = Layout(order, lead), Layout(order, lead, reshaped=True)
            rough = [_roughness(run(each.read, sample)) for each in (plain, other)]
            return other if channels > 1 and rough[1] < _SMOOTHER * rough[0] else plain
    return None


def _roughness(image: Array) -> float:
    spread = float(image.std(axis=(1, 2)).mean()) or 1.0
    steps = np.abs(np.diff(image, axis=1)).mean() + np.abs(np.diff(image, axis=2)).mean()
    return float(steps) / spread


def relaid(a: Layout, b: Layout) -> Change:
    """Describe a difference in layout."""
    return Change.of("layout", f"B is laid out as {b}, A as {a}.", a, b)


TURNS = {
    turn: Change.of("flip", f"B is A {turn}.", "as it is", turn, f"x = {code}")
    for turn, code in {
        "flipped left to right": "x[..., ::-1]",
        "flipped upside down": "x[..., ::-1, :]",
        "rotated by 180°": "x[..., ::-1, ::-1]",
        "transposed (rows and columns exchanged)": "np.swapaxes(x, -1, -2)",
        "rotated by 90° clockwise": "np.swapaxes(x, -1, -2)[..., ::-1]",
        "rotated by 90° counterclockwise": "np.swapaxes(x, -1, -2)[..., ::-1, :]",
        "transposed along the other diagonal": "np.swapaxes(x, -1, -2)[..., ::-1, ::-1]",
    }.items()
}
"""Flips and quarter turns, by what B is beside A."""


def reordered(channels: Sequence[int], count: int) -> Change:
    """Return the change to channels `channels` of `count`; nothing if they are all in order."""
    before, after = (", ".join(map(str, each)) for each in (range(count), channels))
    if before == after:
        return Change()
    what = f"B's channels are A's channels {after}."
    if tuple(channels) == (2, 1, 0):
        what = "B has the channels in reverse order: one is RGB, the other BGR."
    return Change.of("channels", what, before, after, f"x = x[{list(channels)}]")


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


def _by_sets(scale: float, said: str) -> Iterator[Normalisation]:
    """Yield the mean and deviation of each set, and only one of both."""
    for name, (mean, deviation) in _SETS.items():
        yield Normalisation(f"{said}, {name} mean and deviation", scale, mean, deviation)
        yield Normalisation(f"{said}, {name} mean", scale, mean)
        yield Normalisation(f"{said}, {name} deviation", scale, deviation=deviation)


_RGB = (
    Normalisation("pixels from 0 to 255", 1.0),
    Normalisation("pixels scaled by 1/255", 1 / 255),
    *_by_sets(1 / 255, "scaled by 1/255"),
    Normalisation("Caffe's mean, no scale", 1.0, (123.68, 116.779, 103.939)),
    Normalisation("(x − 127.5)/128", 1.0, (127.5,) * 3, (128.0,) * 3),
    Normalisation("(x − 128)/128", 1.0, (128.0,) * 3, (128.0,) * 3),
    Normalisation("mean 127.5, no scale", 1.0, (127.5,) * 3),
    Normalisation("mean 128, no scale", 1.0, (128.0,) * 3),
    Normalisation("scaled by 1/256", 1 / 256),
    Normalisation("scaled by 1/128", 1 / 128),
    Normalisation("scaled by 1/255 twice", 1 / 255**2),
)


def _both_orders(some: Sequence[Normalisation]) -> Iterator[Normalisation]:
    yield from some
    for n in some:
        mean, deviation = n.mean[::-1], n.deviation[::-1]
        if (mean, deviation) != (n.mean, n.deviation):
            yield Normalisation(f"{n.name} in BGR order", n.scale, mean, deviation)


KNOWN = (*_both_orders(_RGB), *_both_orders([*_by_sets(1.0, "not scaled")]))
"""Normalisations that people use, likeliest first."""


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

    @cached_property
    def differences(self) -> tuple[InputDifference, ...]:
        """The parts that differ; the first one says both names."""
        parts: tuple[tuple[DifferenceKind, Any, Any], ...] = (
            ("scale", [self.a.scale], [self.b.scale]),
            ("mean", self.a.mean, self.b.mean),
            ("deviation", self.a.deviation, self.b.deviation),
        )
        unlike = [each for each in parts if not np.allclose(*each[1:], rtol=1e-3, atol=1e-6)]
        names = f": B is {self.b.name}, A {self.a.name}"
        return tuple(
            difference(kind, f"The {kind} differs{'' if i else names}.", row(one), row(other))
            for i, (kind, one, other) in enumerate(unlike)
        )

    @property
    def cost(self) -> float:
        """How unlikely it is: the parts that differ, then the places among the known."""
        places = KNOWN.index(self.a) + KNOWN.index(self.b)
        return 0.5 * len(self.differences) + 0.03 * places


def pairs(
    channels: Sequence[int], count: int, limits: tuple[float, float], least: float
) -> list[Pair]:
    """Return usual normalisations of A and B, likeliest first; none if B has other channels.

    Args:
        channels: The channel of A for each of B.
        count: Channels of A.
        limits: A's smallest and largest value.
        least: Levels of 255 that lie between them at least.
    """
    likely = [n for n in KNOWN if n.admits(*limits, count, least)] if len(channels) == count else []
    return sorted(
        (Pair(a, b, tuple(channels), count) for a, b in product(likely, KNOWN)),
        key=lambda pair: pair.cost,
    )


def row(values: Sequence[float] | Array) -> str:
    """Return numbers in words: one if all are equal."""
    numbers = [number(float(value), 4) for value in values]
    return numbers[0] if len(set(numbers)) == 1 else f"({', '.join(numbers)})"


def scaled(gain: Array, offset: Array, pair: Pair | None = None) -> Change:
    """Return the change to gain · x + offset, f64[channels] each, in the words of `pair`.

    One gain and offset fit arrays of any shape, several fit images.
    """

    def text(values: Array) -> str:
        numbers = ", ".join(f"{float(v):.9g}" for v in values)
        return f"np.array([{numbers}])[:, None, None]" if len(values) > 1 else numbers

    lines = [
        f"x = x {sign} {text(values)}"
        for sign, values, nothing in (("*", gain, 1), ("+", offset, 0))
        if (values != nothing).any()
    ]
    return Change(pair.differences if pair else _affine(gain, offset), tuple(lines))


def _affine(gain: Array, offset: Array) -> tuple[InputDifference, ...]:
    """Describe B = gain · A + offset, f64[channels] each, in numbers."""
    level = np.abs(gain).max()
    evidence = f"B = {row(gain)} · A + {row(offset)}"
    kind: DifferenceKind = "scale" if np.ptp(gain) < 0.01 * level else "deviation"
    parts: tuple[tuple[DifferenceKind, str, Array, float], ...] = (
        (kind, f"B's values are {row(gain)} times A's.", gain, 1),
        ("mean", f"B's values are offset by {row(offset)}.", offset, 0),
    )
    return tuple(
        difference(kind, what, str(nothing), row(values), evidence)
        for kind, what, values, nothing in parts
        if np.abs(values - nothing).max() > 0.005 * (1 if nothing else level)
    )


OWN = Change.of(
    "normalisation",
    "B is normalised by each sample's own mean and deviation, A by fixed numbers.",
    "by fixed numbers",
    "by its own mean and deviation",
    "x = x - x.mean()",
    "x = x / x.std()",
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
        made = dict(sample)
        # Images without contrast have zero deviation.
        with np.errstate(all="ignore"):
            for name, make in self._functions.items():
                made[name] = np.concatenate([make(image) for image in _images(sample[name])])
        return made

    @cached_property
    def _functions(self) -> dict[str, Callable[[NDArray[Any]], NDArray[Any]]]:
        return {name: transformation(text) for name, text in self.code.items()}


def hypotheses(samples: Samples) -> list[Hypothesis]:
    """Return input changes that people make or forget, simplest first, none twice.

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
        if layout := layout_of(image):
            groups.setdefault((len(run(layout.read, image)), layout), []).append(name)
            continue
        found += [
            Hypothesis(each.differences, {name: written(each.lines, array.dtype)})
            for each in _plain(array, ranges.get(name, (0.0, 0.0)))
        ]
    pictures = []
    for (count, layout), names in groups.items():
        floats = all(first[name].dtype.kind == "f" for name in names)
        low, high = min(ranges[n][0] for n in names), max(ranges[n][1] for n in names)
        for each in _changes(count, layout, (low, high) if floats else None):
            code = {name: written(each.lines, first[name].dtype) for name in names}
            pictures.append(Hypothesis(each.differences, code))
    return pictures + found


def _changes(count: int, layout: Layout, limits: tuple[float, float] | None) -> Iterator[Change]:
    """Yield changes from sample to sample."""
    back = Change(lines=layout.write)
    moved = [each + back for each in TURNS.values()]
    if layout.order != "HW" and count > 1:
        other = replace(layout, reshaped=not layout.reshaped)
        turned = Layout("HWC" if layout.order == "CHW" else "CHW", layout.lead)
        moved += [relaid(layout, each) + Change(lines=each.write) for each in (other, turned)]
        if not layout.reshaped:
            moved.append(relaid(other, layout) + Change(lines=layout.write + other.read) + back)
    straight, start = tuple(range(count)), Change(lines=layout.read)
    reverse = reordered(_REVERSED.get(count, straight), count)
    orders = {straight: start, _REVERSED.get(count, straight): start + reverse}
    yield from ([start + reverse + back] if reverse.lines else [])
    for channels, ordered in orders.items():
        values = (*_normalised(channels, *limits), OWN) if limits else ()
        yield from (ordered + each + back for each in values)
        yield from (ordered + each for each in moved)


def _normalised(channels: tuple[int, ...], low: float, high: float) -> Iterator[Change]:
    """Yield the lines from what A may be to what B may be, likeliest first, each once."""
    count = len(channels)
    seen = {_key(np.ones(count), np.zeros(count))}
    for pair in pairs(channels, count, (low, high), _LEAST):
        if (key := _key(*pair.line)) not in seen:
            seen.add(key)
            yield scaled(*pair.line, pair)


def _key(gain: Array, offset: Array) -> tuple[float, ...]:
    """Return the line to five digits: two ways to the same values differ by rounding."""
    return tuple(float(f"{value:.5g}") for value in (*gain, *offset))


def _plain(array: NDArray[Any], limits: tuple[float, float]) -> Iterator[Change]:
    if array.dtype.kind == "f" and array.size >= _FEWEST_VALUES:
        yield from (scaled(np.array([gain]), np.zeros(1)) for gain in _GAINS)
        yield OWN
    # Masks hold only 0 and 1.
    if array.dtype.kind in "iu" and array.ndim > 0 and limits[1] > 1:
        yield from (scaled(np.ones(1), np.array([step])) for step in (1.0, -1.0))


def _images(array: NDArray[Any]) -> list[NDArray[Any]]:
    """Return each image of a batch, [1, …]; the array itself if it is none."""
    return np.split(array, len(array)) if array.ndim == 4 else [array]


def _ranges(samples: Samples) -> dict[str, tuple[float, float]]:
    """Return the smallest and largest value of each numeric input."""
    found: dict[str, tuple[float, float]] = {}
    for sample in samples:
        for name, array in sample.items():
            if array.dtype.kind in "fiu" and array.size:
                low, high = found.get(name, (np.inf, -np.inf))
                found[name] = min(low, float(array.min())), max(high, float(array.max()))
    return found
