"""How close choices are: ArgMax, ArgMin, TopK and NonMaxSuppression between near scores."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.emulation.probe import View
from halfwise.formats import Format
from halfwise.graph.model import constant_array, tensor_name
from halfwise.graph.roles import is_float

_RANKING = ("ArgMax", "ArgMin", "TopK")


def margin_view(node: ir.Node, fmt: Format, add: Callable[[float, int], None]) -> View | None:
    """Return the view that measures the margin of a node, None where it does not choose.

    Args:
        node: Any node.
        fmt: The low format, the unit of margins.
        add: Called as `add(margin, sample)` for each sample.
    """
    suppresses = node.op_type == "NonMaxSuppression"
    if not suppresses and node.op_type not in _RANKING:
        return None
    scores = node.inputs[1 if suppresses else 0]
    if scores is None or not is_float(scores) or not varies(scores):
        return None
    return (_suppression if suppresses else _choice)(node, scores, fmt, add)


def varies(value: ir.Value | None) -> bool:
    """Return whether a value is given and is no initializer."""
    return value is not None and not value.is_initializer()


def _choice(
    node: ir.Node, scores: ir.Value, fmt: Format, add: Callable[[float, int], None]
) -> View:
    axis = node.attributes.get_int("axis", -1 if node.op_type == "TopK" else 0)
    smallest = node.op_type == "ArgMin" or not node.attributes.get_int("largest", 1)
    fixed_k = node.attributes.get_int("k", 1)
    count = node.inputs[1] if len(node.inputs) > 1 else None
    if count is not None and not varies(count):
        fixed_k, count = int(constant_array(count).item()), None

    def visit(sample: int, array: NDArray[np.float32], *k: NDArray[np.int64]) -> None:
        chosen = int(k[0].item()) if k else fixed_k
        add(margin(-array if smallest else array, chosen, axis, fmt), sample)

    tensors = (scores,) if count is None else (scores, count)
    return View(tuple(tensor_name(v) for v in tensors), visit)


def _suppression(
    node: ir.Node, scores: ir.Value, fmt: Format, add: Callable[[float, int], None]
) -> View:
    # Without a threshold every box competes.
    given = node.inputs[4] if len(node.inputs) > 4 else None
    fixed = -np.inf if given is None or varies(given) else float(constant_array(given).item())

    def visit(sample: int, array: NDArray[np.float32], *threshold: NDArray[np.float32]) -> None:
        lowest = float(threshold[0].item()) if threshold else fixed
        add(rank_margin(array, lowest, fmt), sample)

    tensors = (scores, given) if given is not None and varies(given) else (scores,)
    return View(tuple(tensor_name(v) for v in tensors), visit)


def margin(scores: NDArray[np.float32], k: int, axis: int, fmt: Format) -> float:
    """Return the smallest gap between the k-th and the next largest score, in spacings of `fmt`.

    Args:
        scores: f32[*shape].
        k: How many are chosen along `axis`.
        axis: The axis of the ranking; negative counts from the end.
        fmt: The format whose spacing at the k-th score is the unit.

    Returns:
        At least 0; NaN where there is nothing to confuse: none or all chosen, no rows, or no row
        whose k-th score is finite. A rejected -inf counts as a gap of inf.
    """
    ranked = np.moveaxis(scores, axis, -1)
    n = ranked.shape[-1]
    if not 0 < k < n:
        return float("nan")
    ranked = np.partition(ranked, (n - k - 1, n - k), axis=-1)
    chosen, rejected = (ranked[..., i].astype(np.float64) for i in (n - k, n - k - 1))
    finite = np.isfinite(chosen)
    chosen, rejected = chosen[finite], rejected[finite]
    gaps = (chosen - rejected) / _spacing(np.abs(chosen), fmt)
    return float(gaps.min()) if chosen.size else float("nan")


def rank_margin(scores: NDArray[np.float32], threshold: float, fmt: Format) -> float:
    """Return the smallest gap between neighbours in the ranking of scores, in spacings of `fmt`.

    Non-maximum suppression takes boxes by score, so the order of any two may decide which of them
    survives, and a threshold decides which compete.

    Args:
        scores: f32[*batch, boxes].
        threshold: Scores up to it do not compete; the lowest that does is compared with it.
        fmt: The format whose spacing at the larger of two scores is the unit.

    Returns:
        Above 0, NaN where fewer than two finite numbers compete. Equal scores do not count:
        rounding leaves them equal.
    """
    gaps = [np.empty(0)]
    for index in np.ndindex(scores.shape[:-1]):
        row = scores[index].astype(np.float64)
        competing = row[np.isfinite(row) & (row > threshold)]
        if np.isfinite(threshold):
            competing = np.append(competing, threshold)
        ranked = np.unique(competing)
        gaps.append(np.diff(ranked) / _spacing(np.abs(ranked[1:]), fmt))
    smallest = np.concatenate(gaps)
    return float(smallest.min()) if smallest.size else float("nan")


def _spacing(magnitude: NDArray[np.float64], fmt: Format) -> NDArray[np.float64]:
    """Return the distance from each magnitude to the next number of `fmt`."""
    normal = np.exp2(np.frexp(magnitude)[1].astype(np.float64) - fmt.precision)
    return np.where(magnitude < fmt.smallest_normal, fmt.smallest_subnormal, normal)
