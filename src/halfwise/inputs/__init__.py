"""Inputs: turns the user's data into samples that fit the model, and reports how it was read.

`load_inputs` finds out what the user named and reads it; `halfwise.options.loading` builds a case
from the result. `samples` splits arrays into samples, holds some out, and finds those that differ
from all that the search has seen; `fitting` fits each sample to the model's inputs, and finds which
files form one sample.

* `array_files` and `functions` open array files and user code.
* `recorded` opens Polygraphy's files, makes random samples, and tells generated from real data.

User data is untrusted: nothing is unpickled. A `file.py:function` does run, as requested.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import hash_together
from halfwise.declarations import Inputs
from halfwise.errors import CaseError, UsageError
from halfwise.files import no_file
from halfwise.inputs.array_files import ARRAY_SUFFIXES, load_labels, peek_npz, read_npy, read_npz
from halfwise.inputs.fitting import (
    InputSpec,
    Paired,
    as_arrays,
    demand_sources,
    format_inputs,
    pair_files,
    split_sources,
)
from halfwise.inputs.recorded import (
    SUFFIX,
    fit_recorded,
    holds_outputs,
    judge_inputs,
    load_feeds,
    load_recorded,
    random_samples,
)
from halfwise.inputs.samples import (
    MOST_SAMPLES,
    Block,
    LoadedSamples,
    Rows,
    load_singles,
    load_stacks,
    repeatable,
    split_heldout,
    unseen,
)
from halfwise.records import Note, replace
from halfwise.user_code import UserFunction, load_function
from halfwise.wording import listed

__all__ = [
    "RANDOM",
    "InputSpec",
    "LoadedSamples",
    "Rows",
    "UserFunction",
    "fit_recorded",
    "hash_together",
    "holds_outputs",
    "judge_inputs",
    "load_function",
    "load_inputs",
    "load_labels",
    "load_recorded",
    "load_samples",
    "random_samples",
    "split_heldout",
    "split_sources",
    "unseen",
]


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
        # Samples are consecutive, so the file of the current one stays in memory.
        read = lru_cache(maxsize=1)(read_npz)
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

    For pairs, it takes {input name: path}. It returns a dictionary of inputs, or just the array if
    the model has one input; arrays have the model's rank, or lack its batch axis. It runs
    whenever a sample is requested, and must return the same data each time; see `repeatable`.

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
    apply = partial(_apply, preprocess, load_function(preprocess), specs)
    loaded = load_singles(
        [Block(name, partial(apply, source, name)) for name, source in named], specs
    )
    samples = repeatable(loaded.samples.load, loaded.samples.ids, preprocess)
    note = Note(kind="preprocess", facts={"function": preprocess})
    return replace(loaded, samples=samples, notes=(note, *loaded.notes))


def _apply(
    spec: str, make: Callable[[Any], Any], specs: Sequence[InputSpec], argument: object, where: str
) -> dict[str, NDArray[Any]]:
    try:
        result = make(argument)
    except CaseError as error:
        called = " It is called with {input name: path}."
        hint = f"{error.hint or ''}{called if isinstance(argument, Mapping) else ''}"
        raise CaseError(f"{where}: {error.message}", hint) from error
    if not isinstance(result, Mapping):
        if len(specs) > 1 or result is None:
            raise CaseError(
                f"{where}: {spec} returned {type(result).__name__}; expected "
                f"{'a dictionary of arrays' if len(specs) > 1 else 'an array'}.",
                f"Return a value for: {format_inputs(specs)}.",
            )
        result = {specs[0].name: result}
    # Copied, because functions may fill the same array again for the next sample.
    return {name: np.array(array) for name, array in as_arrays(result, where).items()}


def load_mapping(
    values: Mapping[str, Any], specs: Sequence[InputSpec], where: str
) -> LoadedSamples:
    """Load samples from input name → array, interpreted like the content of a `.npz` file.

    Each sample is checked here, one at a time, and copied when it is loaded if it is not aligned.

    Raises:
        CaseError: The arrays do not fit the model, or a value is NaN, infinite or out of range.
    """
    arrays = as_arrays(values, where)
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
        if i == MOST_SAMPLES:
            raise CaseError(
                f"{where} has yielded {MOST_SAMPLES:,} samples and does not stop.",
                "Stop after a few hundred samples.",
            )
        # Copied one by one: generators often fill the same array again for the next sample.
        values = _arrays(item, f"{where}[{i}]")
        copies.append({name: np.array(array) for name, array in values.items()})
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


IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
IMAGES = "images"
"""The kind of files with any of `IMAGE_SUFFIXES`; for others, the suffix is the kind."""
RANDOM = "random"
"""The name for random inputs."""
_FORMS = (
    "Give a .npz, .npy or Polygraphy .json file, a folder of such files, a folder of images with "
    "--preprocess, file.py:function, or NAME=FOLDER,NAME=FOLDER for several inputs."
)


def load_inputs(
    inputs: Inputs, specs: Sequence[InputSpec], *, preprocess: str | None = None
) -> LoadedSamples:
    """Return the samples that `inputs` names, or random ones, and whether they look real.

    Args:
        inputs: "random", or as for `load_samples`.
        specs: The model's inputs, at least one.
        preprocess: As for `load_samples`.

    Raises:
        CaseError, UsageError: as for `load_samples` and `random_samples`.
    """
    if isinstance(inputs, str) and inputs == RANDOM:
        return random_samples(specs)
    loaded = load_samples(inputs, specs, preprocess=preprocess)
    made_up, real = judge_inputs(loaded.samples, specs)
    warnings = (Note(kind="made-up", severity="warning", made_up=one) for one in made_up)
    return replace(loaded, notes=(*loaded.notes, *warnings), made_up=made_up, real=real)


def load_samples(
    source: Inputs, specs: Sequence[InputSpec], *, preprocess: str | None = None
) -> LoadedSamples:
    """Turn the user's data into samples.

    Files are read, and their values checked, when a sample is requested. Arrays in memory and the
    results of `file.py:function` are checked here. At most 16 samples are loaded to report how the
    data was understood.

    Args:
        source: One of:

            * a `.npz` file whose keys are input names (any name where the model has one input);
            * a `.npy` file, for a model with one input;
            * a folder of `.npz` or `.npy` files, sorted by name; `.npy` for several inputs as one
              file per input, named after it;
            * a `.json` file of Polygraphy's `--save-inputs`, or a folder of them;
            * an image, or a folder of images, sorted by name, with `preprocess`;
            * `name=path,name=path`, or {input name: path}: a separate source for each input, of
              images or `.npy` files, which are paired by `pair_files`;
            * `file.py:function`, which takes no arguments and yields one dictionary per sample;
              it must end, and the samples are kept in memory;
            * a mapping of arrays, read like a `.npz`, or a sequence of mappings of one sample each;
              they are not copied.
        specs: The model's inputs, at least one.
        preprocess: `file.py:function` that turns the path of an image into a sample. For paired
            images, it takes a dictionary {input name: path}.

    Returns:
        At least one sample, and what was understood.

    Raises:
        UsageError: `preprocess` is missing for images, or given for anything else.
        CaseError: The data cannot be read or does not fit the model.
    """
    if isinstance(source, str | Path):
        return _load_path(str(source), specs, preprocess)
    if isinstance(source, Mapping) and (paths := _paths(source, specs)):
        return _load_sources(paths, specs, preprocess)
    _refuse_preprocess(preprocess, "arrays in memory")
    if isinstance(source, Mapping):
        return load_mapping(source, specs, "inputs")
    return load_sequence(source, specs, "inputs")


def data_files(path: Path) -> tuple[str, list[Path]]:
    """Return the data files at a path, and their kind: "images" or a suffix.

    For a folder, these are its data files sorted by name; for a file, the file itself, whatever its
    suffix. Hidden files are ignored.

    Raises:
        CaseError: The folder cannot be read, or mixes kinds.
    """
    if not path.is_dir():
        return _kind(path), [path] if path.is_file() else []
    folder = path.absolute()
    return _one_kind(_entries(folder), folder)


def _paths(values: Mapping[str, Any], specs: Sequence[InputSpec]) -> dict[str, Path]:
    """Return a mapping of paths, or an empty one for anything else, such as text inputs."""
    kind = Path if any(spec.dtype.kind == "O" for spec in specs) else (str, Path)
    if not all(isinstance(value, kind) for value in values.values()):
        return {}
    return {name: Path(value) for name, value in values.items()}


def _load_path(source: str, specs: Sequence[InputSpec], preprocess: str | None) -> LoadedSamples:
    if sources := split_sources(source):
        return _load_sources(sources, specs, preprocess)
    path = Path(source)
    if path.is_dir():
        return _load_folder(path, specs, preprocess)
    kind, files = data_files(path)
    if kind != IMAGES or not files:
        _refuse_preprocess(preprocess, source)
    if ".py:" in path.name or kind == ".py":
        return load_stream(source, specs)
    if not files:
        raise CaseError(no_file(source, "file or folder"), _FORMS)
    if kind not in (*ARRAY_SUFFIXES, IMAGES, SUFFIX):
        raise CaseError(
            f"{path.name}: found the suffix '{path.suffix}'; expected {', '.join(ARRAY_SUFFIXES)}, "
            f"{SUFFIX} or .py:function.",
            _FORMS,
        )
    return _load_files(kind, files, specs, preprocess, path.name)


def _load_files(
    kind: str,
    files: Sequence[Path],
    specs: Sequence[InputSpec],
    preprocess: str | None,
    where: str,
) -> LoadedSamples:
    if kind == IMAGES:
        return load_images([(file.name, file) for file in files], specs, preprocess)
    _refuse_preprocess(preprocess, f"{kind} files")
    return load_feeds(files, specs) if kind == SUFFIX else load_array_files(files, specs, where)


def _load_folder(folder: Path, specs: Sequence[InputSpec], preprocess: str | None) -> LoadedSamples:
    """Load samples from the files in a folder, sorted by name.

    Hidden files are ignored; a note names all other files that are not data.
    """
    # The folder "." has no name of its own.
    folder = folder.absolute()
    entries = _entries(folder)
    kind, files = _one_kind(entries, folder)
    if not files:
        names = listed([entry.name for entry in entries]) or "nothing"
        raise CaseError(
            f"{folder.name} holds {names}; expected {', '.join(ARRAY_SUFFIXES)} or image files.",
            "Give the folder that holds the data itself; for several inputs, a folder for each: "
            f"{','.join(f'{spec.name}=FOLDER' for spec in specs)}.",
        )
    loaded = _load_files(kind, files, specs, preprocess, folder.name)
    ignored = [entry.name for entry in entries if entry not in files]
    if not ignored:
        return loaded
    note = Note(kind="ignored", facts={"folder": folder.name, "names": tuple(ignored)})
    return replace(loaded, notes=(*loaded.notes, note))


def _load_sources(
    sources: Mapping[str, Path], specs: Sequence[InputSpec], preprocess: str | None
) -> LoadedSamples:
    demand_sources(sources, specs)
    kind, paired = paired_files({spec.name: sources[spec.name] for spec in specs})
    if kind == IMAGES:
        return load_images(paired, specs, preprocess)
    _refuse_preprocess(preprocess, f"{kind} files")
    return load_paired_arrays(paired, specs)


def paired_files(sources: Mapping[str, Path]) -> tuple[str, Paired]:
    """Return the kind of several inputs' files, images or `.npy`, and the files in pairs.

    Args:
        sources: Input name → a folder, or a file.

    Raises:
        CaseError: They hold something else or different kinds, or do not pair up.
    """
    found = {name: data_files(path) for name, path in sources.items()}
    held = {kind if files else "" for kind, files in found.values()}
    if len(held) > 1 or not held <= {IMAGES, ".npy"}:
        each = ", ".join(f"{k if f else 'nothing'} for '{n}'" for n, (k, f) in found.items())
        raise CaseError(
            f"The sources hold {each}; expected {IMAGES} or .npy, of one kind for all inputs.",
            "A .npz file holds all inputs, so give it, or a folder of such files, without NAME=.",
        )
    return held.pop(), pair_files({name: files for name, (_, files) in found.items()})


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise CaseError(
            f"The folder {folder} cannot be read ({error.strerror}).",
            "Check its permissions.",
        ) from error


def _one_kind(entries: Sequence[Path], folder: Path) -> tuple[str, list[Path]]:
    """Return the kind of the data files in a folder, and the files; "" and none without data.

    JSON next to other data does not count: it may be labels.
    """
    kinds: dict[str, list[Path]] = {}
    for entry in entries:
        kind = _kind(entry)
        if entry.is_file() and kind in (*ARRAY_SUFFIXES, IMAGES, SUFFIX):
            kinds.setdefault(kind, []).append(entry)
    if len(kinds) > 1:
        kinds.pop(SUFFIX, None)
    if len(kinds) > 1:
        counts = " and ".join(f"{len(files)} {kind}" for kind, files in sorted(kinds.items()))
        raise CaseError(
            f"{folder.name}: found {counts}; expected files of one kind.",
            "Use a separate folder for each kind.",
        )
    return next(iter(kinds.items()), ("", []))


def _kind(path: Path) -> str:
    suffix = path.suffix.lower()
    return IMAGES if suffix in IMAGE_SUFFIXES else suffix


def _refuse_preprocess(preprocess: str | None, what: str) -> None:
    if preprocess is not None:
        raise UsageError(
            f"The preprocessing {preprocess} is given, but the inputs are {what}, not images.",
            "Leave it out: arrays go to the model unchanged.",
        )
