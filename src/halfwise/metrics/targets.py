"""Which outputs a built-in metric is of, and what labels say that they should be."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.metrics.difference import is_discrete
from halfwise.metrics.measures import Outputs

_CLASS_OUTPUTS = ("logits", "prob", "score", "output")
_OWN_METRIC = "Write a metric of your own and give it as --metric file.py:function."


def at_least_one(metric: str, count: int) -> int:
    """Return `count`, which is above 0, or else raise CaseError."""
    if not count:
        raise CaseError(f"The metric {metric} has nothing to compare: the outputs are empty.")
    return count


def float_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of the float outputs; CaseError without any."""
    names = tuple(name for name, array in outputs.items() if not is_discrete(array.dtype))
    if not names:
        raise CaseError(
            f"The metric needs a float output, but the model has only {_listed(outputs)}.",
            _OWN_METRIC,
        )
    return names


def flow_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of those that are [*, 2, height, width]; CaseError without any."""
    names = tuple(
        name
        for name in float_outputs(outputs)
        if outputs[name].ndim >= 3 and outputs[name].shape[-3] == 2
    )
    if not names:
        raise CaseError(
            f"The metric epe needs a flow output [..., 2, height, width], but the model has only "
            f"{_listed(outputs)}.",
            _OWN_METRIC,
        )
    return names


def class_output(outputs: Outputs) -> str:
    """Return the name of the output that holds classes, as `top1` tells it; CaseError if none."""
    names = float_outputs(outputs)
    if len(names) == 1:
        return names[0]
    for word in _CLASS_OUTPUTS:
        exact = [name for name in names if name.lower() == word]
        matches = exact or [name for name in names if word in name.lower()]
        if len(matches) == 1:
            return matches[0]
    raise CaseError(
        f"The metric top1 cannot tell which output holds the classes: {_listed(outputs)}.",
        _OWN_METRIC,
    )


def class_rows(name: str, array: NDArray[Any]) -> NDArray[np.float64]:
    """Return f64[rows, classes] of a class output [*rows, classes, 1, …]."""
    shape = array.shape
    while len(shape) > 2 and shape[-1] == 1:
        shape = shape[:-1]
    if not shape or shape[-1] < 2:
        raise CaseError(
            f"The metric top1 needs at least two classes along the last axis, but output {name!r} "
            f"has shape {list(array.shape)}.",
            _OWN_METRIC,
        )
    return array.reshape(-1, shape[-1]).astype(np.float64)


def class_labels(label: object, scores: NDArray[np.float64], name: str) -> NDArray[Any]:
    """Return the classes [rows] that a label of output `name` holds.

    Args:
        label: A number or numbers.
        scores: [rows, classes].
        name: The output.

    Raises:
        CaseError: they are not one number for each row, or not in [0, classes).
    """
    classes, (rows, known) = np.ravel(np.asarray(label)), scores.shape
    if classes.size != rows or classes.dtype.kind not in "iuf":
        raise CaseError(
            f"The metric top1 needs {rows} class numbers for a sample of output {name!r}, but the "
            f"label holds {classes.size} of type {classes.dtype}.",
            "Give one integer class per row of the class output.",
        )
    fits = (classes >= 0) & (classes < known)
    if not fits.all():
        raise CaseError(
            f"A label is class {classes[~fits][0]}, but output {name!r} has {known} classes: 0 to "
            f"{known - 1}.",
            "Count classes from 0, and leave samples without a class out.",
        )
    return classes


def target_of(
    output: NDArray[Any], label: object, name: str, names: Sequence[str]
) -> NDArray[np.float64]:
    """Return the label of output `name`, in the output's shape, or the output without a label.

    Raises:
        CaseError: the label is of another shape or type, or does not name its outputs.
    """
    if label is None:
        return output.astype(np.float64)
    if isinstance(label, Mapping) and name in label:
        label = label[name]
    elif isinstance(label, Mapping) or len(names) > 1:
        raise CaseError(
            f"A label has to say what each of the outputs {', '.join(names)} should be.",
            "Give one array for a single output, a mapping from output name to array for several.",
        )
    array = np.asarray(label)
    if array.dtype.kind not in "biuf" or _lengths(array.shape) != _lengths(output.shape):
        raise CaseError(
            f"The label for output {name!r} has shape {list(array.shape)} and type {array.dtype}, "
            f"but the output has shape {list(output.shape)}."
        )
    return array.reshape(output.shape).astype(np.float64)


def _lengths(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def _listed(outputs: Outputs) -> str:
    return ", ".join(
        f"{name} ({array.dtype} {list(array.shape)})" for name, array in outputs.items()
    )
