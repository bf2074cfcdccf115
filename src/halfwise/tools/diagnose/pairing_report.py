"""Words on expected outputs that are not those of the inputs."""

from collections.abc import Sequence
from typing import Protocol

from halfwise.wording import listed, number


class Varying(Protocol):
    """How an output varies between samples, and differs from what was given, over its size."""

    @property
    def name(self) -> str:
        """The output."""

    @property
    def spread(self) -> float:
        """RMS of what it varies by."""

    @property
    def error(self) -> float:
        """RMS of the difference."""


def reordered(order: Sequence[int], ids: Sequence[str]) -> str:
    """Return that the expected outputs are of the same samples in another order.

    Args:
        order: Of which sample each is.
        ids: Names of the samples.
    """
    moved = [(given, of) for given, of in enumerate(order) if given != of]
    pairs = [f"{ids[given]} has that of {ids[of]}" for given, of in moved[:3]]
    more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
    return (
        "The expected outputs are those of the same samples in another order: "
        f"{', '.join(pairs)}{more}."
    )


def foreign(varying: Varying) -> str:
    """Return that the expected outputs tell these samples from others no better than chance."""
    return (
        f"Output {varying.name} varies by only {number(varying.spread)} of its size between "
        f"samples, and differs from the expected one by {number(varying.error)} (RMS): these are "
        "expected outputs of other inputs, or the ONNX file computes something else."
    )


def constant_outputs(varying: Sequence[Varying]) -> str:
    """Return that nothing shows whether the expected outputs are those of the inputs."""
    most = max(varying, key=lambda each: each.spread)
    return (
        "This does not show that the expected outputs are those of these inputs: "
        f"{listed([each.name for each in varying])} varies by no more than {number(most.spread)} "
        "of its size between samples, so the outputs of any others would match as well."
    )
