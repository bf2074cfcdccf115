"""What a metric compares, sample by sample: the target, and what the candidate gives for it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.metrics.built_in import target_of
from halfwise.metrics.measures import Outputs

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
