"""halfwise, called as onnxconverter-common is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from child import main

from halfwise import convert_float_to_float16


def convert(task: Path, mixed: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Convert with the task's samples; the settings are options of `fix`."""
    data = {"inputs": str(task / "calibration"), "heldout": str(task / "heldout")}
    model = onnx.load(task / "model.onnx")
    onnx.save(convert_float_to_float16(model, keep_io_types=True, **data, **settings), mixed)
    return {}


if __name__ == "__main__":
    main(convert)
