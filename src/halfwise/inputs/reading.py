"""Reads each kind of inputs: array files, images, arrays in memory, results of a function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError, UsageError
from halfwise.inputs.array_files import find_npz, peek_npz, read_npy, read_npz, version_of
from halfwise.inputs.fitting import InputSpec, as_arrays, format_inputs
from halfwise.inputs.functions import load_function
from halfwise.inputs.pairs import by_input
from halfwise.inputs.samples import Block, LoadedSamples, load_singles, load_stacks, repeatable
from halfwise.records import Note

_MOST_YIELDED = 100_000
"""Most samples that a function may yield. They stay in memory, at half a kilobyte each or more, and
a verdict needs only hundreds; a generator that yields more most likely never ends."""


def load_array_files(
    files: Sequence[Path], specs: Sequence[InputSpec], where: str
) -> LoadedSamples:
    """Load samples from `.npz` files or from `.npy` files.

    Each `.npz` holds all inputs of one or several samples, by input name. Each `.npy` holds one or
    several samples of a model with one input; for several inputs, there is one `.npy` per input,
    named after it.

    Args:
        files: At least one, all of one suffix, in the order of their samples.
        specs: The model's inputs.
        where: Name of the folder or file, for messages.

    Raises:
        CaseError: A file is broken or holds Python objects, or does not fit the model.
    """
    if files[0].suffix.lower() == ".npz":
        find = lru_cache(maxsize=None)(lambda file, _version: find_npz(file))
        # What is compressed cannot be mapped, so the current file stays in memory: samples are
        # consecutive.
        unpacked = lru_cache(maxsize=1)(read_npz)

        def read(file: Path) -> Mapping[str, NDArray[Any]]:
            places = find(file, version_of(file))
            if places is None:
                return unpacked(file)
            return {name: place.map(file) for name, place in places.items()}

        return load_stacks(
            [Block(f.name, partial(read, f), partial(peek_npz, f)) for f in files], specs
        )
    if len(specs) > 1:
        return load_paired_arrays([(where, {file.stem: file for file in files})], specs)
    return load_paired_arrays([(file.name, {specs[0].name: file}) for file in files], specs)


def load_paired_arrays(
    paired: Sequence[tuple[str, Mapping[str, Path]]], specs: Sequence[InputSpec]
) -> LoadedSamples:
    """Load samples from `.npy` files that hold one input each.

    Args:
        paired: The name of a set of files for messages, and input name → file.
        specs: The model's inputs.

    Raises:
        CaseError: A file is broken, or does not fit the model.
    """

    def read(files: Mapping[str, Path]) -> Mapping[str, NDArray[Any]]:
        return {name: read_npy(path) for name, path in files.items()}

    # Read again for each sample: an open map holds a file descriptor, and folders are large.
    return load_stacks([Block(name, partial(read, files)) for name, files in paired], specs)


def load_images(
    named: Sequence[tuple[str, Path | Mapping[str, Path]]],
    specs: Sequence[InputSpec],
    preprocess: str | None,
) -> LoadedSamples:
    """Make one sample from each image, or each set of paired images, with the user's function.

    For pairs, it takes {input name: path}, or each path alone; see `by_input`. It returns a
    dictionary of inputs, or just the array if the model has one input; arrays have the model's
    rank, or lack its batch axis. It runs whenever a sample is requested, and must return the same
    data each time; see `repeatable`.

    Args:
        named: The name of each sample, and the function's argument: the path of the image, or
            {input name: path}.
        specs: The model's inputs.
        preprocess: `file.py:function`.

    Raises:
        UsageError: `preprocess` is missing or has another form.
        CaseError: The function cannot be loaded, or fails on the first image. Its results for other
            images are checked when a sample is loaded; the error then names the image.
    """
    if preprocess is None:
        raise UsageError(
            "The inputs are images, so --preprocess is needed: a function that turns the path of "
            "an image into the model's input.",
            "Add --preprocess file.py:function with the preprocessing used in training.",
        )
    function, first = load_function(preprocess), named[0][1]
    make = by_input(function, first) if isinstance(first, Mapping) else function
    apply = partial(_apply, preprocess, make, specs)
    loaded = load_singles(
        [Block(name, partial(apply, given, name)) for name, given in named], specs
    )
    return replace(
        loaded,
        samples=repeatable(loaded.samples.load, loaded.samples.ids, preprocess),
        notes=(Note(kind="preprocess", facts={"function": preprocess}), *loaded.notes),
    )


def _apply(
    spec: str, make: Callable[[Any], Any], specs: Sequence[InputSpec], argument: object, where: str
) -> dict[str, NDArray[Any]]:
    try:
        result = make(argument)
    except CaseError as error:
        called = " It is called with {input name: path}, or with each path alone."
        hint = f"{error.hint or ''}{called if isinstance(argument, Mapping) else ''}"
        raise CaseError(f"{where}: {error.message}", hint) from error
    if isinstance(result, Mapping):
        return as_arrays(result, where)
    if len(specs) > 1 or result is None:
        raise CaseError(
            f"{where}: {spec} returned {type(result).__name__}; expected "
            f"{'a dictionary of arrays' if len(specs) > 1 else 'an array'}.",
            f"Return a value for: {format_inputs(specs)}.",
        )
    return as_arrays({specs[0].name: result}, where)


def load_mapping(given: Mapping[str, Any], specs: Sequence[InputSpec], where: str) -> LoadedSamples:
    """Load samples from input name → array, interpreted like the content of a `.npz` file.

    Each sample is checked here, one at a time, and copied when it is loaded if it is not aligned.

    Raises:
        CaseError: The arrays do not fit the model, or a value is NaN, infinite or out of range.
    """
    arrays = as_arrays(given, where)
    return _checked(load_stacks([Block(where, lambda: arrays)], specs))


def load_sequence(items: object, specs: Sequence[InputSpec], where: str) -> LoadedSamples:
    """Load one sample from each mapping of input name → array in a sequence.

    Each sample is checked here. Arrays have the model's rank, or lack its batch axis.

    Raises:
        CaseError: It is not a sequence, is empty, or a sample does not fit the model; names the
            sample as `where[i]`.
    """
    if not isinstance(items, Sequence):
        raise CaseError(
            f"The inputs are of type {type(items).__name__}; expected a path, a mapping of arrays "
            "or a sequence of such mappings.",
            "Give {input name: array}.",
        )
    return _load_arrays(
        [_arrays(item, f"{where}[{i}]") for i, item in enumerate(items)], specs, where
    )


def load_stream(source: str, specs: Sequence[InputSpec]) -> LoadedSamples:
    """Load the samples that the user's function yields, and keep them in memory.

    Args:
        source: `file.py:function`; it takes no arguments and must end.
        specs: The model's inputs.

    Raises:
        UsageError: `source` has another form.
        CaseError: The function cannot be loaded, raised, or yielded data that does not fit the
            model.
    """
    where = source.rpartition("/")[2]
    copies: list[dict[str, NDArray[Any]]] = []
    for i, item in enumerate(load_function(source).stream()):
        if i == _MOST_YIELDED:
            raise CaseError(
                f"{where} has yielded {_MOST_YIELDED:,} samples and does not stop.",
                "Stop after a few hundred samples.",
            )
        # Copied one by one: generators often fill the same array again for the next sample.
        given = _arrays(item, f"{where}[{i}]")
        copies.append({name: np.array(array) for name, array in given.items()})
    return _load_arrays(copies, specs, where)


def _load_arrays(
    items: Sequence[Mapping[str, NDArray[Any]]], specs: Sequence[InputSpec], where: str
) -> LoadedSamples:
    if not items:
        raise CaseError(
            f"{where} is empty; expected at least one sample.",
            "Give one dictionary {input name: array} for each sample.",
        )
    blocks = [Block(f"{where}[{i}]", partial(items.__getitem__, i)) for i in range(len(items))]
    return _checked(load_singles(blocks, specs))


def _arrays(item: object, where: str) -> dict[str, NDArray[Any]]:
    if not isinstance(item, Mapping):
        raise CaseError(
            f"{where} is of type {type(item).__name__}; expected a dictionary "
            "{input name: array}.",
            "Name the input even if the model has only one.",
        )
    return as_arrays(item, where)


def _checked(loaded: LoadedSamples) -> LoadedSamples:
    for _ in loaded.samples:
        pass
    return loaded
