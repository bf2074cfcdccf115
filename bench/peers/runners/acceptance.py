"""What the search of onnxconverter-common asks: halfwise's own judgement of one sample."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from halfwise.metrics import Excess, metric_loss, resolve, settled_metric, totals
from halfwise.records import Criterion


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
