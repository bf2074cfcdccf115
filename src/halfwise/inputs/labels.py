"""Reads labels for a task metric."""

import csv
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from halfwise.errors import CaseError
from halfwise.files import is_regular, no_file, read_text
from halfwise.inputs.array_files import peek_arrays, read_arrays


def load_labels(path: Path, count: int) -> tuple[Any, ...]:
    """Read one label per sample.

    Args:
        path: A `.json` file with a list; a `.npy` file or a `.npz` file with one array, whose
            first axis counts the samples; a `.txt` file, or a `.csv` file with one column and no
            header, with one label per line (all integers, all floats, or else all text).
        count: Number of samples.

    Returns:
        `count` labels: what JSON holds; Python numbers of a one-dimensional array and otherwise
        its rows; int, float or str of a text file. NaN is passed on to the metric.

    Raises:
        CaseError: The file is missing, broken or of another kind, or does not hold `count` labels.
    """
    if not is_regular(path):
        raise CaseError(no_file(path), "Give a file of labels.")
    readers: dict[str, Callable[[Path], Sequence[Any]]] = {
        ".json": _read_json,
        **dict.fromkeys((".npy", ".npz"), partial(_read_array, count=count)),
        ".txt": _read_lines,
        ".csv": _read_lines,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise CaseError(
            f"Labels {path.name}: found the suffix '{path.suffix}'; expected one of "
            f"{', '.join(readers)}.",
            "Write the labels to a .txt file, one per line.",
        )
    labels = reader(path)
    if len(labels) != count:
        raise CaseError(
            f"Labels {path.name}: found {len(labels)} for {count} samples; expected one each.",
            "Give them in the order of the samples, without a header line.",
        )
    return tuple(labels)


def _read_json(path: Path) -> tuple[Any, ...]:
    try:
        content = json.loads(_read_text(path))
    # ValueError: not JSON, or a number of thousands of digits; RecursionError: nested too deeply.
    except (ValueError, RecursionError) as error:
        raise CaseError(
            f"Labels {path.name}: found broken JSON ({error}); expected a list.",
            "Write it with json.dump(list, file).",
        ) from error
    if not isinstance(content, list):
        raise CaseError(
            f"Labels {path.name}: found a {type(content).__name__}; expected a list.",
            "Write one entry per sample, in their order: [3, 1, 4].",
        )
    return tuple(content)


def _read_array(path: Path, count: int) -> Sequence[Any]:
    arrays = peek_arrays(path)
    if len(arrays) != 1:
        names = ", ".join(list(arrays)[:5]) or "none"
        raise CaseError(
            f"Labels {path.name}: found {len(arrays)} arrays ({names}); expected one.",
            "Save the labels alone with np.save(path, labels).",
        )
    array = next(iter(arrays.values()))
    if array.ndim == 0:
        raise CaseError(
            f"Labels {path.name}: found a scalar; expected an axis that counts the samples.",
            "Save a one-dimensional array.",
        )
    if len(array) != count:
        # Only their number is known yet; a malicious file may announce any number.
        return range(len(array))
    array = next(iter(read_arrays(path).values()))
    return [row.item() if array.ndim == 1 else np.array(row) for row in array]


def _read_lines(path: Path) -> tuple[Any, ...]:
    text = _read_text(path).removesuffix("\n")
    lines = text.split("\n") if text else []
    if path.suffix.lower() == ".csv":
        lines = [_only_cell(line, number, path) for number, line in enumerate(lines, 1)]
    lines = [line.strip() for line in lines]
    if "" in lines:
        raise CaseError(
            f"Labels {path.name}: line {lines.index('') + 1} is empty; expected one label "
            "per line.",
            "Remove the line. If a label is missing, remove its sample too.",
        )
    for number_type in (int, float):
        try:
            return tuple(number_type(line) for line in lines)
        except ValueError:
            continue
    return tuple(lines)


def _only_cell(line: str, number: int, path: Path) -> str:
    try:
        row = next(csv.reader([line]), [])
    except csv.Error as error:
        raise CaseError(
            f"Labels {path.name}: line {number} cannot be read ({error}); expected one label.",
            "Keep only the column with the labels.",
        ) from error
    if len(row) > 1:
        raise CaseError(
            f"Labels {path.name}: line {number} has {len(row)} columns; expected one.",
            "Keep only the column with the labels.",
        )
    return "".join(row)


def _read_text(path: Path) -> str:
    try:
        return read_text(path, encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CaseError(
            f"Labels {path.name}: found bytes that are not UTF-8 ({error.reason} at byte "
            f"{error.start}); expected text.",
            "Save the file as UTF-8.",
        ) from error
    except OSError as error:
        raise CaseError(
            f"Labels {path.name}: the file cannot be read ({error.strerror}); expected labels.",
            "Check its permissions.",
        ) from error
