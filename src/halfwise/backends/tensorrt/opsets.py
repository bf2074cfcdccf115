"""The highest ONNX opset that TensorRT's parser reads, and which of it has an operator.

From onnx-tensorrt's docs/operators.md of each version, and NVIDIA's "ONNX Opset Guide" for 11.
Versions in between that published no number count as the one before.
"""

import re

from halfwise.backends.tensorrt.operators import AT_THE_LATEST, NEVER, SINCE
from halfwise.errors import UsageError

HIGHEST = {(8, 0): 13, (8, 5): 17, (9, 0): 19, (10, 0): 20, (10, 15): 24, (11, 0): 25}
"""Opset by the first version that reads it."""

DEFAULT_VERSION = "10.0"
"""Where nobody names one: what it reads, all later versions read too."""


def version_of(text: str) -> tuple[int, int]:
    """Return major and minor of a version such as "10.15", "8.6.1" or "11".

    Raises:
        UsageError: it is none, or one before 8.0.
    """
    match = re.fullmatch(r"(\d{1,3})(?:\.(\d{1,3}))?(?:\.\d+){0,3}", text.strip())
    version = (int(match[1]), int(match[2] or 0)) if match else (0, 0)
    if version < min(HIGHEST):
        raise UsageError(
            f"--trt-version is {text!r}; expected a version of TensorRT from 8.0 on.",
            "Give major and minor, such as 8.6, 10.0 or 11.",
        )
    return version


def highest_opset(version: tuple[int, int]) -> int:
    """Return the highest opset that this version's parser reads (major, minor ≥ 8.0)."""
    return HIGHEST[max(first for first in HIGHEST if first <= version)]


def has_operator(op: str, version: tuple[int, int]) -> bool:
    """Return whether this version's parser is known to take the operator."""
    since = SINCE.get(op) or AT_THE_LATEST.get(op)
    return op not in NEVER and (since is None or version_of(since) <= version)
