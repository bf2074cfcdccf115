"""Finds out what is in a folder: arrays, images, or a sub-folder of either for each input."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from halfwise.errors import CaseError, UsageError
from halfwise.inputs.files import ARRAY_SUFFIXES, load_array_files, load_paired_arrays
from halfwise.inputs.images import IMAGE_SUFFIXES, load_images, load_paired_images
from halfwise.inputs.polygraphy import SUFFIX, load_feeds
from halfwise.inputs.spec import InputSpec, LoadedSamples, format_inputs


def load_folder(folder: Path, specs: Sequence[InputSpec], preprocess: str | None) -> LoadedSamples:
    """Load samples from the files in a folder, in the order of their names.

    Hidden files are passed over; whatever else is neither array nor image is named in a note.

    Args:
        folder: An existing folder, with files of one kind (`.npz`, `.npy`, Polygraphy's `.json` or
            images) or with one sub-folder of `.npy` files or images for each input, named after it.
        specs: The model's inputs.
        preprocess: `file.py:function` for images.

    Raises:
        UsageError: `preprocess` is missing for images, or given for arrays.
        CaseError: The folder is empty, mixes kinds, or its files do not fit the model.
    """
    # The folder "." has no name of its own.
    folder = folder.absolute()
    entries = _entries(folder)
    kind, files = _one_kind(entries, folder)
    if files:
        loaded = _load_files(kind, files, specs, preprocess, folder.name)
        ignored = [entry.name for entry in entries if entry not in files]
    else:
        folders = _folders_by_input(entries, specs, folder)
        loaded = _load_folders(folders, specs, preprocess)
        ignored = [entry.name for entry in entries if not entry.is_dir()]
    if not ignored:
        return loaded
    listed = ", ".join(ignored[:5]) + (", …" if len(ignored) > 5 else "")
    return replace(loaded, notes=(*loaded.notes, f"ignored in {folder.name}: {listed}"))


def data_files(folder: Path) -> tuple[str, list[Path]]:
    """Return the kind of the data files in an existing folder, "images" or a suffix, and them.

    Sorted by name; "" and none where there are none. Hidden files are passed over.

    Raises:
        CaseError: The folder cannot be listed, or mixes kinds.
    """
    folder = folder.absolute()
    return _one_kind(_entries(folder), folder)


def _load_files(
    kind: str,
    files: Sequence[Path],
    specs: Sequence[InputSpec],
    preprocess: str | None,
    where: str,
) -> LoadedSamples:
    if kind == "images":
        return load_images(files, specs, preprocess)
    _refuse_preprocess(preprocess, kind)
    return load_feeds(files, specs) if kind == SUFFIX else load_array_files(files, specs, where)


def _load_folders(
    folders: Mapping[str, Path], specs: Sequence[InputSpec], preprocess: str | None
) -> LoadedSamples:
    kinds, files = set(), {}
    for name, folder in folders.items():
        kind, files[name] = _one_kind(_entries(folder), folder)
        kinds.add(kind)
    if kinds == {"images"}:
        return load_paired_images(files, specs, preprocess)
    if kinds == {".npy"}:
        _refuse_preprocess(preprocess, ".npy")
        return load_paired_arrays(files, specs)
    raise CaseError(
        f"The sub-folders hold {' and '.join(sorted(kind or 'nothing' for kind in kinds))}, "
        "expected .npy files in all or images in all.",
        "A .npz holds all inputs: put such files directly into the folder.",
    )


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
        suffix = entry.suffix.lower()
        if entry.is_file() and suffix in (*ARRAY_SUFFIXES, *IMAGE_SUFFIXES, SUFFIX):
            kinds.setdefault("images" if suffix in IMAGE_SUFFIXES else suffix, []).append(entry)
    if len(kinds) > 1:
        kinds.pop(SUFFIX, None)
    if len(kinds) > 1:
        counts = " and ".join(f"{len(files)} {kind}" for kind, files in sorted(kinds.items()))
        raise CaseError(
            f"{folder.name}: found {counts}, expected files of one kind.",
            "Put each kind into a folder of its own.",
        )
    return next(iter(kinds.items()), ("", []))


def _refuse_preprocess(preprocess: str | None, kind: str) -> None:
    if preprocess is not None:
        raise UsageError(
            f"--preprocess {preprocess} is given, and the inputs are {kind} files; expected "
            "images.",
            "Leave --preprocess out: arrays are given to the model as they are.",
        )
