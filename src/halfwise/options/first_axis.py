"""Whether the model's own first axis counts samples, where arrays leave that open.

An array of the input's rank may hold one sample per index of a dynamic first axis (images), or be
one sample as it is (the frames of a recording). The model's results decide.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, RunFailed
from halfwise.graph.model import Network
from halfwise.inputs import InputSpec, LoadedSamples, Rows
from halfwise.metrics.difference import is_close
from halfwise.records import Note

Reading = Literal["samples", "one", "mixed"]

_BATCH = re.compile(r"n|b|bs|.*batch.*", re.IGNORECASE)
"""Names of an axis that say what it counts."""
_TRIED = 3
"""Rows that run alone and together."""
_SAME = 1e-3
"""Largest difference between a row alone and among others, relative to the output's largest value:
another order of summation causes 1e-5 in deep models."""


def load_settled(
    network: Network,
    specs: Sequence[InputSpec],
    read: Callable[[Sequence[InputSpec]], LoadedSamples],
    *,
    runtime: Runtime = CPU,
) -> tuple[LoadedSamples, list[InputSpec]]:
    """Return the samples, and the inputs with what is known of their first axes.

    The model runs only if arrays hold several samples along a first axis without a batch's name.

    Args:
        network: The FP32 model.
        specs: Its inputs.
        read: Reads the data for these inputs, as `load_inputs` does; its errors are not caught.
        runtime: Where the model runs.
    """
    loaded, own = read(specs), list(specs)
    if loaded.rows is None or all(_named(spec) for spec in specs if spec.batch_is_dynamic):
        return loaded, own
    try:
        reading = _reading(Session(network.model, runtime=runtime), loaded.samples, loaded.rows)
    except (CaseError, RunFailed):
        # Whoever needs the model says why it does not load or run.
        return loaded, own
    if reading == "one" or (reading == "mixed" and loaded.rows.files > 1):
        own = [replace(spec, counts=False) for spec in specs]
        return read(own), own
    if reading == "mixed":
        note = Note(kind="mixed-rows", severity="warning", facts={"rows": loaded.rows.count})
        loaded = replace(loaded, notes=(*loaded.notes, note))
    return loaded, own


def _named(spec: InputSpec) -> bool:
    axis = spec.shape[0] if spec.shape else None
    return isinstance(axis, str) and _BATCH.fullmatch(axis) is not None


def _reading(session: Session, samples: Samples, rows: Rows) -> Reading:
    """Return how the rows of an array have to be read.

    "one" if the model does not run on a row but on the array, or if no output depends on the rows
    in its size; "mixed" if outputs grow with the rows, but a row alone gives other values; else
    "samples", also if it runs on neither.

    Raises:
        RunFailed: it runs neither on a row nor on the array, or not on several rows.
    """
    every = range(rows.first, rows.first + rows.count)
    chosen = [samples[i] for i in every[:_TRIED]]
    try:
        alone = [session.run(row) for row in chosen]
    except RunFailed:
        session.run(_joined([samples[i] for i in every]))
        return "one"
    together = session.run(_joined(chosen))
    found = {_compared(array, [one[name] for one in alone]) for name, array in together.items()}
    order: tuple[Reading, ...] = ("mixed", "samples", "one")
    return next((reading for reading in order if reading in found), "samples")


def _joined(rows: Sequence[Sample]) -> Mapping[str, NDArray[Any]]:
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _compared(together: object, alone: Sequence[object]) -> Reading | None:
    """Return what an output shows; None if it shows nothing, as where it is constant."""
    if not isinstance(together, np.ndarray):
        return None
    ones = [np.asarray(one) for one in alone]
    if any(one.shape != ones[0].shape for one in ones):
        return None
    if together.shape == ones[0].shape:
        return None if all(is_close(together, one, _SAME) for one in ones) else "one"
    axis = next((i for i in range(together.ndim) if _rows(together, i, ones)), None)
    if axis is None:
        return None
    return "samples" if is_close(together, np.concatenate(ones, axis), _SAME) else "mixed"


def _rows(together: NDArray[Any], axis: int, ones: Sequence[NDArray[Any]]) -> bool:
    """Return whether one result is as long on an axis as the others in a row."""
    joined = list(ones[0].shape)
    if len(joined) != together.ndim:
        return False
    joined[axis] *= len(ones)
    return tuple(joined) == together.shape
