"""Find the size of the export that a model insists on, and name it where it failed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from halfwise.case import CPU, Case, Runtime, Sample, Samples, Settings
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, RunFailed
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.graph.sizes import (
    Frozen,
    batches_of,
    declared_axes,
    frozen_batches,
    frozen_lengths,
    frozen_states,
    shape_inputs,
    with_batch,
)
from halfwise.records import FrozenSize, NodeName, TensorName
from halfwise.reporting.notes import frozen_advice, frozen_cause

_USUAL = (1, 2, 4, 8, 16)
"""Batch sizes that exports are traced with."""
_LARGEST_BATCH = 64
_MOST_TRIED = 24
_LONGEST = 8
"""Times the given length that a length is tried at: a constant may hold anything."""


@dataclass(frozen=True)
class _Axis:
    """An axis that inputs share, and what may have frozen it."""

    axes: Mapping[TensorName, int]
    places: tuple[Frozen, ...]
    batch: bool

    def size(self, sample: Sample) -> int | None:
        """Return its length; None where the inputs have different ones, or none at all."""
        sizes = {sample[name].shape[axis] for name, axis in self.axes.items()}
        return sizes.pop() if len(sizes) == 1 and 0 not in sizes else None

    def resized(self, sample: Sample, size: int) -> Sample:
        """Return the sample with `size` entries along the axis, repeated or cut."""
        return {
            **sample,
            **{
                name: np.take(sample[name], np.arange(size) % sample[name].shape[axis], axis)
                for name, axis in self.axes.items()
            },
        }

    def candidates(self, given: int) -> list[int]:
        """Return sizes to try, smallest first."""
        held = {size for place in self.places for size in place.sizes}
        if self.batch:
            sizes = {n for n in range(1, _LARGEST_BATCH + 1) if any(s % n == 0 for s in held)}
            sizes = {*_USUAL, *sorted(sizes)[:_MOST_TRIED]}
        else:
            sizes = {n for n in held if 1 < n <= _LONGEST * given}
        return sorted(sizes - {given})[:_MOST_TRIED]


def frozen_size(network: Network, samples: Samples, *, runtime: Runtime = CPU) -> FrozenSize | None:
    """Return the one size at which a model runs that fails on a sample; None where there is none.

    The first failing sample is repeated or cut along each dynamic axis, to sizes that constants
    hold. A size counts only if the model runs there, and on the same values neither at the sample's
    own size nor at one less or one more: then it is the size that matters, not the values.

    Args:
        network: The FP32 model.
        samples: What it failed on; where it runs on all of them, the answer is None.
        runtime: Where it runs.
    """
    session = Session(network.model, runtime=runtime)
    failed = _failing(session, samples)
    if failed is None:
        return None
    sample, failure = failed
    for axis in _axes(network):
        given = axis.size(sample)
        runs = None if given is None else _only_size(session, axis, sample, given)
        if given is None or runs is None:
            continue
        held = batches_of(network, runs) if axis.batch else axis.places
        places = [p for p in held if any(size % runs == 0 for size in p.sizes)]
        shown = axis.batch and _runs_changed(
            network, places, (runs, given), sample, runtime=runtime
        )
        return FrozenSize(
            axes=dict(axis.axes),
            batch=axis.batch,
            given=given,
            runs=runs,
            nodes=_in_order(network, places),
            shown=shown,
            failure=failure,
        )
    return None


def _in_order(network: Network, places: Sequence[Frozen]) -> tuple[NodeName, ...]:
    named = {node_name(place.node) for place in places}
    return tuple(name for node in network.nodes() if (name := node_name(node)) in named)


def _failing(session: Session, samples: Samples) -> tuple[Sample, str] | None:
    for sample in samples:
        try:
            session.run(sample)
        except RunFailed as failure:
            return sample, failure.message
    return None


def _axes(network: Network) -> Iterator[_Axis]:
    """Yield the batch axis, then every other dynamic one; those of one symbol together."""
    skipped = shape_inputs(network)
    groups: dict[object, dict[TensorName, int]] = {}
    for value in network.graph.inputs:
        name = tensor_name(value)
        if name in skipped or value.shape is None:
            continue
        for place, size in enumerate(declared_axes(value)):
            if not isinstance(size, int):
                key = 0 if place == 0 else (size or (name, place))
                groups.setdefault(key, {})[name] = place
    if batch := groups.pop(0, None):
        yield _Axis(batch, (*frozen_batches(network), *frozen_states(network)), batch=True)
    lengths = tuple(frozen_lengths(network))
    yield from (_Axis(axes, lengths, batch=False) for axes in groups.values())


def _only_size(session: Session, axis: _Axis, sample: Sample, given: int) -> int | None:
    for size in axis.candidates(given):
        found = axis.resized(sample, size)
        if not _runs(session, found):
            continue
        others = {given, size - 1, size + 1} - {0}
        alone = not any(_runs(session, axis.resized(found, other)) for other in others)
        return size if alone else None
    return None


def _runs(session: Session, sample: Sample) -> bool:
    try:
        session.run(sample)
    except RunFailed:
        return False
    return True


def _runs_changed(
    network: Network,
    places: Sequence[Frozen],
    sizes: tuple[int, int],
    sample: Sample,
    *,
    runtime: Runtime,
) -> bool:
    """Return whether the model runs on the sample with other sizes in these constants."""
    if not places:
        return False
    try:
        changed = Session(with_batch(network, places, *sizes), runtime=runtime)
    except CaseError:
        return False
    return _runs(changed, sample)


@contextmanager
def frozen_named(case: Case, settings: Settings) -> Iterator[None]:
    """Turn the failure of a model that insists on a size of its export into what it insists on.

    Raises:
        CaseError: the FP32 model fails on a sample, and runs on the same values in another batch
            size or length, and only there. Any other failure goes on as it is.
    """
    try:
        yield
    except RunFailed as failure:
        if failure.late:  # it would be as late again
            raise
        found = frozen_size(
            case.network,
            case.calibration + case.heldout,
            runtime=settings.runtime,
        )
        if found is None:
            raise
        raise CaseError(frozen_cause(found), " ".join(frozen_advice(found))) from failure
