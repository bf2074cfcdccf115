"""The batch axis, along which samples can be joined without affecting one another.

It is confirmed on the FP32 model; `Batching` joins samples along it and splits the results.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.errors import RunFailed
from halfwise.graph.model import Network, tensor_name
from halfwise.graph.sizes import declared_axes, frozen_nodes, shape_inputs
from halfwise.metrics import Outputs
from halfwise.metrics.relative import is_close
from halfwise.records import TensorName
from halfwise.wording import listed

Shape = tuple[int, ...]

_TRIED = 3
"""Samples in the batch that tests independence; with three, their order shows too."""
_SAME = 1e-4
"""Largest difference between the rows of a batch and single samples, relative to the largest
magnitude: another order of summation causes 1e-6, in deep models 1e-5; mixed samples far more."""
_NAMED = 3
"""Largest number of nodes named in a sentence."""


@dataclass(frozen=True)
class Batching:
    """How samples are joined.

    Attributes:
        inputs: Batch axis of each input that has one; the others are the same for all samples.
        outputs: Batch axis of each output that has one; the others do not depend on the samples.
        rows: For these outputs, their size along it divided by that of the inputs.
    """

    inputs: Mapping[TensorName, int]
    outputs: Mapping[TensorName, int]
    rows: Mapping[TensorName, int]

    def join(self, samples: Sequence[Sample]) -> dict[str, NDArray[Any]]:
        """Return the samples joined; inputs without a batch axis come from the first."""
        return {
            name: np.concatenate([s[name] for s in samples], self.inputs[TensorName(name)])
            if name in self.inputs
            else array
            for name, array in samples[0].items()
        }

    def size(self, sample: Sample) -> int | None:
        """Return the size of a sample along the batch axis; None if its inputs disagree."""
        sizes = {sample[name].shape[axis] for name, axis in self.inputs.items()}
        return int(sizes.pop()) if len(sizes) == 1 else None

    def cut(self, sample: Sample, begin: int, end: int) -> dict[str, NDArray[Any]]:
        """Return rows `begin` to `end` (exclusive) of a sample."""
        return {
            name: _cut(array, self.inputs[TensorName(name)], begin, end)
            if name in self.inputs
            else array
            for name, array in sample.items()
        }

    def cut_outputs(self, outputs: Outputs, begin: int, end: int, total: int) -> Outputs:
        """Return the outputs for rows `begin` to `end` (exclusive) of `total` rows of the inputs.

        An output whose size does not fit that many rows stays whole and gets an extra axis, so that
        its shape differs from one that fits.
        """
        found = {}
        for name, array in outputs.items():
            rows, axis = self.rows.get(TensorName(name), 0), self.outputs.get(TensorName(name), 0)
            fits = array.ndim > axis and array.shape[axis] == total * rows
            if name not in self.rows:
                found[name] = array
            elif fits:
                found[name] = _cut(array, axis, begin * rows, end * rows)
            else:
                found[name] = array[np.newaxis]
        return found


@dataclass(frozen=True)
class Apart:
    """Why samples cannot be joined and split again.

    Attributes:
        why: "axis": no axis could be the batch axis; "sizes": inputs differ in size along it;
            "fails": the model does not run on a batch; "whole": it runs, but its rows differ from
            the results of single samples.
        reason: The reason for the user, with names and sizes; a clause.
        inputs: The axes that were tried.
    """

    why: Literal["axis", "sizes", "fails", "whole"]
    reason: str
    inputs: Mapping[TensorName, int]


@dataclass(frozen=True)
class Facts:
    """Properties of a sample that decide which others it can be joined with.

    Attributes:
        shapes: Shape of every input; the batch axis counts as 0.
        values: Elements of the inputs of rank 0 or 1 that have no batch axis.
        shared: Hash of all inputs without a batch axis.
        rows: Size along the batch axis; 0 for a sample that cannot be in a batch.
    """

    shapes: Mapping[str, Shape]
    values: Mapping[str, Shape]
    shared: str
    rows: int

    @classmethod
    def of(cls, sample: Sample, batching: Batching | None) -> "Facts":
        """Return the properties of `sample`; without batching, every axis counts."""
        rows = None if batching is None else batching.size(sample)
        axes = {} if batching is None or rows is None else batching.inputs
        apart = {n: a for n, a in sample.items() if batching is not None and n not in axes}
        shared = sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in apart.values()))
        return cls(
            shapes={n: without_axis(a.shape, axes.get(TensorName(n))) for n, a in sample.items()},
            values={
                n: tuple(int(v) for v in np.ravel(a))
                for n, a in sample.items()
                if a.ndim < 2 and a.dtype.kind in "iu" and n not in axes
            },
            shared=shared.hexdigest(),
            rows=rows or 0,
        )

    @property
    def kind(self) -> tuple[object, ...]:
        """A key that is equal for samples that can be joined."""
        return (tuple(self.shapes.items()), self.shared)


def find_batching(
    network: Network, session: Session, samples: Samples
) -> tuple[Batching | None, str]:
    """Return what `try_batching` does: the batch axes, or None and the reason."""
    found = try_batching(network, session, samples)
    return (found, "") if isinstance(found, Batching) else (None, found.reason)


def try_batching(network: Network, session: Session, samples: Samples) -> Batching | Apart:
    """Return the batch axes, or why samples cannot be joined.

    An axis may be the batch axis if it is dynamic and occurs in every input with a dynamic axis,
    apart from shape tensors: the first axis of each, or one with the same symbol. The model then
    runs on a batch of up to three samples. Its rows must match the single samples, to 1e-4 of an
    output's largest magnitude, or exactly for outputs that are not floats.

    Args:
        network: The FP32 model.
        session: Its session.
        samples: At least one.
    """
    failed = []
    for axes in batch_axes(network):
        found = _confirmed(network, session, samples, axes)
        if isinstance(found, Batching):
            return found
        failed.append(found)
    none = "the model has no dynamic axis common to all its inputs with dynamic axes"
    return failed[0] if failed else Apart("axis", none, {})


def without_axis(shape: Shape, axis: int | None) -> Shape:
    """Return `shape` with 0 in place of `axis`; unchanged if `axis` is None."""
    return shape if axis is None else (*shape[:axis], 0, *shape[axis + 1 :])


def _cut(array: NDArray[Any], axis: int, begin: int, end: int) -> NDArray[Any]:
    return array[(slice(None),) * axis + (slice(begin, end),)]


def dynamic_inputs(network: Network) -> dict[TensorName, tuple[int | str | None, ...]]:
    """Return the declared axes of inputs with a dynamic axis, apart from shape tensors."""
    declared = {tensor_name(v): declared_axes(v) for v in network.graph.inputs}
    shape_tensors = shape_inputs(network)
    return {
        name: axes
        for name, axes in declared.items()
        if name not in shape_tensors and not all(isinstance(axis, int) for axis in axes)
    }


def batch_axes(network: Network) -> Iterator[dict[TensorName, int]]:
    """Yield possible batch axes of each input with a dynamic one, the likeliest first."""
    dynamic = dynamic_inputs(network)
    if not dynamic:
        return
    if not any(isinstance(axes[0], int) for axes in dynamic.values()):
        yield dict.fromkeys(dynamic, 0)
    first = next(iter(dynamic.values()))
    for symbol in (axis for axis in first[1:] if isinstance(axis, str)):
        if all(axes.count(symbol) == 1 for axes in dynamic.values()):
            yield {name: axes.index(symbol) for name, axes in dynamic.items()}


def _confirmed(
    network: Network, session: Session, samples: Samples, axes: Mapping[TensorName, int]
) -> Batching | Apart:
    trial = Batching(axes, {}, {})
    chosen = _alike(samples, trial)
    sizes = [size for sample in chosen if (size := trial.size(sample))]
    if len(sizes) < len(chosen):
        told = "the inputs have different sizes along the possible batch axes"
        return Apart("sizes", told, axes)
    singles = [session.run(sample) for sample in chosen]
    try:
        together = session.run(trial.join(chosen))
    except RunFailed as error:
        told = f"the model fails on a batch of {sum(sizes)}, though the axis is dynamic: "
        return Apart("fails", f"{told}{_suspects(network)}{error.message}", axes)
    outputs, rows = {}, {}
    for name, array in together.items():
        alone = [np.asarray(single[name]) for single in singles]
        if all(is_close(array, one, _SAME) for one in alone):
            continue
        axis = _grown(array.shape, [one.shape for one in alone], sizes)
        if axis is None or _keeps_one(axis, axes, array.shape, sizes, network):
            told = (
                f"output {name} has the shape {list(array.shape)} for a batch of {sum(sizes)} and "
                f"{list(alone[0].shape)} for one of {sizes[0]}: {_suspects(network)}its size does "
                "not follow the batch"
            )
            return Apart("whole", told, axes)
        if not is_close(array, np.concatenate(alone, axis), _SAME):
            told = (
                f"the model mixes the samples of a batch: row by row, output {name} differs "
                "from that of single samples"
            )
            return Apart("whole", told, axes)
        outputs[TensorName(name)] = axis
        rows[TensorName(name)] = array.shape[axis] // sum(sizes)
    return Batching(axes, outputs, rows)


def _alike(samples: Samples, trial: Batching) -> list[Sample]:
    """Return up to three samples that can be joined; a single one twice."""
    groups: dict[object, list[Sample]] = {}
    for sample in samples:
        group = groups.setdefault(Facts.of(sample, trial).kind, [])
        group.append(sample)
        if len(group) == _TRIED:
            return group
    largest = max(groups.values(), key=len)
    return largest if len(largest) > 1 else largest * 2


def _grown(batch: Shape, alone: Sequence[Shape], sizes: Sequence[int]) -> int | None:
    """Return the axis along which the batch is as long as all single samples together."""
    for axis, total in enumerate(batch):
        whole, part = divmod(total, sum(sizes))
        expected = [(*batch[:axis], whole * size, *batch[axis + 1 :]) for size in sizes]
        if whole and not part and list(alone) == expected:
            return axis
    return None


def _keeps_one(
    axis: int,
    axes: Mapping[TensorName, int],
    shape: Shape,
    sizes: Sequence[int],
    network: Network,
) -> bool:
    """Return whether the samples are on another axis while the first keeps the old batch size."""
    moved = axis != 0 and not any(axes.values()) and shape[0] == sizes[0]
    return moved and bool(frozen_nodes(network))


def _suspects(network: Network) -> str:
    names = frozen_nodes(network)
    if not names:
        return ""
    constants = listed(names, most=_NAMED)
    return f"the export seems to have fixed its batch size in the constants of {constants}; "
