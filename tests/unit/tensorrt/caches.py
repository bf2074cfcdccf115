"""Calibration caches as TensorRT writes them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np


def written(path: Path, scales: Mapping[str, float]) -> Path:
    """Write a cache, and return its path."""
    bits = {name: np.float32(scale).view(np.uint32) for name, scale in scales.items()}
    lines = [f"{name}: {int(each):x}" for name, each in bits.items()]
    path.write_text("\n".join(["TRT-8601-EntropyCalibration2", *lines, ""]))
    return path
