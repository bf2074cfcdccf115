"""AutoCast of NVIDIA Model Optimizer, calibrated with every calibration sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from child import main
from modelopt.onnx.autocast import convert_to_mixed_precision


def convert(task: Path, mixed: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Convert with the settings of the task."""
    model = convert_to_mixed_precision(
        str(task / "model.onnx"),
        keep_io_types=True,
        calibration_data=str(task / "calibration"),
        **settings,
    )
    onnx.save(model, mixed)
    return {}


if __name__ == "__main__":
    main(convert)
