"""What a model input expects, and what came out of the user's data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from halfwise.case import MadeUp, Samples

WARNING = "warning: "
"""Start of every note that is a warning."""


@dataclass(frozen=True)
class InputSpec:
    """One input of the model.

    Attributes:
        name: Name of the input in the graph.
        dtype: Element type. Text inputs have `np.dtype(object)` or a NumPy string type.
        shape: One entry per axis: an int is fixed, a str or None is dynamic; `()` is a scalar.
            None where the model tells no rank: then every array is one sample, of any rank.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...] | None

    @property
    def batch_is_dynamic(self) -> bool:
        """Whether there is a first axis and its length is free."""
        return bool(self.shape and not isinstance(self.shape[0], int))


@dataclass(frozen=True)
class LoadedSamples:
    """Samples and how the user's data was read to get them.

    Attributes:
        samples: Each maps every input name to an array of the model's own dtype and rank. Arrays
            may be views of the user's data: read them, do not write to them.
        notes: One sentence each, for the user to check; warnings start with "warning: ".
        made_up: Inputs that look made up; empty for random ones, which are.
        real: False for random samples, and where all that could be real looks made up.
    """

    samples: Samples
    notes: tuple[str, ...]
    made_up: tuple[MadeUp, ...] = ()
    real: bool = True


def format_shape(shape: Sequence[int | str | None] | None) -> str:
    """Write a shape as `1×3×height×?`; the shape `()` as `scalar`, none as `of any rank`."""
    if shape is None:
        return "of any rank"
    return "×".join("?" if axis is None else str(axis) for axis in shape) or "scalar"


def format_inputs(specs: Sequence[InputSpec]) -> str:
    """List inputs as `x (float32 1×3×?×?), mask (bool 1×?)`."""
    return ", ".join(f"{s.name} ({s.dtype.name} {format_shape(s.shape)})" for s in specs)


def count_samples(count: int) -> str:
    """Write a number of samples as `1 sample` or `12 samples`."""
    return "1 sample" if count == 1 else f"{count} samples"
