"""Makes samples of image files through the user's preprocessing function."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from halfwise.errors import CaseError, UsageError
from halfwise.inputs.blocks import Block, load_singles
from halfwise.inputs.fitting import as_arrays
from halfwise.inputs.functions import UserFunction, load_function
from halfwise.inputs.pairs import pair_files
from halfwise.inputs.repeatable import repeatable
from halfwise.inputs.spec import InputSpec, LoadedSamples, format_inputs

IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def load_images(
    files: Sequence[Path], specs: Sequence[InputSpec], preprocess: str | None
) -> LoadedSamples:
    """Make one sample of each image: the function gets its path.

    The function returns a dictionary of inputs, or the array alone where the model has one input;
    arrays have the model's rank, or lack its batch axis. It runs each time a sample is asked for,
    and must return the same each time, see `repeatable`.

    Args:
        files: The images, in the order of their samples.
        specs: The model's inputs.
        preprocess: `file.py:function`.

    Raises:
        UsageError: `preprocess` is missing or has another form.
        CaseError: The function cannot be loaded, or fails on the first image. What it returns for
            the others is checked when a sample is loaded; the error then names the image.
    """
    return _load([(file.name, file) for file in files], specs, preprocess)


def load_paired_images(
    folders: Mapping[str, Sequence[Path]], specs: Sequence[InputSpec], preprocess: str | None
) -> LoadedSamples:
    """Make one sample of each set of paired images: the function gets {input name: path}.

    Args:
        folders: Input name → its images, complete.
        specs: The model's inputs.
        preprocess: `file.py:function`, see `load_images` for what it returns.

    Raises:
        UsageError: `preprocess` is missing or has another form.
        CaseError: The images do not pair up; otherwise as for `load_images`.
    """
    return _load(pair_files(folders), specs, preprocess)


def _load(
    named: Sequence[tuple[str, Path | dict[str, Path]]],
    specs: Sequence[InputSpec],
    preprocess: str | None,
) -> LoadedSamples:
    if preprocess is None:
        raise UsageError(
            "The inputs are images and --preprocess is missing, expected a function that turns "
            "the path of an image into the model's input.",
            "Add --preprocess file.py:function with the preprocessing the model was trained with.",
        )
    function = load_function(preprocess)
    blocks = [
        Block(name, functools.partial(_apply, function, argument, specs, name))
        for name, argument in named
    ]
    loaded = load_singles(blocks, specs)
    samples = repeatable(loaded.samples.load, loaded.samples.ids, preprocess)
    return replace(
        loaded, samples=samples, notes=(f"each image goes through {preprocess}", *loaded.notes)
    )


def _apply(
    function: UserFunction, argument: object, specs: Sequence[InputSpec], where: str
) -> dict[str, NDArray[Any]]:
    try:
        result = function(argument)
    except CaseError as error:
        raise CaseError(f"{where}: {error.message}", error.hint) from error
    if isinstance(result, Mapping):
        return as_arrays(result, where)
    if len(specs) > 1 or result is None:
        raise CaseError(
            f"{where}: {function.spec} returned a {type(result).__name__}, expected "
            f"{'a dictionary of arrays' if len(specs) > 1 else 'an array'}.",
            f"Return a value for: {format_inputs(specs)}.",
        )
    return as_arrays({specs[0].name: result}, where)
