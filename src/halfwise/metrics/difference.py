"""How two arrays differ, element by element, a cache-sized chunk at a time.

Everything is widened to float64 (integers are subtracted exactly), so FP16, BF16 and FP32 pairs
neither overflow nor lose digits, and no temporary outgrows a chunk. The same chunks give the same
sums wherever they are taken, so measures that share them agree to the last bit.

A pair of elements is one of:

- both finite: its error is |candidate - reference|;
- the same non-finite value (NaN and NaN, infinities of one sign): left out of every error;
- anything else, such as NaN for 1.0 or 1.0 for NaN: its error is infinite, counted as non-finite.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field
from numpy.typing import DTypeLike, NDArray

from halfwise.errors import CaseError
from halfwise.formats import CHUNK


class Common(NamedTuple):
    """The majority value of an output's elements.

    Attributes:
        value: The value.
        others: Number of elements with another value.
    """

    value: int
    others: int


def common_value(arrays: Sequence[NDArray[Any]]) -> Common | None:
    """Return the value of more than half of all elements; None if there is none.

    Args:
        arrays: Integers or Booleans [*shape]; None for other types.
    """
    counts: dict[int, int] = {}
    total = 0
    for array in arrays:
        if array.dtype.kind not in "biu":
            return None
        total += array.size
        for value, count in zip(*np.unique(array, return_counts=True), strict=True):
            counts[int(value)] = counts.get(int(value), 0) + int(count)
    value, most = max(counts.items(), key=lambda item: item[1], default=(0, 0))
    return Common(value, total - most) if 2 * most > total else None


class Rare(NamedTuple):
    """Counts of elements other than the majority value; counts of several samples add up.

    Attributes:
        reference: Number of them in the reference.
        candidate: Number of them in the candidate.
        apart: Number of them on either side that differ on the other.
    """

    reference: int = 0
    candidate: int = 0
    apart: int = 0

    def merged(self, other: "Rare") -> "Rare":
        """Return the counts of both, which belong to the same output."""
        return Rare(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def agreement(self, total: int) -> float:
        """Return the largest agreement in [0, 1] still possible; 1 if there are no such elements.

        Args:
            total: Elements of the reference other than the majority value, over all samples.
        """
        # What is yet to come adds as much to both sides.
        both = total + self.candidate + total - self.reference
        return (both - self.apart) / both if both else 1.0


NONE_RARE = Rare()
"""No other elements."""


def rare_in(reference: NDArray[Any], candidate: NDArray[Any], common: int) -> Rare:
    """Return the counts of pairs of elements, both [*shape]."""
    wanted, actual, wrong = reference != common, candidate != common, reference != candidate
    apart = np.count_nonzero(wanted & wrong) + np.count_nonzero(actual & wrong)
    return Rare(int(np.count_nonzero(wanted)), int(np.count_nonzero(actual)), int(apart))


def is_discrete(dtype: DTypeLike) -> bool:
    """Return whether elements of `dtype` are judged by equality: integers, Booleans and strings.

    Args:
        dtype: Any dtype of an ONNX tensor, including those of ml_dtypes (bfloat16, int4 …).

    Raises:
        CaseError: The dtype is complex.
    """
    name = _name(np.dtype(dtype))
    if name.startswith("complex"):
        raise CaseError(
            f"An output of type {name} cannot be judged: complex numbers have no tolerance.",
            "Split it into a real and an imaginary output.",
        )
    return not name.startswith(("float", "bfloat"))


def _is_text(dtype: np.dtype[Any]) -> bool:
    return not _name(dtype).startswith(("float", "bfloat", "int", "uint", "bool"))


@lru_cache
def _name(dtype: np.dtype[Any]) -> str:
    """Return the dtype's name, which NumPy makes anew each time: slow beside a small output."""
    return dtype.name


def _slices(size: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, size, CHUNK))


def dot(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Return Σ a·b of two vectors of equal length, in one thread.

    NumPy's own product calls BLAS, whose threads wait for each other: up to a third of a second for
    ten thousand elements on a busy machine.
    """
    return float(np.einsum("i,i->", a, b))


class Spread(Struct):
    """Range and energy of the finite elements of one or more arrays, in float64.

    Attributes:
        count: Number of finite elements.
        minimum: Smallest finite element; inf if there is none.
        maximum: Largest finite element; -inf if there is none.
        energy: Σ x²; inf if magnitudes exceed about 1e154.
        elements: Number of all elements.
    """

    count: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    energy: float = 0.0
    elements: int = 0

    def add(self, array: NDArray[Any]) -> None:
        """Add the elements of `array`, any shape and ONNX dtype; a string counts as 1."""
        flat = np.ravel(array)
        self.elements += flat.size
        for part in _slices(flat.size):
            values = flat[part]
            text = _is_text(values.dtype)
            self._add_wide(np.ones(values.size) if text else values.astype(np.float64, copy=False))

    def _add_wide(self, values: NDArray[np.float64]) -> None:
        with np.errstate(all="ignore"):
            energy = dot(values, values)
            if not math.isfinite(energy):
                values = values[np.isfinite(values)]
                energy = dot(values, values)
            if not values.size:
                return
        self.count += values.size
        self.energy += energy
        self.minimum = min(self.minimum, float(values.min()))
        self.maximum = max(self.maximum, float(values.max()))

    @property
    def absmax(self) -> float:
        """Largest finite magnitude, 0 if there is none."""
        return max(abs(self.minimum), abs(self.maximum)) if self.count else 0.0


class Chunk(NamedTuple):
    """A run of element pairs.

    Attributes:
        reference: f64[n], n ≤ `CHUNK`; may hold NaN and inf.
        candidate: f64[n]; may hold NaN and inf.
        finite: bool[n], whether both sides are finite; None if all are.
        error: f64[m], m ≤ n: ≥ 0, never NaN; equal non-finite pairs are left out.
        noise: Σ error².
        nonfinite: How many errors are infinite because one side is not finite.
    """

    reference: NDArray[np.float64]
    candidate: NDArray[np.float64]
    finite: NDArray[np.bool_] | None
    error: NDArray[np.float64]
    noise: float
    nonfinite: int


def chunks(reference: NDArray[Any], candidate: NDArray[Any]) -> Iterator[Chunk]:
    """Yield the element pairs of two arrays of one shape, in C order.

    A string becomes 1 on the reference's side, and on the candidate's 1 if equal, else 0. Booleans
    are 0 and 1. Differences of integers of one dtype are exact before they become float64.

    Args:
        reference: [*shape] of any dtype except complex; may be empty.
        candidate: [*shape]; may have another numeric dtype, such as FP16 against FP32.
    """
    left, right = np.ravel(reference), np.ravel(candidate)
    for part in _slices(left.size):
        yield _chunk(left[part], right[part])


def _chunk(reference: NDArray[Any], candidate: NDArray[Any]) -> Chunk:
    if _is_text(reference.dtype):
        candidate = np.asarray(reference == candidate, dtype=np.bool_)
        reference = np.ones_like(candidate)
    left, right = reference.astype(np.float64), candidate.astype(np.float64)
    with np.errstate(all="ignore"):
        if reference.dtype == candidate.dtype and reference.dtype.kind in "iu":
            # float64 holds integers only up to 2^53; modulo 2^64 this difference is exact.
            larger, smaller = np.maximum(reference, candidate), np.minimum(reference, candidate)
            error = (larger.astype(np.uint64) - smaller.astype(np.uint64)).astype(np.float64)
        else:
            error = left - right
            np.abs(error, out=error)
        noise = dot(error, error)
        # A non-finite value on either side makes the error, and so the sum, inf or NaN: a finite
        # sum shows that all n pairs are finite, without a second pass.
        if math.isfinite(noise):
            return Chunk(left, right, None, error, noise, 0)
        finite = np.isfinite(left) & np.isfinite(right)
        equal = (left == right) | (np.isnan(left) & np.isnan(right))
        fault = ~(finite | equal)
        error[fault] = np.inf
        error = error[finite | fault]
        return Chunk(left, right, finite, error, dot(error, error), int(fault.sum()))


class Lost(NamedTuple):
    """The largest error of a slice or sample relative to its own scale.

    Attributes:
        share: The error over the scale.
        axis: The axis of the slice; None for a whole sample.
        place: Its index; 0 for a sample.
        scale: Its scale.
    """

    share: float = 0.0
    axis: int | None = None
    place: int = 0
    scale: float = 0.0


NOTHING = Lost()
"""Nothing is lost."""


_SUMS = (
    *("elements", "noise", "error", "product", "reference_energy", "candidate_energy"),
    *("mismatched", "nonfinite", "misshapen"),
)
"""Fields of a `Difference` that add up over samples."""


class Difference(Struct):
    """Sums over the element pairs of one output; the pairs of several samples add up.

    Attributes:
        discrete: The reference is judged by equality.
        elements: Pairs seen.
        max_abs: Largest error; inf if a pair is non-finite on one side only, or a shape differs.
        noise: Σ error²; inf likewise.
        error: Σ error; inf likewise, 0 if cosine terms were not requested.
        product: Σ reference · candidate over finite pairs; 0 likewise.
        reference_energy: Σ reference² over finite pairs; 0 likewise.
        candidate_energy: Σ candidate² over finite pairs; 0 likewise.
        mismatched: Unequal pairs (discrete outputs only).
        nonfinite: Pairs that are NaN or infinite on one side and something else on the other.
        misshapen: Samples in which the two shapes differ; their elements enter no sum.
        by_group: Largest error in each of the output's groups of slices (`slices`); empty if it has
            none, or if not requested.
        lost: What of a faint slice or sample is lost most, its error over its own scale, and where
            (`slices`); 0 likewise.
        rare: Elements that are not the output's common value; empty likewise.
    """

    discrete: bool = False
    elements: int = 0
    max_abs: float = 0.0
    noise: float = 0.0
    error: float = 0.0
    product: float = 0.0
    reference_energy: float = 0.0
    candidate_energy: float = 0.0
    mismatched: int = 0
    nonfinite: int = 0
    misshapen: int = 0
    by_group: tuple[float, ...] = ()
    lost: Lost = NOTHING
    rare: Rare = NONE_RARE

    def add_chunk(self, chunk: Chunk, *, cosine: bool) -> None:
        """Add the pairs of one chunk, with the terms of the cosine if `cosine`."""
        self.elements += chunk.reference.size
        self.noise += chunk.noise
        self.nonfinite += chunk.nonfinite
        if chunk.error.size:
            self.max_abs = max(self.max_abs, float(chunk.error.max()))
        if self.discrete:
            self.mismatched += int(np.count_nonzero(chunk.error))
        if cosine:
            self.error += float(chunk.error.sum())
            left, right = chunk.reference, chunk.candidate
            if chunk.finite is not None:
                left, right = left[chunk.finite], right[chunk.finite]
            with np.errstate(all="ignore"):
                self.product += dot(left, right)
                self.reference_energy += dot(left, left)
                self.candidate_energy += dot(right, right)

    def merge(self, other: "Difference") -> None:
        """Add the sums of `other`, which belongs to the same output."""
        self.discrete |= other.discrete
        self.max_abs = max(self.max_abs, other.max_abs)
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.rare = self.rare.merged(other.rare)
        self.lost = max(self.lost, other.lost, key=lambda one: one.share)
        if other.by_group:
            mine = self.by_group or other.by_group
            self.by_group = tuple(map(max, mine, other.by_group))

    def agreement(self, elements: int) -> float:
        """Return the largest agreement in [0, 1] that `elements` can have, those seen included.

        0 if a shape differs.
        """
        if self.misshapen:
            return 0.0
        return (elements - self.mismatched) / elements if elements else 1.0

    @property
    def rank(self) -> tuple[float, float]:
        """How bad it is: of discrete outputs by faults, as class numbers have no distance."""
        if self.misshapen:
            return math.inf, math.inf
        faults = float(self.mismatched + self.nonfinite)
        return (faults, self.max_abs) if self.discrete else (self.max_abs, faults)

    @property
    def relative(self) -> float:
        """√(Σ error² / Σ reference²), over all elements but equal NaN and infinities.

        Of integers, Booleans and strings, the root of the share of unequal elements. inf if only
        one side is not finite, if shapes differ (as they may where they depend on values), or if
        the reference is all zeros and the error is not; 0 without elements. Needs the cosine terms.
        """
        if self.nonfinite or self.misshapen:
            return math.inf
        signal, noise = float(self.elements), float(self.mismatched)
        if not self.discrete:
            signal, noise = self.reference_energy, self.noise
        if noise == 0:
            return 0.0
        return math.sqrt(noise / signal) if signal > 0 else math.inf

    @property
    def cosine(self) -> float:
        """Cosine similarity in [-1, 1]; needs the cosine terms.

        1 if no error was seen, 0 if only one side is all zero, NaN if a pair is non-finite on one
        side only or a shape differs.
        """
        if self.nonfinite or self.misshapen:
            return math.nan
        if self.noise == 0:
            return 1.0
        # Separate roots: the product of two energies may leave the range of float64.
        norm = math.sqrt(self.reference_energy) * math.sqrt(self.candidate_energy)
        return min(1.0, max(-1.0, self.product / norm)) if norm else 0.0


def compare(reference: NDArray[Any], candidate: NDArray[Any] | None, *, cosine: bool) -> Difference:
    """Return how one output of one sample differs from its reference.

    Args:
        reference: [*shape] of any dtype except complex.
        candidate: [*shape] of any numeric dtype; another shape, or None, is misshapen.
        cosine: Whether the terms of the cosine are needed; they double the work.

    Raises:
        CaseError: The reference is complex.
    """
    discrete = is_discrete(reference.dtype)
    if candidate is None or reference.shape != candidate.shape:
        far = math.inf
        return Difference(discrete=discrete, misshapen=1, max_abs=far, noise=far, error=far)
    difference = Difference(discrete=discrete)
    for chunk in chunks(reference, candidate):
        difference.add_chunk(chunk, cosine=cosine)
    return difference


def decibel(signal: float, noise: float) -> float:
    """Return 10 log10(signal / noise): inf without noise, -inf for noise without signal."""
    if noise == 0:
        return math.inf
    ratio = signal / noise
    return 10 * math.log10(ratio) if ratio > 0 else -math.inf


class RelativeError(Struct):
    """The relative error of the samples so far, see `Difference.relative`.

    Attributes:
        seen: Their difference.
        worst: Largest error of a single sample.
        worst_sample: Its index; 0 before any sample.
    """

    seen: Difference = field(default_factory=Difference)
    worst: float = -1.0
    worst_sample: int = 0

    @property
    def value(self) -> float:
        """The error over all samples so far."""
        return self.seen.relative

    def add(self, expected: NDArray[Any], actual: NDArray[Any], sample: int) -> float:
        """Add a pair of arrays of any ONNX dtypes; return the error of this pair alone."""
        here = compare(expected, actual, cosine=True)
        self.seen.merge(here)
        if here.relative > self.worst:
            self.worst, self.worst_sample = here.relative, sample
        return here.relative


def relative_rms(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return the relative RMS error of one pair of arrays; see `Difference.relative`."""
    return compare(expected, actual, cosine=True).relative


def is_close(actual: NDArray[Any], expected: NDArray[Any], within: float) -> bool:
    """Return whether all elements agree, up to `within` of the largest finite expected magnitude.

    The same NaN and infinities agree; integers, Booleans and strings must be equal. False for
    another shape.
    """
    if actual.shape != expected.shape or is_discrete(actual.dtype):
        return bool(np.array_equal(actual, expected))
    slack = within * float(np.abs(expected[np.isfinite(expected)]).max(initial=0))
    return bool(np.allclose(actual, expected, rtol=0, atol=slack, equal_nan=True))
