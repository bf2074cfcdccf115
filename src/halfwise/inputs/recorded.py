"""Inputs that another tool recorded, and made-up ones."""

import base64
import functools
import io
import json
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.errors import CaseError
from halfwise.files import no_file, read_text
from halfwise.inputs.array_files import BROKEN, peek_npz, read_npz
from halfwise.inputs.fitting import InputSpec
from halfwise.inputs.samples import Block, LoadedSamples, load_singles, numbered
from halfwise.memory import available
from halfwise.records import Fact, MadeUp, Note
from halfwise.wording import count, dimensions, excerpt

SUFFIX = ".json"

Arrays = Mapping[str, NDArray[Any]]


class Recorded(Struct, frozen=True):
    """Recorded outputs.

    Attributes:
        name: The file's name.
        outputs: {output name: array} of each sample, not yet checked against a model.
        others: Names of recorded tensors that were not requested.
    """

    name: str
    outputs: tuple[Arrays, ...]
    others: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Names of all recorded tensors of the first sample."""
        return frozenset((*next(iter(self.outputs), {}), *self.others))


def holds_outputs(path: Path) -> bool:
    """Return whether a path names recorded outputs, not a model."""
    return path.suffix.lower() in (SUFFIX, ".npz") or path.is_dir()


def load_recorded(path: Path, samples: int, *, wanted: Collection[str]) -> Recorded:
    """Load recorded outputs.

    Args:
        path: A `.npz`. Each array holds one output: the i-th of `samples` equal parts of its first
            axis is sample i.
        samples: Number of samples that must have outputs.
        wanted: Names of outputs; others are ignored, whatever their shape.

    Raises:
        CaseError: The file cannot be read, or does not hold so many samples.
    """
    if path.suffix.lower() != ".npz" or not path.is_file():
        found = f"{path.name} holds no recorded outputs" if path.exists() else no_file(path)
        raise CaseError(
            f"{found.removesuffix('.')}; expected an .npz file.",
            "Write it with numpy.savez: for each output, an array whose first axis counts samples.",
        )
    shapes = peek_npz(path)
    chosen = {name: array for name, array in shapes.items() if name in wanted}
    _demand_parts(chosen, samples, path)
    parts = {name: np.split(a, samples) for name, a in read_npz(path, chosen).items()}
    outputs = tuple({name: part[i] for name, part in parts.items()} for i in range(samples))
    return Recorded(path.name, outputs, tuple(shapes.keys() - chosen.keys()))


def fit_recorded(
    recorded: Recorded, references: Sequence[Arrays], ids: Sequence[str]
) -> list[dict[str, NDArray[Any]]]:
    """Return the outputs with the references' shapes and dtypes; FP16 is widened.

    Args:
        recorded: Recorded outputs, one for each reference; extra ones are ignored.
        references: {output name: array} of each sample.
        ids: Identifiers of the samples, for messages.

    Raises:
        CaseError: An output is missing, or a shape or a dtype differs.
    """
    fitted = []
    for outputs, reference, identifier in zip(recorded.outputs, references, ids, strict=True):
        where = f"{recorded.name}, {identifier}"
        if not outputs.keys() >= reference.keys():
            raise CaseError(
                f"{where}: found the outputs {', '.join(sorted(outputs)) or 'none'}; expected "
                f"{', '.join(sorted(reference))}.",
                "Record all outputs of the model; extra ones are ignored.",
            )
        fitted.append({n: _fit(outputs[n], reference[n], f"{where}, '{n}'") for n in reference})
    return fitted


def _fit(array: NDArray[Any], reference: NDArray[Any], where: str) -> NDArray[Any]:
    # A part has its own first axis, which the model's output may lack.
    single = array[0, ...] if array.shape[:1] == (1,) else array
    shaped = single if single.shape == reference.shape else array
    if shaped.shape != reference.shape:
        shape = min(single.shape, array.shape, key=lambda s: abs(len(s) - reference.ndim))
        raise CaseError(
            f"{where} is {dimensions(shape)}; expected {dimensions(reference.shape)}.",
            "Record the outputs on exactly these inputs.",
        )
    floats = shaped.dtype.kind == "f" and reference.dtype.kind == "f"
    if not floats and not np.can_cast(shaped.dtype, reference.dtype, "safe"):
        raise CaseError(
            f"{where} has dtype {shaped.dtype.name}; expected {reference.dtype.name}.",
            f"Convert the output to {reference.dtype.name} and save it again.",
        )
    with np.errstate(over="ignore"):
        return shaped.astype(reference.dtype)


def _demand_parts(arrays: Arrays, samples: int, path: Path) -> None:
    for name, array in arrays.items():
        if not array.ndim or array.shape[0] % samples or not array.shape[0]:
            raise CaseError(
                f"{path.name}: output '{name}' is {dimensions(array.shape)}, but the inputs are "
                f"{count(samples, 'sample')}; expected the samples along the first axis.",
                "Stack the outputs of all samples along a first axis: np.stack(outputs).",
            )


def load_feeds(files: Sequence[Path], specs: Sequence[InputSpec]) -> LoadedSamples:
    """Load samples from files of `polygraphy run --save-inputs`, one per iteration.

    The current file stays in memory; a folder with one file per iteration needs the least.

    Args:
        files: At least one, in the order of their samples.
        specs: The model's inputs.

    Raises:
        CaseError: A file is broken, holds no inputs, or does not fit the model.
    """
    read = functools.lru_cache(maxsize=1)(_read_feeds)

    def feed(file: Path, index: int) -> Callable[[], Arrays]:
        return lambda: read(file)[index]

    blocks = []
    for file in files:
        names = numbered(file.name, len(read(file)))
        blocks += [Block(name, feed(file, i)) for i, name in enumerate(names)]
    return load_singles(blocks, specs)


def _read_feeds(file: Path) -> list[Arrays]:
    content = _read(file)
    items: list[Any] = content if isinstance(content, list) else [content]
    if items and all(map(_is_arrays, items)):
        return items
    raise CaseError(
        f"{file.name} holds no inputs in Polygraphy's format: expected a list with a dictionary "
        "{input name: array} for each iteration.",
        "Write it with `polygraphy run … --save-inputs`.",
    )


def _is_arrays(content: object) -> bool:
    return (
        isinstance(content, dict)
        and len(content) > 0
        and all(isinstance(a, np.ndarray) for a in content.values())
    )


def _read(file: Path) -> object:
    free = available()
    # A file is held as text, Base64 and arrays.
    most = sys.maxsize if free is None else free // 4
    try:
        text = read_text(file, at_most=most)
        return json.loads(text, object_hook=functools.partial(_decode, file=file))
    except (*BROKEN, RecursionError) as error:
        # The message may quote the array, which can be megabytes.
        reason = excerpt(str(error)) or type(error).__name__
        raise CaseError(
            f"{file.name} is not a readable {SUFFIX} file of Polygraphy ({reason}).",
            "Write it again with `polygraphy run … --save-inputs`.",
        ) from error


def _decode(content: dict[str, Any], *, file: Path) -> object:
    """Return arrays for the objects that encode them; other objects stay as they are."""
    match content.get("polygraphy_class"):
        case "ndarray":
            encoded = base64.b64decode(content["array"], validate=True)
            return np.load(io.BytesIO(encoded), allow_pickle=False)
        case "Tensor":
            raise CaseError(
                f"{file.name} holds PyTorch tensors, which are pickled and could run code from the "
                "file; expected NumPy arrays.",
                "Give Polygraphy NumPy arrays (tensor.numpy()) and save again; BF16 as float32.",
            )
    return content


def random_samples(specs: Sequence[InputSpec], count: int = 4) -> LoadedSamples:
    """Make random samples, each time the same.

    Floats are standard normal. Integers are 0 or 1, because they may index a table and the
    smallest tables in use (token types) have two rows; only uint8, the type of pixels, covers its
    range. Booleans are true or false. Dynamic axes have length 1.

    Args:
        specs: The model's inputs.
        count: Number of samples, at least 1.

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
        generator = np.random.default_rng((0, index))
        return {spec.name: _draw(spec, generator) for spec in specs}

    shapes = ", ".join(f"{spec.name} {dimensions(_shape(spec))}" for spec in specs)
    facts: dict[str, Fact] = {"samples": count, "shapes": shapes}
    notes = [Note(kind="random", severity="warning", facts=facts)]
    if any(not isinstance(axis, int) for spec in specs for axis in spec.shape or ()):
        notes.append(Note(kind="dynamic"))
    samples = Samples(tuple(f"random[{i}]" for i in range(count)), load)
    return LoadedSamples(samples, tuple(notes), real=False)


def _shape(spec: InputSpec) -> tuple[int, ...]:
    return tuple(axis if isinstance(axis, int) else 1 for axis in spec.shape or ())


def _draw(spec: InputSpec, generator: "np.random.Generator") -> NDArray[Any]:
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
    squared = scaled * scaled
    off = (
        abs(mean) * n**0.5,
        abs(std - 1) * (2 * n) ** 0.5,
        abs(float((squared * scaled).mean())) * (n / 6) ** 0.5,
        abs(float((squared * squared).mean()) - 3) * (n / 24) ** 0.5,
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
    for neighbours in pairs:
        count = sum(left.size for left, _ in neighbours)
        total = sum(float((left * right).sum()) for left, right in neighbours)
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
