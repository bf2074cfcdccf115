"""onnxconverter-common: its plain FP16 conversion, and its search with one sample.

The search accepts what halfwise accepts: the judge of its sample is halfwise's own. Float inputs
and outputs stay FP32; where that ends in an error they become FP16, as a user would try next.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from child import main
from onnxconverter_common import auto_mixed_precision, float16  # noqa: TID251 - the peer itself


def convert(task: Path, mixed: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Convert everything, or search where the settings say so."""
    model = onnx.load(task / "model.onnx")
    if settings["search"]:
        # Who converts everything has no judge, and does not wait for its imports.
        from acceptance import judge  # noqa: PLC0415

        with np.load(min((task / "calibration").iterdir())) as sample:
            feed = dict(sample)
        accepts = judge(task, [output.name for output in model.graph.output])

        def made(*, fp32_io: bool) -> onnx.ModelProto:
            return auto_mixed_precision.auto_convert_mixed_precision(
                copy.deepcopy(model), feed, accepts, keep_io_types=fp32_io
            )
    else:

        def made(*, fp32_io: bool) -> onnx.ModelProto:
            return float16.convert_float_to_float16(copy.deepcopy(model), keep_io_types=fp32_io)

    try:
        onnx.save(made(fp32_io=True), mixed)
    except ValueError as error:
        try:
            onnx.save(made(fp32_io=False), mixed)
        except Exception:  # noqa: BLE001 - a peer may raise anything; the first error counts
            raise error from None
        return {"note": f"with FP16 inputs and outputs; with FP32 ones: {error}"}
    return {}


if __name__ == "__main__":
    main(convert)
