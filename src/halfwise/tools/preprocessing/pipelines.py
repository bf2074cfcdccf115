"""Reads raw samples, and the results of preprocessing pipelines, without a model.

The expected form of an input is unknown here; comparing two pipelines finds it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.errors import CaseError, UsageError
from halfwise.inputs.array_files import ARRAY_SUFFIXES, peek_arrays, read_arrays
from halfwise.inputs.fitting import InputSpec, as_arrays, by_input, demand_sources, split_sources
from halfwise.inputs.functions import load_function
from halfwise.inputs.loading import IMAGES, data_files, load_samples, paired_files
from halfwise.inputs.samples import MOST_SAMPLES, LoadedSamples, numbered, repeatable
from halfwise.records import Note

_STACKED = 4
"""Number of axes from which the first axis counts samples: an image has at most three."""
ONLY = "input"
"""Input name if a function returns just an array."""
_KEPT = 64
"""Number of results of a function that are cached: a comparison needs each several times."""
_CHANNELS = 4
_SIDE = 8

Source = str | Path | Callable[[Any], Any] | Mapping[str, NDArray[Any]] | Samples


@dataclass(frozen=True)
class RawSamples:
    """Samples before any preprocessing.

    Attributes:
        ids: One identifier per sample.
        argument: Returns the argument of functions for sample i: the path of an image, or an array;
            a dictionary by input name if inputs have separate sources.
        pixels: The sample as an array; None if it cannot be decoded here.
        notes: How the data was understood.
        sources: Input name → its own raw samples, if inputs have separate sources.
    """

    ids: tuple[str, ...]
    argument: Callable[[int], object] = field(repr=False)
    pixels: Callable[[int], NDArray[Any] | None] = field(repr=False)
    notes: tuple[Note, ...] = ()
    sources: Mapping[str, "RawSamples"] = field(default_factory=dict)


def load_raw(source: str | Path) -> RawSamples:
    """Find the raw samples in a folder or file.

    Args:
        source: One of:

            * an image or a folder of images, whose paths are the samples;
            * a `.npy` or `.npz` file, or a folder of them: an array of four or more axes holds one
              sample per index of the first axis, any other array is one sample; names do not
              matter;
            * `name=path,name=path` for inputs with separate images or `.npy` files.

    Raises:
        CaseError: There is no such data.
    """
    if sources := split_sources(str(source)):
        return _raw_by_input(sources)
    kind, files = data_files(Path(source))
    if files and kind in (IMAGES, *ARRAY_SUFFIXES):
        return _images(files) if kind == IMAGES else _arrays(files)
    raise CaseError(
        f"Found no raw samples at {source}; expected images or {', '.join(ARRAY_SUFFIXES)} files.",
        "Give a folder of images, or the raw images as arrays [N, H, W, 3] in a .npz.",
    )


def _raw_by_input(sources: Mapping[str, Path]) -> RawSamples:
    demand_sources(sources)
    kind, paired, notes = paired_files(sources)
    read = _images if kind == IMAGES else _arrays
    each = {name: read([files[name] for _, files in paired]) for name in sources}
    first = next(iter(each.values()))
    if len({len(raw.ids) for raw in each.values()}) > 1:
        counts = ", ".join(f"'{name}' {len(raw.ids)}" for name, raw in each.items())
        raise CaseError(
            f"The inputs have different numbers of raw samples ({counts}); expected the same.",
            "Give the same samples for every input.",
        )
    return RawSamples(
        first.ids,
        lambda i: {name: raw.argument(i) for name, raw in each.items()},
        lambda _: None,
        (*first.notes, *notes),
        each,
    )


def _images(files: Sequence[Path]) -> RawSamples:
    decoded = _decoder()
    return RawSamples(
        tuple(file.name for file in files),
        lambda i: files[i],
        lambda i: decoded(files[i]) if decoded else None,
        () if decoded else (Note(kind="no-decoder"),),
    )


def _decoder() -> Callable[[Path], NDArray[np.uint8] | None] | None:
    """Return a function that decodes an image to u8[h, w, 3]; None without Pillow."""
    try:
        # Optional: without it, functions still get the path and decode it themselves.
        from PIL import Image  # noqa: PLC0415
    except ImportError:
        return None

    def decode(path: Path) -> NDArray[np.uint8] | None:
        try:
            with Image.open(path) as image:
                return np.asarray(image.convert("RGB"))
        # The functions decide whether they can read it.
        except (OSError, ValueError, MemoryError, Image.DecompressionBombError):
            return None

    return decode


def _arrays(files: Sequence[Path]) -> RawSamples:
    ids: list[str] = []
    arrays: list[NDArray[Any]] = []
    for file in files:
        for name, array in peek_arrays(file).items():
            if _stacked(array) and len(array) > MOST_SAMPLES:
                raise CaseError(
                    f"{_where(file, name)} holds {len(array):,} samples; expected at most "
                    f"{MOST_SAMPLES:,}.",
                    "Give fewer, or check the shape in the file.",
                )
        for name, array in read_arrays(file).items():
            parts = list(array) if _stacked(array) else [array]
            ids += numbered(_where(file, name), len(parts))
            arrays += parts
    if not arrays:
        raise CaseError(
            f"{files[0].name} holds no sample; expected at least one.", "Export the data again."
        )
    # Copies, because functions may work in place.
    return RawSamples(tuple(ids), lambda i: arrays[i].copy(), lambda i: arrays[i])


def _stacked(array: NDArray[Any]) -> bool:
    return array.ndim >= _STACKED


def _where(file: Path, name: str) -> str:
    return file.name if file.suffix.lower() == ".npy" else f"{file.name}:{name}"


def load_made(source: Source, raw: RawSamples | None) -> LoadedSamples:
    """Return the samples that a pipeline produced.

    Args:
        source: One of:

            * a `.npz` or `.npy` file, or a folder of them, or `name=path,name=path` for inputs with
              separate `.npy` files. The first axis counts samples in arrays of two axes, of three
              axes unless they look like an image, and of four or more;
            * `file.py:function`, or a function: called with each raw sample, it returns a
              dictionary {input name: array} or an array;
            * arrays in memory, read like a `.npz`, or samples.
        raw: Raw samples for functions.

    Raises:
        UsageError: A function without raw samples.
        CaseError: Nothing usable was found, or a value is NaN or infinite.
    """
    if isinstance(source, Samples):
        return LoadedSamples(source, ())
    if callable(source):
        return _called(source, raw, getattr(source, "__name__", "the function"))
    if isinstance(source, Mapping):
        arrays = as_arrays(source, "inputs")
        return load_samples(arrays, _specs(arrays))
    name = str(source)
    if ".py:" in Path(name).name:
        return _called(load_function(name), raw, name)
    if sources := split_sources(name):
        demand_sources(sources)
        firsts = {n: next(iter(_first(path).values())) for n, path in sources.items()}
        return load_samples(name, _specs(firsts))
    return load_samples(name, _specs(_first(Path(name))))


def _called(source: Callable[[Any], Any], raw: RawSamples | None, where: str) -> LoadedSamples:
    if raw is None:
        raise UsageError(
            f"{where} is a function, but there are no raw samples to call it with.",
            "Add --samples with a folder of images, or raw arrays in a .npz.",
        )

    first = raw.argument(0)
    make = by_input(source, first) if isinstance(first, Mapping) else source

    def load(index: int) -> Sample:
        place = f"{where} on {raw.ids[index]}"
        result = make(raw.argument(index))
        if result is None:
            raise CaseError(
                f"{place}: it returned nothing; expected an array or a dictionary of arrays.",
                "Return the model's input.",
            )
        named = result if isinstance(result, Mapping) else {ONLY: result}
        # Copied, because functions may fill the same array again for the next sample.
        found = {name: np.array(array) for name, array in as_arrays(named, place).items()}
        for name, array in found.items():
            _check(name, array, place)
        if not found:
            raise CaseError(
                f"{place}: it returned an empty dictionary; expected an array or several.",
                "Return the model's input.",
            )
        return found

    samples = repeatable(load, raw.ids, where)
    kept = functools.lru_cache(maxsize=_KEPT)(samples.load)
    return LoadedSamples(Samples(raw.ids, kept), ())


def _check(name: str, array: NDArray[Any], where: str) -> None:
    _demand_numbers(name, array, f"{where}: ", "Return")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CaseError(
            f"{where}: '{name}' holds NaN or infinities; expected finite numbers.",
            "Correct the function; you can call it on its own in Python.",
        )


def _demand_numbers(name: str, array: NDArray[Any], where: str, do: str) -> None:
    if array.dtype.kind not in "biuf" or not array.size:
        raise CaseError(
            f"{where}'{name}' is {array.dtype.name} of {array.size} elements; expected numbers.",
            f"{do} the model's input.",
        )


def _first(path: Path) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of the first file, without content for `.npz`."""
    kind, files = data_files(path)
    if kind not in ARRAY_SUFFIXES or not files:
        suffix = files[0].suffix.lower() if files else ""
        found = f"the suffix '{suffix}'" if suffix else "nothing"
        raise CaseError(
            f"{path}: found {found} to compare; expected {' or '.join(ARRAY_SUFFIXES)} files, a "
            "folder of them, or file.py:function.",
            "Save the pipeline's results with np.savez(path, name=array), or give its function.",
        )
    return peek_arrays(files[0])


def _specs(arrays: Mapping[str, NDArray[Any]]) -> Sequence[InputSpec]:
    if not arrays:
        raise CaseError(
            "Found no arrays to compare; expected one for each input.", "Save the model's input."
        )
    for name, array in arrays.items():
        _demand_numbers(name, array, "", "Save")
    return [_spec(name, array) for name, array in arrays.items()]


def _spec(name: str, array: NDArray[Any]) -> InputSpec:
    shape = array.shape
    if array.ndim > 4:
        return InputSpec(name, array.dtype, (None,) * (array.ndim - 1))
    image = array.ndim == 3 and any(
        shape[axis] <= _CHANNELS and min(shape[axis + 1 :] + shape[:axis]) >= _SIDE
        for axis in (0, 2)
    )
    first = shape[0] if image or array.ndim == 1 else None
    return InputSpec(name, array.dtype, (first, *(None,) * (array.ndim - 1)) if shape else ())
