"""Random inputs, for trying a model out when no data is at hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.errors import CaseError
from halfwise.inputs.spec import WARNING, InputSpec, LoadedSamples, format_shape


def random_samples(specs: Sequence[InputSpec], count: int = 4, seed: int = 0) -> LoadedSamples:
    """Make random samples.

    Floats are standard normal. Integers are 0 or 1, because they may index a table and the
    smallest tables in use (token types) have two rows; only uint8, the type of pixels, covers its
    range. Booleans are true or false. Dynamic axes have length 1.

    Args:
        specs: The model's inputs.
        count: Number of samples, at least 1.
        seed: The same seed gives the same samples.

    Raises:
        CaseError: An input is neither float, integer nor Boolean, has no rank, or a shape beyond
            what NumPy takes.
    """
    for spec in specs:
        if spec.shape is None:
            raise CaseError(
                f"Input '{spec.name}' has no rank in the model, so there is no random data for it.",
                "Give real inputs: the rank is taken from them.",
            )
        # "V" is how NumPy sees bfloat16.
        if spec.dtype.kind not in "fViub":
            raise CaseError(
                f"Input '{spec.name}' has dtype {spec.dtype.name}, for which there is no random "
                "data; expected floats, integers or Booleans.",
                "Give real inputs.",
            )
        try:
            np.broadcast_to(0.0, _shape(spec))
        except ValueError as error:
            raise CaseError(
                f"Input '{spec.name}' has a shape that no array has ({error}), expected one for "
                "which random data can be drawn.",
                "Check the shape that the model declares.",
            ) from error

    def load(index: int) -> Sample:
        generator = np.random.default_rng((seed, index))
        return {spec.name: _draw(spec, generator) for spec in specs}

    shapes = ", ".join(f"{spec.name} {format_shape(_shape(spec))}" for spec in specs)
    notes = [
        f"{WARNING}random inputs ({count} samples, seed {seed}: {shapes}); what rounding breaks on "
        "real data is another matter, so give real inputs before trusting the result"
    ]
    if any(not isinstance(axis, int) for spec in specs for axis in spec.shape or ()):
        notes.append("dynamic axes have length 1")
    samples = Samples(tuple(f"random[{i}]" for i in range(count)), load)
    return LoadedSamples(samples, tuple(notes), real=False)


def _shape(spec: InputSpec) -> tuple[int, ...]:
    return tuple(axis if isinstance(axis, int) else 1 for axis in spec.shape or ())


def _draw(spec: InputSpec, generator: np.random.Generator) -> NDArray[Any]:
    shape = _shape(spec)
    if spec.dtype.kind in "fV":
        return np.asarray(generator.standard_normal(shape), dtype=spec.dtype)
    high = 256 if spec.dtype.name == "uint8" else 2
    return np.asarray(generator.integers(0, high, shape), dtype=spec.dtype)
