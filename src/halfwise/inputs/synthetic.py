"""Generated inputs: makes random ones if there is no data, and recognises them in given data.

What rounding breaks depends on the values inside the model, and noise does not produce the values
that real data does.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.errors import CaseError
from halfwise.inputs.fitting import InputSpec
from halfwise.inputs.samples import LoadedSamples
from halfwise.records import Fact, MadeUp, Note
from halfwise.wording import dimensions


def random_samples(specs: Sequence[InputSpec], count: int = 4, seed: int = 0) -> LoadedSamples:
    """Make random samples.

    Floats are standard normal. Integers are 0 or 1, because they may index a table and the
    smallest tables in use (token types) have two rows; only uint8, the type of pixels, covers its
    range. Booleans are true or false. Dynamic axes have length 1.

    Args:
        specs: The model's inputs.
        count: Number of samples, at least 1.
        seed: The same seed gives the same samples.

    Raises:
        CaseError: An input is neither float, integer nor Boolean, has no rank, or has a shape
            beyond NumPy's limits.
    """
    for spec in specs:
        if spec.shape is None:
            raise CaseError(
                f"The model declares no rank for input '{spec.name}', so halfwise cannot draw "
                "random data.",
                "Give real inputs.",
            )
        # "V" is how NumPy sees bfloat16.
        if spec.dtype.kind not in "fViub":
            raise CaseError(
                f"Input '{spec.name}' has dtype {spec.dtype.name}; random data is available for "
                "floats, integers and Booleans only.",
                "Give real inputs.",
            )
        try:
            np.broadcast_to(0.0, _shape(spec))
        except ValueError as error:
            raise CaseError(
                f"Input '{spec.name}' has an impossible shape ({error}), so halfwise cannot draw "
                "random data.",
                "Check the shape in the model.",
            ) from error

    def load(index: int) -> Sample:
        generator = np.random.default_rng((seed, index))
        return {spec.name: _draw(spec, generator) for spec in specs}

    shapes = ", ".join(f"{spec.name} {dimensions(_shape(spec))}" for spec in specs)
    facts: dict[str, Fact] = {"samples": count, "seed": seed, "shapes": shapes}
    notes = [Note(kind="random", severity="warning", facts=facts)]
    if any(not isinstance(axis, int) for spec in specs for axis in spec.shape or ()):
        notes.append(Note(kind="dynamic"))
    samples = Samples(tuple(f"random[{i}]" for i in range(count)), load)
    return LoadedSamples(samples, tuple(notes), real=False)


def _shape(spec: InputSpec) -> tuple[int, ...]:
    return tuple(axis if isinstance(axis, int) else 1 for axis in spec.shape or ())


def _draw(spec: InputSpec, generator: np.random.Generator) -> NDArray[Any]:
    shape = _shape(spec)
    if spec.dtype.kind in "fV":
        return np.asarray(generator.standard_normal(shape), dtype=spec.dtype)
    high = 256 if spec.dtype.name == "uint8" else 2
    return np.asarray(generator.integers(0, high, shape), dtype=spec.dtype)


_MOST_SAMPLES = 16
# Weak correlations of tables are only seen in many rows.
_POOLED_ELEMENTS = 2**16
_FEWEST_ELEMENTS = 256
# Per sample; 2^18 take milliseconds.
_MOST_ELEMENTS = 2**18
# Limit in standard errors; noise exceeds it once in 16,000.
_ERRORS = 4
_BINS = 16
# 99.9 % quantile of χ² with one degree of freedom less than there are bins.
_CHI_SQUARE = 37.7
_LATENT = re.compile(r"(?:^|[^a-z])(?:z|eps|epsilon|noises?|latents?)(?:$|[^a-z])")


def judge_inputs(samples: Samples, specs: Sequence[InputSpec]) -> tuple[tuple[MadeUp, ...], bool]:
    """Return which inputs look generated, and whether that makes all the data noise.

    Evenly spread samples are pooled: 16, or more if these have fewer than 2^16 elements, with at
    most 2^18 elements of each. Inputs with fewer than 256 elements in total are skipped, as
    standard errors would hide any sign.

    * Constant: all elements of a float input are equal. Integers and Booleans count only if
      all such inputs are constant and no float input looks real, because a mask of ones next to
      real tokens or features is common.
    * Standard normal: mean 0, standard deviation 1, skewness 0, kurtosis 3, each within four
      standard errors of n independent draws (1/√n, 1/√2n, √(6/n), √(24/n)), and neither
      neighbours along any axis nor equal places of successive samples correlate by more than
      4/√pairs.
    * Uniform in [0, 1], [−1, 1] or [0, 255]: the χ² of a histogram of 16 bins is below its 99.9 %
      quantile, 37.7, and nothing correlates.

    Values cannot tell noise made for lack of data from noise that the model takes in use. So the
    data counts as noise only if some float input looks like noise, no other float input looks real
    (latents next to a text embedding are fine), and no such input is named after noise (z, eps,
    noise, latent); or if every input is constant. Other cases, such as a GAN's latent under another
    name, are left to the user.

    Standardised tables and normalised images keep the correlations and kurtosis of the
    measurements; whitened data that is also normal would be taken for noise. One in a thousand
    noise inputs is missed.

    Args:
        samples: Samples that fit `specs`.
        specs: The model's inputs.

    Returns:
        The inputs that look generated, and whether the data as a whole looks real.

    Raises:
        CaseError: A sample turns out to be invalid when it is loaded.
    """
    first = samples[0]
    elements = sum(first[spec.name].size for spec in specs)
    most = max(_MOST_SAMPLES, _POOLED_ELEMENTS // max(1, elements))
    spread = np.linspace(0, len(samples) - 1, min(len(samples), most))
    chosen = [first, *(samples[int(i)] for i in spread[1:])]
    pooled = {spec.name: [sample[spec.name] for sample in chosen] for spec in specs}
    floats = {s.name: pooled[s.name] for s in specs if s.dtype.kind in "fV"}
    floats = {name: arrays for name, arrays in floats.items() if _is_enough(arrays)}
    discrete = {s.name: pooled[s.name] for s in specs if s.dtype.kind in "iub"}
    looks = {name: _look(name, arrays) for name, arrays in floats.items()}
    noisy = [name for name, look in looks.items() if look and look.kind != "constant"]
    latent = {name for name in noisy if _LATENT.search(name.lower())}
    looks = {name: look for name, look in looks.items() if name not in latent}
    some_real = not all(looks.values())
    made_up = (*filter(None, looks.values()), *(() if some_real else _constant_integers(discrete)))
    if some_real or not made_up:
        return made_up, True
    noise = any(look.kind != "constant" for look in made_up)
    return made_up, not noise and len(made_up) < len(specs)


def _is_enough(arrays: Sequence[NDArray[Any]]) -> bool:
    return sum(array.size for array in arrays) >= _FEWEST_ELEMENTS


def _constant_integers(discrete: Mapping[str, Sequence[NDArray[Any]]]) -> list[MadeUp]:
    if not _is_enough([array for arrays in discrete.values() for array in arrays]):
        return []
    if not all(_is_constant(arrays) for arrays in discrete.values()):
        return []
    return [_constant(name, arrays) for name, arrays in discrete.items()]


def _constant(name: str, arrays: Sequence[NDArray[Any]]) -> MadeUp:
    value = next((float(a.flat[0]) for a in arrays if a.size), 0.0)
    return MadeUp(input=name, kind="constant", mean=value, deviation=0.0)


def _look(name: str, arrays: Sequence[NDArray[Any]]) -> MadeUp | None:
    """Return what a float input looks like; None if it looks real."""
    if _is_constant(arrays):
        return _constant(name, arrays)
    cropped = [_crop(array).astype(np.float64) for array in arrays]
    values = np.concatenate([array.ravel() for array in cropped])
    kind = _distribution(values)
    mean, variance = float(values.mean()), float(values.var())
    if kind is None or _correlates(cropped, mean, variance):
        return None
    return MadeUp(input=name, kind=kind, mean=mean, deviation=variance**0.5)


def _distribution(values: NDArray[np.float64]) -> Literal["normal", "uniform"] | None:
    n = values.size
    mean, std = float(values.mean()), float(values.std())
    # Constant except for what was cropped.
    if std == 0.0:
        return None
    scaled = (values - mean) / std
    off = (
        abs(mean) * n**0.5,
        abs(std - 1) * (2 * n) ** 0.5,
        abs(float((scaled**3).mean())) * (n / 6) ** 0.5,
        abs(float((scaled**4).mean()) - 3) * (n / 24) ** 0.5,
    )
    if max(off) < _ERRORS:
        return "normal"
    low, high = float(values.min()), float(values.max())
    for start, stop in ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)):
        if start <= low and high <= stop:
            counts, _ = np.histogram(values, _BINS, (start, stop))
            expected = n / _BINS
            if float(((counts - expected) ** 2).sum()) / expected < _CHI_SQUARE:
                return "uniform"
    return None


def _correlates(arrays: Sequence[NDArray[np.float64]], mean: float, variance: float) -> bool:
    """Return whether neighbours along any axis, or successive samples, correlate."""
    centred = [array - mean for array in arrays]
    # Axes are counted from the last.
    pairs = []
    for axis in range(1, max(array.ndim for array in arrays) + 1):
        lines = (np.moveaxis(array, -axis, 0) for array in centred if array.ndim >= axis)
        pairs.append([(each[:-1], each[1:]) for each in lines])
    pairs.append([(a, b) for a, b in pairwise(centred) if a.shape == b.shape])
    for found in pairs:
        count = sum(left.size for left, _ in found)
        total = sum(float((left * right).sum()) for left, right in found)
        if count and abs(total / variance) > _ERRORS * count**0.5:
            return True
    return False


def _is_constant(arrays: Sequence[NDArray[Any]]) -> bool:
    filled = [array for array in arrays if array.size]
    return all(bool((array == filled[0].flat[0]).all()) for array in filled)


def _crop(array: NDArray[Any]) -> NDArray[Any]:
    while array.size > _MOST_ELEMENTS:
        longest = int(np.argmax(array.shape))
        array = array[(slice(None),) * longest + (slice(array.shape[longest] // 2),)]
    return array
