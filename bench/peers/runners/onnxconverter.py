"""onnxconverter-common: its plain FP16 conversion, and its search with one sample.

The search accepts what halfwise accepts: the judge of its sample is halfwise's own. Float inputs
and outputs stay FP32; where that ends in an error they become FP16, as a user would try next.
"""

from __future__ import annotations

import copy
import json
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from child import main
from onnxconverter_common import auto_mixed_precision, float16  # noqa: TID251 - the peer itself

from halfwise.metrics import Excess, metric_loss, resolve, settled_metric, totals
from halfwise.records import Criterion


def convert(task: Path, mixed: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Convert everything, or search where the settings say so."""
    model = onnx.load(task / "model.onnx")
    if settings["search"]:
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


def judge(task: Path, names: Sequence[str]) -> Callable[[Sequence[Any], Sequence[Any]], bool]:
    """Return the function that accepts outputs of the sample, given as lists of arrays."""
    told = json.loads((task / "judging.json").read_text(encoding="utf-8"))
    criterion = Criterion(**told["criterion"])
    metric = settled_metric(criterion) or (resolve(criterion.metric) if criterion.metric else None)
    if criterion.metric and metric is None:
        file, _, function = criterion.metric.rpartition(":")
        metric = runpy.run_path(file)[function]

    def accepts(expected: Sequence[Any], found: Sequence[Any]) -> bool:
        reference, candidate = (dict(zip(names, side, strict=True)) for side in (expected, found))
        excess = Excess(criterion, totals([reference]))
        excess.update(reference, candidate)
        if metric is None or excess.final() > 1:
            return excess.final() <= 1
        return metric_loss(metric, [reference], [candidate], None) <= criterion.metric_drop

    return accepts


if __name__ == "__main__":
    main(convert)
