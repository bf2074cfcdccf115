"""Finds out what the user gave and hands it to the loader for it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from halfwise.errors import CaseError, UsageError
from halfwise.inputs.files import ARRAY_SUFFIXES, load_array_files
from halfwise.inputs.folders import load_folder
from halfwise.inputs.images import IMAGE_SUFFIXES, load_images
from halfwise.inputs.memory import load_mapping, load_sequence, load_stream
from halfwise.inputs.polygraphy import SUFFIX, load_feeds
from halfwise.inputs.spec import InputSpec, LoadedSamples

_FORMS = (
    "Give a .npz, .npy or Polygraphy .json file, a folder of them, a folder of images with "
    "--preprocess, or file.py:function."
)


def load_samples(
    source: str | Path | Sequence[Mapping[str, NDArray[Any]]] | Mapping[str, NDArray[Any]],
    specs: Sequence[InputSpec],
    *,
    preprocess: str | None = None,
) -> LoadedSamples:
    """Turn what the user gave into samples.

    Files are read when a sample is asked for, and its values are checked then. Arrays in memory,
    and what `file.py:function` yields, are checked here. To say what was understood, at most 16
    samples are loaded.

    Args:
        source: One of:

            * a `.npz` file whose keys are input names (any name where the model has one input);
            * a `.npy` file, for a model with one input;
            * a folder of `.npz` or `.npy` files, sorted by name; `.npy` for several inputs as one
              file per input, named after it, or in sub-folders named after the inputs;
            * a `.json` file of Polygraphy's `--save-inputs`, or a folder of them;
            * an image, a folder of images, sorted by name, or sub-folders of images named after
              the inputs, with `preprocess`;
            * `file.py:function`, which takes no arguments and yields one dictionary per sample;
              it has to come to an end, and the samples are kept in memory;
            * a mapping of arrays, understood like a `.npz`, or a sequence of mappings of one
              sample each; they are not copied.
        specs: The model's inputs, at least one.
        preprocess: `file.py:function` that turns the path of an image, or for sub-folders a
            dictionary {input name: path}, into a sample.

    Returns:
        At least one sample, and what was understood.

    Raises:
        UsageError: `preprocess` is missing for images, or given for anything else.
        CaseError: The data cannot be read or does not fit the model.
    """
    if isinstance(source, str | Path):
        return _load_path(str(source), specs, preprocess)
    if preprocess is not None:
        raise _misused(preprocess, "arrays in memory")
    if isinstance(source, Mapping):
        return load_mapping(source, specs, "inputs")
    return load_sequence(source, specs, "inputs")


def _load_path(source: str, specs: Sequence[InputSpec], preprocess: str | None) -> LoadedSamples:
    path = Path(source)
    suffix = path.suffix.lower()
    if path.is_dir():
        return load_folder(path, specs, preprocess)
    if suffix in IMAGE_SUFFIXES and path.is_file():
        return load_images([path], specs, preprocess)
    if preprocess is not None:
        raise _misused(preprocess, source)
    if ".py:" in path.name or suffix == ".py":
        return load_stream(source, specs)
    if not path.is_file():
        raise CaseError(f"Found no file or folder {source}, expected inputs there.", _FORMS)
    if suffix in ARRAY_SUFFIXES:
        return load_array_files([path], specs, path.name)
    if suffix == SUFFIX:
        return load_feeds([path], specs)
    raise CaseError(
        f"{path.name}: found the suffix '{path.suffix}', expected {', '.join(ARRAY_SUFFIXES)}, "
        f"{SUFFIX} or .py:function.",
        _FORMS,
    )


def _misused(preprocess: str, source: str) -> UsageError:
    return UsageError(
        f"--preprocess {preprocess} is given, and the inputs are {source}; expected images.",
        "Leave --preprocess out: arrays are given to the model as they are.",
    )
