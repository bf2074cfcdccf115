"""Inputs from separate sources, `left=DIR,right=DIR`: which files form one sample."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from halfwise.errors import CaseError
from halfwise.inputs.fitting import InputSpec, format_inputs
from halfwise.records import Note
from halfwise.user_code import RAISED

Paired = Sequence[tuple[str, Mapping[str, Path]]]
"""The name of each sample, and input name → file."""

_FORM = "Give NAME=FOLDER for each input, separated by commas: left=DIR,right=DIR."


def split_sources(source: str) -> dict[str, Path]:
    """Return the source of each input named by `name=path,name=path`; empty for other text.

    The path of an existing file or folder, or of a function's file, is not such text. Paths may
    contain commas; names may contain neither commas nor "=".

    Raises:
        CaseError: An input is named twice, or without a path.
    """
    name, equals, _ = source.partition("=")
    file = source.rpartition(":")[0]
    if not (name and equals) or Path(source).exists() or (file and Path(file).exists()):
        return {}
    found: dict[str, Path] = {}
    for part in re.split(r",(?=[^,=]+=)", source):
        name, _, path = part.partition("=")
        if name in found:
            raise CaseError(f"Input '{name}' is named twice in {source}; expected once.", _FORM)
        if not path:
            raise CaseError(f"Input '{name}' has no source in {source}.", _FORM)
        found[name] = Path(path)
    return found


def demand_sources(sources: Mapping[str, Path], specs: Sequence[InputSpec] | None = None) -> None:
    """Refuse sources that are missing or equal, or that do not match `specs`.

    Raises:
        CaseError: As above; it names the first fault.
    """
    names = [spec.name for spec in specs or ()]
    inputs = f"The model's inputs are: {format_inputs(specs or ())}."
    for name, path in sources.items():
        if specs is not None and name not in names:
            raise CaseError(
                f"There is no file or folder {name}={path}, and the model has no input '{name}'; "
                f"expected a source for each of: {', '.join(names)}.",
                inputs,
            )
        if not path.exists():
            raise CaseError(
                f"There is no file or folder {path} for input '{name}'; expected images or .npy "
                "files there.",
                _FORM,
            )
    if missing := [name for name in names if name not in sources]:
        raise CaseError(
            f"Input '{missing[0]}' has no source; expected one for each of: {', '.join(names)}.",
            inputs,
        )
    for (one, path), (other, second) in combinations(sources.items(), 2):
        if path.resolve() == second.resolve():
            raise CaseError(
                f"The inputs '{one}' and '{other}' are both read from {path}, which would pair "
                "every file with itself; expected different sources.",
                "Copy or link the files of each input into a separate folder.",
            )


def pair_files(folders: Mapping[str, Sequence[Path]]) -> tuple[Paired, tuple[Note, ...]]:
    """Pair files by equal names, by the last number in them, or by order with a warning.

    `left/0001.png` pairs with `right/0001.jpg`, and `left/left_1.png` with `right/right_001.png`.
    Order is used only if all inputs have the same number of files, and no name or number in common:
    otherwise a file may be missing, which would shift all the others.

    Args:
        folders: Input name → files, at least one each.

    Returns:
        One entry per sample, named after the first input's file and in the order of these files;
        and a note on how they were paired, unless by equal names.

    Raises:
        CaseError: They cannot be paired.
    """
    for by, key in _KEYS.items():
        keyed = {name: {key(file): file for file in files} for name, files in folders.items()}
        first = next(iter(keyed.values()))
        unique = all(len(keyed[name]) == len(files) for name, files in folders.items())
        equal = all(each.keys() == first.keys() for each in keyed.values())
        if unique and equal and None not in first:
            paired = [
                (file.name, {name: each[place] for name, each in keyed.items()})
                for place, file in first.items()
            ]
            return paired, () if by == "name" else (_told(by, paired),)
    if len({len(files) for files in folders.values()}) > 1 or _in_common(folders):
        raise _unpaired(folders)
    paired = [
        (row[0].name, dict(zip(folders, row, strict=True)))
        for row in zip(*folders.values(), strict=True)
    ]
    return paired, (_told("order", paired),)


def _last_number(file: Path) -> int | None:
    numbers = re.findall(r"\d+", file.stem)
    return int(numbers[-1]) if numbers else None


_KEYS: Mapping[str, Callable[[Path], str | int | None]] = {
    "name": lambda file: file.stem,
    "number": _last_number,
}


def _told(by: str, paired: Paired) -> Note:
    names = tuple(file.name for file in paired[0][1].values())
    return Note(
        kind="paired",
        severity="warning" if by == "order" else "info",
        facts={"by": by, "names": names},
    )


def _in_common(folders: Mapping[str, Sequence[Path]]) -> bool:
    """Return whether two inputs have a file of the same name, or with the same number."""
    keys = [{key(f) for f in files} for files in folders.values() for key in _KEYS.values()]
    return any((a & b) - {None} for a, b in combinations(keys, 2))


def _unpaired(folders: Mapping[str, Sequence[Path]]) -> CaseError:
    counts = ", ".join(f"'{name}' {len(files)}" for name, files in folders.items())
    (first, files), *others = folders.items()
    stems = {file.stem for file in files}
    odd = [(name, stems ^ {file.stem for file in files}) for name, files in others]
    where = next(
        (f"'{first}' and '{name}' differ in {min(apart)}" for name, apart in odd if apart),
        "one name occurs twice",
    )
    return CaseError(
        f"The files of the inputs do not pair up ({counts}; {where}); expected files with the "
        "same names or numbers for every input.",
        "Give the files of one sample the same name: left/0001.png and right/0001.png.",
    )


def by_input(function: Callable[[Any], Any], first: Mapping[str, object]) -> Callable[[Any], Any]:
    """Return a function that makes a sample of {input name: its source}.

    This is the function itself. If it fails on the whole dictionary of the first sample but works
    on each input alone, it is called per input.
    """
    try:
        function(first)
    # Whatever it raises, it raises again when its result is used.
    except RAISED:
        try:
            for given in first.values():
                function(given)
        except RAISED:
            return function
        return lambda given: {name: function(one) for name, one in given.items()}
    return function
