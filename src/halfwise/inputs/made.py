"""Reads what a preprocessing pipeline makes, without a model that says what it should be."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.errors import CaseError, UsageError
from halfwise.inputs.files import ARRAY_SUFFIXES, peek_npz, read_npy
from halfwise.inputs.fitting import as_arrays
from halfwise.inputs.folders import data_files
from halfwise.inputs.functions import load_function
from halfwise.inputs.loading import load_samples
from halfwise.inputs.raw import RawSamples
from halfwise.inputs.repeatable import repeatable
from halfwise.inputs.spec import InputSpec, LoadedSamples

ONLY = "input"
"""Name of an input where a function returns an array alone."""
_KEPT = 64
"""Results of a function that are kept: a comparison asks for each several times."""
_CHANNELS = 4
_SIDE = 8

Source = str | Path | Callable[[Any], Any] | Mapping[str, NDArray[Any]] | Samples


def load_made(source: Source, raw: RawSamples | None) -> LoadedSamples:
    """Return the samples that a pipeline made.

    Args:
        source: One of:

            * a `.npz` or `.npy` file, or a folder of them. Arrays of four axes and more have
              samples on their first one; of three axes those that are no image; of two all;
            * `file.py:function`, or a function: called with each raw sample, it returns a
              dictionary {input name: array} or an array;
            * arrays in memory, understood as a `.npz`, or samples.
        raw: Raw samples for functions.

    Raises:
        UsageError: A function without raw samples.
        CaseError: Nothing usable is there, or a value is NaN or infinite.
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
    return load_samples(name, _specs(_first(Path(name))))


def _called(function: Callable[[Any], Any], raw: RawSamples | None, where: str) -> LoadedSamples:
    if raw is None:
        raise UsageError(
            f"{where} is a function and no raw samples are given, expected some to call it with.",
            "Add --samples with a folder of images, or raw arrays in a .npz.",
        )

    def load(index: int) -> Sample:
        place = f"{where} on {raw.ids[index]}"
        result = function(raw.argument(index))
        if result is None:
            raise CaseError(
                f"{place}: it returned nothing, expected an array or a dictionary of arrays.",
                "Return what the model gets.",
            )
        named = result if isinstance(result, Mapping) else {ONLY: result}
        # Copied, because functions may fill the same array again for the next sample.
        found = {name: np.array(array) for name, array in as_arrays(named, place).items()}
        for name, array in found.items():
            _check(name, array, place)
        if not found:
            raise CaseError(
                f"{place}: it returned an empty dictionary, expected an array or several.",
                "Return what the model gets.",
            )
        return found

    samples = repeatable(load, raw.ids, where)
    kept = functools.lru_cache(maxsize=_KEPT)(samples.load)
    return LoadedSamples(Samples(raw.ids, kept), ())


def _check(name: str, array: NDArray[Any], where: str) -> None:
    if array.dtype.kind not in "biuf" or not array.size:
        raise CaseError(
            f"{where}: '{name}' is {array.dtype.name} of {array.size} elements, expected numbers.",
            "Return what the model gets.",
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise CaseError(
            f"{where}: '{name}' holds NaN or infinities, expected finite numbers.",
            "Correct the function; it can be tried on its own in Python.",
        )


def _first(path: Path) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of the first file, those of a `.npz` without their content."""
    kind, files = data_files(path) if path.is_dir() else (path.suffix.lower(), [path])
    if kind not in ARRAY_SUFFIXES or not files[0].is_file():
        found = f"the suffix '{kind}'" if files and files[0].is_file() and kind else "nothing"
        raise CaseError(
            f"{path}: found {found} to compare, expected {' or '.join(ARRAY_SUFFIXES)} files, a "
            "folder of them, or file.py:function.",
            "Save what the pipeline makes with np.savez(path, name=array), or give its function.",
        )
    return peek_npz(files[0]) if kind == ".npz" else {files[0].stem: read_npy(files[0])}


def _specs(arrays: Mapping[str, NDArray[Any]]) -> Sequence[InputSpec]:
    if not arrays:
        raise CaseError(
            "Found no arrays to compare, expected one for each input.", "Save what the model gets."
        )
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or not array.size:
            raise CaseError(
                f"'{name}' is {array.dtype.name} of {array.size} elements, expected numbers.",
                "Save what the model gets.",
            )
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
