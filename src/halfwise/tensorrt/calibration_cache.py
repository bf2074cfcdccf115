"""Read the cache that TensorRT's INT8 calibrators write: a scale per tensor.

The first line gives the version and the calibrator, such as `TRT-8601-EntropyCalibration2`; each
other line a tensor and the bits of a binary32 in hexadecimal digits, without leading zeros:
`images: 3b66eddc`. The scale is the width of one level: the range ends at 127 levels
(NVIDIA/TensorRT#625; forums.developer.nvidia.com/t/109781). `0` and infinities occur.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from halfwise.errors import CaseError
from halfwise.files import read_text, unreadable

_HEADER = re.compile(r"TRT-(?P<major>\d\d?)(?P<minor>\d|\d\d)(?P<patch>\d\d)-(?P<kind>\w+)")
"""Versions up to 9 have four digits, such as 8601; from 10 on six, such as 100300."""
_LINE = re.compile(r"(?P<tensor>.+): *(?P<bits>[0-9a-fA-F]{1,8})")
_EXPECTED = "Give the file that a TensorRT calibrator wrote (trtexec --calib=FILE)."


@dataclass(frozen=True)
class CalibrationCache:
    """The content of a calibration cache.

    Attributes:
        version: Version of the TensorRT that wrote it, such as "8.6.1".
        calibrator: Name of the calibrator, such as "EntropyCalibration2".
        scales: The scale of each tensor, as written; 0, infinities and NaN included.
    """

    version: str
    calibrator: str
    scales: Mapping[str, float]


def read_cache(path: Path) -> CalibrationCache:
    """Return the content of a calibration cache.

    Raises:
        CaseError: the file cannot be read, is no such cache, or is truncated or damaged.
    """
    try:
        lines = read_text(path).splitlines()
    except OSError as error:
        raise CaseError(unreadable(path, error, "calibration cache"), _EXPECTED) from error
    except UnicodeDecodeError as error:
        raise CaseError(f"{path} is not a calibration cache: it is not text.", _EXPECTED) from error
    header = _HEADER.fullmatch(lines[0].strip()) if lines else None
    if header is None:
        raise CaseError(
            f"{path} is not a calibration cache: its first line is not of the form "
            "TRT-8601-EntropyCalibration2.",
            _EXPECTED,
        )
    scales: dict[str, float] = {}
    for number, line in enumerate(lines[1:], 2):
        found = _LINE.fullmatch(line.strip())
        if found:
            scales[found["tensor"]] = float(np.uint32(int(found["bits"], 16)).view(np.float32))
        elif line.strip():
            raise CaseError(
                f"{path} is truncated or damaged: line {number} is not a tensor and its scale.",
                _EXPECTED,
            )
    if not scales:
        raise CaseError(f"{path} holds no scales.", _EXPECTED)
    version = (int(header[part]) for part in ("major", "minor", "patch"))
    return CalibrationCache(".".join(map(str, version)), header["kind"], scales)
