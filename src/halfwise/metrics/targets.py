"""What a metric compares: the outputs that it takes, their targets, and the candidate's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.metrics.difference import is_discrete
from halfwise.metrics.evidence import without_trailing_ones
from halfwise.metrics.measures import Outputs
from halfwise.wording import count

_CLASS_OUTPUTS = ("logits", "prob", "score", "output")
_SIDE = 8
"""Least height and width of a map."""
OWN_METRIC = "Write your own metric and give it as --metric file.py:function."

Metric = Callable[[Sequence[Outputs], Sequence[Outputs], Sequence[Any] | None], float]
"""Called with outputs of the reference, of a candidate, and labels; higher is better."""


def by_sample(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> Iterator[tuple[Outputs, Outputs, Any]]:
    """Yield the reference's and the candidate's outputs of every sample, and its label or None.

    Raises:
        CaseError: there are not as many labels as samples.
    """
    if labels is not None and len(labels) != len(reference):
        raise CaseError(
            f"There are {len(labels)} labels for {len(reference)} samples.",
            "Give one label per sample, in the order of the samples.",
        )
    known = [None] * len(reference) if labels is None else labels
    return zip(reference, candidate, known, strict=True)


def images(array: NDArray[Any]) -> NDArray[Any]:
    """Return an output as [images, ...]: four or more axes are a batch, fewer are one image."""
    return array if array.ndim > 3 else array[None]


def by_target(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
    outputs: Callable[[Outputs], Sequence[str]],
) -> Iterator[tuple[str, NDArray[np.float64], NDArray[Any]]]:
    """Yield the name, the target and the candidate's array of every output of every sample."""
    for expected, found, label in by_sample(reference, candidate, labels):
        names = outputs(expected)
        for name in names:
            yield name, target_of(expected[name], label, name, names), found[name]


def at_least_one(metric: str, count: int) -> int:
    """Return `count`; raise CaseError unless it is above 0."""
    if not count:
        raise CaseError(f"The metric {metric} has nothing to compare: the outputs are empty.")
    return count


def float_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of the float outputs; CaseError without any."""
    names = tuple(name for name, array in outputs.items() if not is_discrete(array.dtype))
    if not names:
        raise _lacking("needs a float output", outputs)
    return names


def map_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of the float outputs; CaseError if none has two axes of 8 or more."""
    names = float_outputs(outputs)
    if not any(sum(length >= _SIDE for length in outputs[name].shape) > 1 for name in names):
        raise _lacking("psnr needs an image or a map [..., height, width]", outputs)
    return names


def flow_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of the outputs [*, 2, height, width]; CaseError without any."""
    names = tuple(
        name
        for name in float_outputs(outputs)
        if outputs[name].ndim >= 3 and outputs[name].shape[-3] == 2
    )
    if not names:
        raise _lacking("epe needs a flow output [..., 2, height, width]", outputs)
    return names


def token_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of integer outputs, or else of sequence scores; CaseError if there are none.

    Scores are the class output if it is [*, tokens, vocabulary], with three or more axes.
    """
    integers = tuple(name for name, array in outputs.items() if array.dtype.kind in "iu")
    if integers:
        return integers
    name = class_output(outputs)
    if outputs[name].ndim < 3 or outputs[name].shape[-1] == 1:
        needs = "token-agreement needs integers or scores [..., tokens, vocabulary]"
        raise _lacking(needs, outputs)
    return (name,)


def class_output(outputs: Outputs) -> str:
    """Return the name of the class output, chosen as in `top1`; CaseError if there is none."""
    names = float_outputs(outputs)
    if len(names) == 1:
        return names[0]
    for word in _CLASS_OUTPUTS:
        exact = [name for name in names if name.lower() == word]
        matches = exact or [name for name in names if word in name.lower()]
        if len(matches) == 1:
            return matches[0]
    raise CaseError(
        f"The metric top1 cannot tell which output holds the classes: {shapes_of(outputs)}.",
        OWN_METRIC,
    )


def class_rows(name: str, array: NDArray[Any]) -> NDArray[np.float64]:
    """Return f64[rows, classes] of a class output [*rows, classes, 1, …]."""
    shape = without_trailing_ones(array).shape
    if not shape or shape[-1] < 2:
        raise CaseError(
            f"The metric top1 needs at least two classes along the last axis, but output {name!r} "
            f"has shape {list(array.shape)}.",
            OWN_METRIC,
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
            f"The metric top1 needs {count(rows, 'class number')} for a sample of output {name!r}, "
            f"but the label holds {classes.size} of type {classes.dtype}.",
            "Give one integer class per row of the class output.",
        )
    fits = (classes >= 0) & (classes < known)
    if not fits.all():
        raise CaseError(
            f"A label is class {classes[~fits][0]}, but output {name!r} has {known} classes: 0 to "
            f"{known - 1}.",
            "Count classes from 0, and remove samples without a class.",
        )
    return classes


def target_of(
    output: NDArray[Any], label: object, name: str, names: Sequence[str]
) -> NDArray[np.float64]:
    """Return the label of output `name` in the output's shape; without a label, the output itself.

    Raises:
        CaseError: the label is of another shape or type, or does not name its outputs.
    """
    if label is None:
        return output.astype(np.float64)
    if isinstance(label, Mapping) and name in label:
        label = label[name]
    elif isinstance(label, Mapping) or len(names) > 1:
        raise CaseError(
            f"A label must give a target for each of the outputs {', '.join(names)}.",
            "Give one array for a single output, or a mapping of output names to arrays.",
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


def _lacking(needs: str, outputs: Outputs) -> CaseError:
    text = f"The metric {needs}, but the model has only {shapes_of(outputs)}."
    return CaseError(text, OWN_METRIC)


def shapes_of(outputs: Outputs) -> str:
    """Return the outputs with their types and shapes, for messages."""
    return ", ".join(
        f"{name} ({array.dtype} {list(array.shape)})" for name, array in outputs.items()
    )
