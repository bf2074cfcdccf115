"""Makes samples of arrays in memory, and of what a function of the user's yields."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.inputs.blocks import Block, load_singles, load_stacks
from halfwise.inputs.fitting import as_arrays
from halfwise.inputs.functions import load_function
from halfwise.inputs.spec import InputSpec, LoadedSamples

_MOST = 100_000
"""Samples that a function may yield. They are kept in memory, where each takes half a kilobyte at
least, and hundreds are enough for a verdict; beyond, a generator most likely has no end.
"""


def load_mapping(given: Mapping[str, Any], specs: Sequence[InputSpec], where: str) -> LoadedSamples:
    """Load samples from input name → array, understood like the content of a `.npz` file.

    Nothing is copied; each sample is checked here, one at a time.

    Raises:
        CaseError: The arrays do not fit the model, or a value is NaN, infinite or out of range.
    """
    arrays = as_arrays(given, where)
    return _checked(load_stacks([Block(where, _holding(arrays))], specs))


def load_sequence(items: object, specs: Sequence[InputSpec], where: str) -> LoadedSamples:
    """Load one sample from each mapping of input name → array in a sequence.

    Nothing is copied; each sample is checked here. Arrays have the model's rank, or lack its batch
    axis.

    Raises:
        CaseError: It is no sequence or an empty one, or a sample does not fit the model; names
            the sample as `where[i]`.
    """
    if not isinstance(items, Sequence):
        raise CaseError(
            f"The inputs are a {type(items).__name__}, expected a path, a mapping of arrays or a "
            "sequence of such mappings.",
            "Give {input name: array}.",
        )
    return _load_arrays(
        [_arrays(item, f"{where}[{i}]") for i, item in enumerate(items)], specs, where
    )


def load_stream(source: str, specs: Sequence[InputSpec]) -> LoadedSamples:
    """Load the samples that a function of the user's yields, and keep them in memory.

    Args:
        source: `file.py:function`; it takes no arguments and comes to an end.
        specs: The model's inputs.

    Raises:
        UsageError: `source` has another form.
        CaseError: The function cannot be loaded, raised, or yielded what does not fit the model.
    """
    items: Iterator[Any] = load_function(source).stream()
    where = source.rpartition("/")[2]
    copies: list[dict[str, NDArray[Any]]] = []
    for i, item in enumerate(items):
        if i == _MOST:
            raise CaseError(
                f"{where} has yielded {_MOST:,} samples and goes on, expected it to end.",
                "Let it end after some hundred samples.",
            )
        # Copied one by one: generators often fill the same array again for the next sample.
        given = _arrays(item, f"{where}[{i}]")
        copies.append({name: np.array(array) for name, array in given.items()})
    return _load_arrays(copies, specs, where)


def _load_arrays(
    items: Sequence[Mapping[str, NDArray[Any]]], specs: Sequence[InputSpec], where: str
) -> LoadedSamples:
    if not items:
        raise CaseError(
            f"{where} is empty, expected at least one sample.",
            "Give one dictionary {input name: array} for each sample.",
        )
    blocks = [Block(f"{where}[{i}]", _holding(item)) for i, item in enumerate(items)]
    return _checked(load_singles(blocks, specs))


def _holding(arrays: Mapping[str, NDArray[Any]]) -> Callable[[], Mapping[str, NDArray[Any]]]:
    return lambda: arrays


def _arrays(item: object, where: str) -> dict[str, NDArray[Any]]:
    if not isinstance(item, Mapping):
        raise CaseError(
            f"{where} is a {type(item).__name__}, expected a dictionary {{input name: array}}.",
            "Name the input also where the model has only one.",
        )
    return as_arrays(item, where)


def _checked(loaded: LoadedSamples) -> LoadedSamples:
    for _ in loaded.samples:
        pass
    return loaded
