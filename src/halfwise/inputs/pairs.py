"""Pairs the files of several inputs."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from halfwise.errors import CaseError


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
