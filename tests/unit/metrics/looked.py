"""Arrays that look like a kind of output, and what is shown of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics import Metric, Outputs, settle, settled_metric
from halfwise.metrics.evidence import Inputs
from halfwise.metrics.kinds import recognise
from halfwise.records import Criterion

RNG = np.random.default_rng(11)
IMAGE: Inputs = {"image": (1, 3, 64, 64)}
PAIR: Inputs = {"left": (1, 3, 64, 64), "right": (1, 3, 64, 64)}
DISC = (np.hypot(*np.mgrid[-32:32, -32:32]) < 20).astype(np.float32)[None, None]
PEAK = np.exp(-(np.hypot(*np.mgrid[-32:32, -32:32]) ** 2) / 30).astype(np.float32)[None, None]


def normal(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def softmax(values: NDArray[Any], axis: int = -1) -> NDArray[np.float32]:
    powers = np.exp(values - values.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True), np.float32)


def unit_rows(*shape: int) -> NDArray[np.float32]:
    rows = normal(*shape)
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


ROW, COLUMN = np.mgrid[:64, :64] / 64
REGIONS = np.stack([(ROW * 7).astype(int) == kind for kind in range(7)])[None].astype(np.float32)
PICTURE = np.stack([ROW, COLUMN, np.abs(np.sin(5 * ROW + 3 * COLUMN))])[None].astype(np.float32)
DIRECTIONS = np.stack([ROW, COLUMN, np.ones_like(ROW)])[None]
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)


def settled(
    name: str, truth: Sequence[Outputs], inputs: Inputs = IMAGE
) -> tuple[Criterion, Metric]:
    """Return the criterion and the metric that a named metric becomes on these outputs."""
    criterion = settle(Criterion(metric=name), truth, inputs, labelled=False)
    metric = settled_metric(criterion)
    assert metric is not None
    return criterion, metric


def shown(name: str, *samples: NDArray[Any], inputs: Inputs = IMAGE) -> str | None:
    found = recognise([{name: array} for array in samples], inputs)
    return found[0].kind if found else None
