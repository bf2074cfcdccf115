"""Reads raw samples: what preprocessing functions are called with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.inputs.files import ARRAY_SUFFIXES, peek_npz, read_npy, read_npz
from halfwise.inputs.folders import data_files
from halfwise.inputs.images import IMAGE_SUFFIXES
from halfwise.inputs.layout import MOST_SAMPLES

_STACKED = 4
"""Axes from which on the first counts samples: an image has at most three."""


@dataclass(frozen=True)
class RawSamples:
    """Samples before any preprocessing.

    Attributes:
        ids: One identifier per sample.
        argument: What a function is called with for sample i: the path of an image, or an array.
        pixels: The same as an array; None where it cannot be decoded here.
        notes: What was understood.
    """

    ids: tuple[str, ...]
    argument: Callable[[int], object] = field(repr=False)
    pixels: Callable[[int], NDArray[Any] | None] = field(repr=False)
    notes: tuple[str, ...] = ()


def load_raw(source: str | Path) -> RawSamples:
    """Find the raw samples in a folder or file.

    Args:
        source: An image or a folder of images, whose paths are the samples; a `.npy` or `.npz`
            file, or a folder of them: an array of four axes or more is a sample for each place on
            its first, any other is one sample, under whatever name.

    Raises:
        CaseError: There is nothing of that kind.
    """
    path = Path(source)
    if path.is_dir():
        kind, files = data_files(path)
    else:
        kind, files = path.suffix.lower(), [path] if path.is_file() else []
        kind = "images" if kind in IMAGE_SUFFIXES else kind
    if kind == "images" and files:
        return _images(files)
    if kind in ARRAY_SUFFIXES and files:
        return _arrays(files)
    raise CaseError(
        f"Found no raw samples at {source}, expected images, {' or '.join(ARRAY_SUFFIXES)} files.",
        "Give a folder of images, or the raw images as arrays [N, H, W, 3] in a .npz.",
    )


def _images(files: Sequence[Path]) -> RawSamples:
    decoded = _decoder()
    notes = (
        []
        if decoded
        else ["resize kernels are not fitted: Pillow is missing (pip install 'halfwise[images]')"]
    )
    return RawSamples(
        tuple(file.name for file in files),
        lambda i: files[i],
        lambda i: decoded(files[i]) if decoded else None,
        tuple(notes),
    )


def _decoder() -> Callable[[Path], NDArray[np.uint8] | None] | None:
    """Return what decodes an image to u8[h, w, 3]; None without Pillow."""
    try:
        # Optional: without it, functions still get the path and decode it themselves.
        from PIL import Image  # noqa: PLC0415
    except ImportError:
        return None

    def decode(path: Path) -> NDArray[np.uint8] | None:
        try:
            with Image.open(path) as image:
                return np.asarray(image.convert("RGB"))
        # Whether the functions can read it is theirs to say.
        except (OSError, ValueError, MemoryError, Image.DecompressionBombError):
            return None

    return decode


def _arrays(files: Sequence[Path]) -> RawSamples:
    ids: list[str] = []
    arrays: list[NDArray[Any]] = []
    for file in files:
        packed = file.suffix.lower() == ".npz"
        _demand_few(peek_npz(file) if packed else {"": read_npy(file)}, file)
        for name, array in (read_npz(file) if packed else {"": read_npy(file)}).items():
            where = _where(file, name)
            parts = list(array) if array.ndim >= _STACKED else [array]
            ids += [where] if len(parts) == 1 else [f"{where}[{i}]" for i in range(len(parts))]
            arrays += parts
    if not arrays:
        raise CaseError(
            f"{files[0].name} holds no sample, expected at least one.", "Export the data again."
        )
    # Copies, because functions may work in place.
    return RawSamples(tuple(ids), lambda i: arrays[i].copy(), lambda i: arrays[i])


def _demand_few(arrays: Mapping[str, NDArray[Any]], file: Path) -> None:
    for name, array in arrays.items():
        if array.ndim >= _STACKED and len(array) > MOST_SAMPLES:
            raise CaseError(
                f"{_where(file, name)} holds {len(array):,} samples, expected at most "
                f"{MOST_SAMPLES:,}.",
                "Give fewer, or check the shape in the file.",
            )


def _where(file: Path, name: str) -> str:
    return f"{file.name}:{name}" if name else file.name
