"""Finds out what the user named, and hands it to what reads it (`reading`, `recorded`)."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from halfwise.declarations import Inputs
from halfwise.errors import CaseError, UsageError
from halfwise.inputs.array_files import ARRAY_SUFFIXES
from halfwise.inputs.fitting import InputSpec, format_inputs
from halfwise.inputs.reading import (
    load_array_files,
    load_images,
    load_mapping,
    load_paired_arrays,
    load_sequence,
    load_stream,
)
from halfwise.inputs.recorded import SUFFIX, load_feeds
from halfwise.inputs.samples import LoadedSamples
from halfwise.inputs.synthetic import judge_inputs, random_samples
from halfwise.records import Note

IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
IMAGES = "images"
"""The kind of files with any of these suffixes; of all others, the suffix is the kind."""
RANDOM = "random"
"""The inputs that are made up on request."""
_FORMS = (
    "Give a .npz, .npy or Polygraphy .json file, a folder of them, a folder of images with "
    "--preprocess, or file.py:function."
)


def load_inputs(
    inputs: Inputs, specs: Sequence[InputSpec], *, preprocess: str | None = None, seed: int = 0
) -> LoadedSamples:
    """Return the samples that `inputs` names, or random ones, and whether they look real.

    Args:
        inputs: "random", or as for `load_samples`.
        specs: The model's inputs, at least one.
        preprocess: As for `load_samples`.
        seed: Of random samples.

    Raises:
        CaseError, UsageError: they cannot be used.
    """
    if isinstance(inputs, str) and inputs == RANDOM:
        return random_samples(specs, seed=seed)
    loaded = load_samples(inputs, specs, preprocess=preprocess)
    made_up, real = judge_inputs(loaded.samples, specs)
    warnings = (Note(kind="made-up", severity="warning", made_up=found) for found in made_up)
    return replace(loaded, notes=(*loaded.notes, *warnings), made_up=made_up, real=real)


def load_samples(
    source: Inputs, specs: Sequence[InputSpec], *, preprocess: str | None = None
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
    _refuse_preprocess(preprocess, "arrays in memory")
    if isinstance(source, Mapping):
        return load_mapping(source, specs, "inputs")
    return load_sequence(source, specs, "inputs")


def data_files(path: Path) -> tuple[str, list[Path]]:
    """Return the kind of the data files at a path, "images" or a suffix, and them.

    They are those of a folder, sorted by name, or the file itself, whatever its suffix; none where
    there are none. Hidden files are passed over.

    Raises:
        CaseError: The folder cannot be listed, or mixes kinds.
    """
    if not path.is_dir():
        return _kind(path), [path] if path.is_file() else []
    folder = path.absolute()
    return _one_kind(_entries(folder), folder)


def _load_path(source: str, specs: Sequence[InputSpec], preprocess: str | None) -> LoadedSamples:
    path = Path(source)
    if path.is_dir():
        return _load_folder(path, specs, preprocess)
    kind, files = data_files(path)
    if kind != IMAGES or not files:
        _refuse_preprocess(preprocess, source)
    if ".py:" in path.name or kind == ".py":
        return load_stream(source, specs)
    if not files:
        raise CaseError(f"Found no file or folder {source}, expected inputs there.", _FORMS)
    if kind not in (*ARRAY_SUFFIXES, IMAGES, SUFFIX):
        raise CaseError(
            f"{path.name}: found the suffix '{path.suffix}', expected {', '.join(ARRAY_SUFFIXES)}, "
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
    """Load samples from the files in a folder, in the order of their names.

    Hidden files are passed over; whatever else is no data is named in a note.
    """
    # The folder "." has no name of its own.
    folder = folder.absolute()
    entries = _entries(folder)
    kind, files = _one_kind(entries, folder)
    if files:
        loaded = _load_files(kind, files, specs, preprocess, folder.name)
        ignored = [entry.name for entry in entries if entry not in files]
    else:
        loaded = _load_folders(_folders_by_input(entries, specs, folder), specs, preprocess)
        ignored = [entry.name for entry in entries if not entry.is_dir()]
    if not ignored:
        return loaded
    note = Note(kind="ignored", facts={"folder": folder.name, "names": tuple(ignored)})
    return replace(loaded, notes=(*loaded.notes, note))


def _load_folders(
    folders: Mapping[str, Path], specs: Sequence[InputSpec], preprocess: str | None
) -> LoadedSamples:
    found = {name: data_files(folder) for name, folder in folders.items()}
    kinds = {kind for kind, _ in found.values()}
    if kinds not in ({IMAGES}, {".npy"}):
        raise CaseError(
            f"The sub-folders hold {' and '.join(sorted(kind or 'nothing' for kind in kinds))}, "
            "expected .npy files in all or images in all.",
            "A .npz holds all inputs: put such files directly into the folder.",
        )
    if kinds == {".npy"}:
        _refuse_preprocess(preprocess, ".npy files")
    paired = pair_files({name: files for name, (_, files) in found.items()})
    if kinds == {".npy"}:
        return load_paired_arrays(paired, specs)
    return load_images(paired, specs, preprocess)


def _folders_by_input(
    entries: Sequence[Path], specs: Sequence[InputSpec], folder: Path
) -> dict[str, Path]:
    found = {entry.name: entry for entry in entries if entry.is_dir()}
    expected = [spec.name for spec in specs]
    if set(found) == set(expected):
        return {name: found[name] for name in expected}
    what = f"the sub-folders {', '.join(found)}" if found else "no inputs"
    raise CaseError(
        f"{folder.name}: found {what}, expected {', '.join(ARRAY_SUFFIXES)} or image files, or one "
        f"sub-folder for each input: {', '.join(expected)}.",
        f"The model's inputs are: {format_inputs(specs)}.",
    )


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise CaseError(
            f"{folder} cannot be listed ({error.strerror}), expected a readable folder.",
            "Check its permissions.",
        ) from error


def _one_kind(entries: Sequence[Path], folder: Path) -> tuple[str, list[Path]]:
    """Return the kind of the data files in a folder, and those files; "" and none without any.

    JSON beside other data is none itself: labels, say.
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
            f"{folder.name}: found {counts}, expected files of one kind.",
            "Put each kind into a folder of its own.",
        )
    return next(iter(kinds.items()), ("", []))


def _kind(path: Path) -> str:
    suffix = path.suffix.lower()
    return IMAGES if suffix in IMAGE_SUFFIXES else suffix


def _refuse_preprocess(preprocess: str | None, what: str) -> None:
    if preprocess is not None:
        raise UsageError(
            f"--preprocess {preprocess} is given, and the inputs are {what}; expected images.",
            "Leave --preprocess out: arrays are given to the model as they are.",
        )


def pair_files(folders: Mapping[str, Sequence[Path]]) -> list[tuple[str, dict[str, Path]]]:
    """Pair files by equal names, or else by the last number in their names.

    `left/0001.png` goes with `right/0001.jpg`, and `left/left_1.png` with `right/right_001.png`.
    Position alone never pairs files: one file missing would shift all the others.

    Args:
        folders: Input name → files, at least one each.

    Returns:
        One entry per sample: the first input's file name and input name → file. In the order of
        the first input's files.

    Raises:
        CaseError: Neither names nor numbers pair every file of one input with one of each other.
    """
    keys: tuple[Callable[[Path], str | int | None], ...] = (lambda file: file.stem, _last_number)
    for key in keys:
        keyed = {name: {key(file): file for file in files} for name, files in folders.items()}
        first = next(iter(keyed.values()))
        unique = all(len(keyed[name]) == len(files) for name, files in folders.items())
        equal = all(each.keys() == first.keys() for each in keyed.values())
        if unique and equal and None not in first:
            return [
                (file.name, {name: each[place] for name, each in keyed.items()})
                for place, file in first.items()
            ]
    raise _unpaired(folders)


def _last_number(file: Path) -> int | None:
    numbers = re.findall(r"\d+", file.stem)
    return int(numbers[-1]) if numbers else None


def _unpaired(folders: Mapping[str, Sequence[Path]]) -> CaseError:
    counts = ", ".join(f"'{name}' {len(files)}" for name, files in folders.items())
    (first, files), *others = folders.items()
    stems = {file.stem for file in files}
    odd = [(name, stems ^ {file.stem for file in files}) for name, files in others]
    where = next(
        (f"'{first}' and '{name}' differ in {min(apart)}" for name, apart in odd if apart),
        "a name occurs twice",
    )
    return CaseError(
        f"The files of the inputs do not pair up ({counts}; {where}), expected equally named or "
        "equally numbered files in every sub-folder.",
        "Name the files of one sample alike, as in left/0001.png and right/0001.png.",
    )
