"""Compare inputs other than images: type, axes, sample order, one gain and offset."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from halfwise.records import InputComparison, InputDifference
from halfwise.records.diagnosis import difference
from halfwise.tools.preprocessing.normalisation import normalisation_differences
from halfwise.tools.preprocessing.photometry import photometry
from halfwise.tools.preprocessing.program import Residual, measure
from halfwise.wording import number

Arrays = Sequence[NDArray[Any]]

_SAME = 1e-5
_MOST_AXES = 5
_NUMBERS = "biuf"
_FITS = 1e-3
_BETTER = 1e-3
_MATCHED = 0.95
"""Least correlation of samples that differ only by rounding, a gain and an offset."""


def compare_plain(a: Arrays, b: Arrays, names: tuple[str, str]) -> InputComparison:
    """Return what differs between two inputs that are not images.

    Args:
        a: Samples of A: numbers of any shape, or text, compared for equality.
        b: Samples of B, equally many.
        names: Name of the input in A and in B.
    """
    lines = []
    first_a, first_b = a[0], b[0]
    found = type_difference(first_a, first_b)
    if first_a.dtype.kind not in _NUMBERS or first_b.dtype.kind not in _NUMBERS:
        return _as_text(a, b, names, found)
    axes = _axes(first_a, first_b)
    apart = [
        (str(x.shape), str(y.shape))
        for x, y in zip(a, b, strict=True)
        if axes is None or x.ndim != len(axes) or x.transpose(axes).shape != y.shape
    ]
    if axes is None or apart:
        shapes = apart[0]
        found.append(difference("shape", f"B is {shapes[1]}, A is {shapes[0]}.", *shapes))
        return concluded(a, b, names, found, Residual(None, np.inf, np.inf))
    if axes != tuple(range(first_a.ndim)):
        found.append(
            difference(
                "layout", f"B's axes are A's axes {axes}.", str(first_a.shape), str(first_b.shape)
            )
        )
        lines.append(f"x = x.transpose({axes})")
    left = [np.asarray(x, np.float64).transpose(axes) for x in a]
    right = [np.asarray(y, np.float64) for y in b]
    order = _order(left, right)
    if order != tuple(range(len(b))):
        found.append(
            difference("order", "B has the samples in another order.", "0, 1, 2, …", str(order))
        )
        left = [left[i] for i in order]
    spread = max(float(np.ptp(y)) if y.size else 0.0 for y in right) or 1.0
    if _worst(left, right) > _SAME * spread:
        gain, offset, differing = _line(left, right)
        found += differing
        if (gain, offset) != (1.0, 0.0):
            lines.append(f"x = x * {gain:.9g} + {offset:.9g}")
            left = [x * gain + offset for x in left]
    before = _worst(a, b) if first_a.shape == first_b.shape else None
    residual = replace(measure(left, right, lambda x: x), before=before)
    code = plain_code(lines, first_b.dtype.name) if found else ""
    return concluded(a, b, names, found, residual, code, level=spread / 255, order=order)


def type_difference(a: NDArray[Any], b: NDArray[Any]) -> list[InputDifference]:
    """Return the difference of two samples in type, if any."""
    names = a.dtype.name, b.dtype.name
    if a.dtype == b.dtype:
        return []
    return [difference("dtype", f"B is {names[1]}, A is {names[0]}.", *names)]


def _as_text(
    a: Arrays, b: Arrays, names: tuple[str, str], found: list[InputDifference]
) -> InputComparison:
    unequal = sum(not np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    if unequal:
        evidence = f"{unequal} of {len(b)} samples differ"
        found.append(difference("values", "The text differs.", "", "", evidence))
    worst = np.inf if unequal else 0.0
    return concluded(a, b, names, found, Residual(None, worst, worst))


def _line(left: Arrays, right: Arrays) -> tuple[float, float, list[InputDifference]]:
    """Return the gain and offset from one to the other, 1 and 0 if none fit."""
    flat = [np.concatenate([x.ravel() for x in side])[None, None] for side in (left, right)]
    fit = photometry([flat[0]], [flat[1]])
    if fit.misfit < _FITS:
        gain, offset = fit.gain[0], fit.offset[0]
        return gain, offset, normalisation_differences((gain,), (offset,), None)
    sentence = "The values differ by more than a gain and an offset."
    evidence = f"the best gain and offset leave {number(fit.misfit, 2)} of B's standard deviation"
    return 1.0, 0.0, [difference("values", sentence, "", "", evidence)]


def plain_code(lines: Sequence[str], dtype: str) -> str:
    """Return Python for `a_to_b` from the lines that change `x`, f64 of any shape."""
    body = "".join(f"    {line}\n" for line in lines)
    return (
        "import numpy as np\n\n\ndef a_to_b(a):\n    x = np.asarray(a, np.float64)\n"
        f"{body}    return x.astype(np.{dtype})\n"
    )


def _axes(a: NDArray[Any], b: NDArray[Any]) -> tuple[int, ...] | None:
    """Return an order of A's axes that gives B's shape, preferably unchanged."""
    if a.ndim != b.ndim or a.ndim > _MOST_AXES:
        return tuple(range(a.ndim)) if a.shape == b.shape else None
    fitting = [p for p in permutations(range(a.ndim)) if tuple(a.shape[i] for i in p) == b.shape]
    return fitting[0] if fitting else None


def _order(a: Arrays, b: Arrays) -> tuple[int, ...]:
    same = tuple(range(len(b)))
    if len(b) < 2 or any(x.shape != a[0].shape for x in (*a, *b)) or not a[0].size:
        return same
    rows, targets = (np.stack([_unit(x) for x in side]) for side in (a, b))
    table = rows @ targets.T
    found, columns = linear_sum_assignment(table, maximize=True)
    order = [int(i) for i in found[np.argsort(columns)]]
    matched = sum(table[order[i], i] for i in same) / len(b)
    better = matched - float(np.trace(table)) / len(b)
    return tuple(order) if better > _BETTER and matched > _MATCHED else same


def _unit(array: NDArray[Any]) -> NDArray[np.float64]:
    flat = np.asarray(array, np.float64).ravel()
    flat = flat - flat.mean()
    norm = float(np.linalg.norm(flat))
    unit: NDArray[np.float64] = flat / (norm or 1.0)
    return unit


def _worst(a: Arrays, b: Arrays) -> float:
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        if x.shape != y.shape:
            return float("inf")
        gap = np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64))
        worst = max(worst, float(gap.max(initial=0)))
    return worst


def concluded(
    a: Arrays,
    b: Arrays,
    names: tuple[str, str],
    found: Sequence[InputDifference],
    residual: Residual,
    code: str = "",
    *,
    level: float = 1 / 255,
    slack: float = 1.0,
    order: tuple[int, ...] | None = None,
    pipelines: tuple[object, object] = (None, None),
) -> InputComparison:
    """Return the record of a comparison.

    Args:
        a: Samples of A.
        b: Samples of B, equally many.
        names: Name of the input in A and in B.
        found: What differs.
        residual: What the code leaves.
        code: Python that turns A into B.
        level: One of 255 levels in B's unit.
        slack: Levels that count as rounding.
        order: The sample of A for each of B; None for the same.
        pipelines: How A and B resize, as far as that is known.
    """
    return InputComparison(
        name=names[0],
        name_b=names[1],
        samples=len(b),
        shape_a=a[0].shape,
        shape_b=b[0].shape,
        dtype_a=a[0].dtype.name,
        dtype_b=b[0].dtype.name,
        differences=tuple(found),
        largest=residual.before,
        residual_max=residual.largest,
        residual_rms=residual.rms,
        level=level,
        exact=residual.largest <= slack * level,
        order=order or tuple(range(len(b))),
        code=code,
        pipeline_a=None if pipelines[0] is None else str(pipelines[0]),
        pipeline_b=None if pipelines[1] is None else str(pipelines[1]),
    )
