"""Whether an error reaches the outputs through one channel of a tensor."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Samples
from halfwise.emulation.runner import Runner
from halfwise.graph.dataflow import operands
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.graph.roles import Role, Roles
from halfwise.judging.deciding import Given, Patch
from halfwise.metrics import Computed
from halfwise.metrics.relative import relative_rms
from halfwise.records import Channel, NodeName, TensorName

FEWEST = 8
"""Channels of a tensor that is looked at: of fewer, one has much of any error."""
DOMINANT = 0.5
"""A channel is tried if it has more than this share of a tensor's squared error."""
AT_ONCE = 32
"""Bounds memory: number of tensors of both models held at a time."""
MOST_TRIED = 8
"""Channels tried, evenly spread along the graph."""
MOST = 0.5
"""A channel carries an error if the reference's values there leave no more than this share."""

Patched = Callable[[Patch], Given]
"""Returns how the candidate runs with a tensor made of the reference's values and its own."""


@dataclass(frozen=True)
class Place:
    """A channel that has most of a tensor's error on one sample.

    Attributes:
        tensor: The tensor.
        axis: Its axis of channels, from 0.
        index: The channel.
        size: Number of channels.
        error: Relative RMS error of the channel.
        rest: That of all others.
    """

    tensor: TensorName
    axis: int
    index: int
    size: int
    error: float
    rest: float

    def patch(self, true: NDArray[Any], own: NDArray[Any]) -> NDArray[Any]:
        """Return `own` with the channel of `true`; `own` if the shapes differ."""
        if true.shape != own.shape or true.ndim <= self.axis or true.shape[self.axis] != self.size:
            return own
        patched = own.copy()
        at = (slice(None),) * self.axis + (self.index,)
        patched[at] = true[at]
        return patched


def dominant(tensor: TensorName, true: NDArray[Any], own: NDArray[Any]) -> Place | None:
    """Return the channel with most of the squared error, if it has more than `DOMINANT` of it.

    Channels are the last axis, or axis 1 of at least three; never axis 0, which may count samples.
    None for other shapes, for fewer than `FEWEST` channels, and if an error is not finite.

    Args:
        tensor: The name.
        true: The reference's values, f[*shape].
        own: The candidate's, of the same shape, or no channel is found.
    """
    if true.shape != own.shape or true.ndim < 2:
        return None
    with np.errstate(all="ignore"):
        squares = np.square(own.astype(np.float64) - true)
    total = float(squares.sum())
    if not np.isfinite(total) or total == 0:
        return None
    for axis in dict.fromkeys((true.ndim - 1, 1)):
        size = true.shape[axis]
        others = tuple(i for i in range(true.ndim) if i != axis)
        each = squares.sum(others)
        index = int(each.argmax())
        if size >= FEWEST and each[index] > DOMINANT * total and squares.size > size:
            error = relative_rms(*(np.take(x, index, axis) for x in (true, own)))
            rest = relative_rms(*(np.delete(x, index, axis) for x in (true, own)))
            return Place(tensor, axis, index, size, error, rest)
    return None


@dataclass(frozen=True)
class Channels:
    """Looks for a channel that carries a candidate's error to its outputs.

    Attributes:
        network: The reference.
        roles: Roles of its nodes.
        sides: Returns runners of the reference and the candidate on some samples.
        patched: Runs the candidate with some values of the reference.
        error: Returns the error of a sample's outputs, relative to what is allowed.
        samples: All samples on which the errors were measured.
    """

    network: Network
    roles: Roles
    sides: Callable[[Samples], tuple[Runner, Runner]]
    patched: Patched
    error: Callable[[int, Computed], float]
    samples: Samples

    def cause(self, errors: Sequence[float], names: Sequence[TensorName]) -> Channel | None:
        """Return the first channel in graph order that carries most of the error, if any.

        In a trial, the candidate reads the reference's values in that channel and its own in all
        others. As for an origin, the largest error must fall to `MOST`, and each failing sample's
        too unless it then passes, and no passing sample may fail.

        Args:
            errors: The error of each sample, ≥ 0; inf for new NaN, infinities or another shape.
            names: The tensors to look at, in graph order.
        """
        order = sorted(range(len(errors)), key=lambda i: -errors[i])
        if not order or not 0 < errors[order[0]] < inf:
            return None
        places = list(self._places(names, order[0]))
        few = min(len(places), MOST_TRIED)
        for place in (places[i * len(places) // few] for i in range(few)):
            left = self._left(place, errors, order)
            if left is not None:
                return Channel(
                    tensor=place.tensor,
                    axis=place.axis,
                    index=place.index,
                    size=place.size,
                    error=place.error,
                    rest=place.rest,
                    left=left,
                    nodes=tuple(self._leading(place.tensor)),
                )
        return None

    def _places(self, names: Sequence[TensorName], sample: int) -> Iterator[Place]:
        for start in range(0, len(names), AT_ONCE):
            chunk = list(names[start : start + AT_ONCE])
            sides = self.sides(self.samples.select([sample]))
            true, own = (next(side.get(chunk)) for side in sides)
            found = (dominant(n, true[n], own[n]) for n in chunk if n in true and n in own)
            yield from (place for place in found if place is not None)

    def _left(self, place: Place, errors: Sequence[float], order: Sequence[int]) -> float | None:
        """Return the largest error left; None if a sample shows that it is too large."""
        largest = 0.0
        found = self.patched(place.patch)([place.tensor], self.samples.select(order))
        for i, outputs in zip(order, found, strict=True):
            left = self.error(i, outputs)
            if left > min(MOST * errors[order[0]], max(MOST * errors[i], 1.0)):
                return None
            largest = max(largest, left)
        return largest

    def _leading(self, tensor: TensorName) -> list[NodeName]:
        """Return the compute nodes that lead to a tensor, its own included, in graph order."""
        wanted, leading = {tensor}, list[NodeName]()
        for node in reversed(list(self.network.nodes())):
            if wanted.isdisjoint(v.name for v in node.outputs):
                continue
            wanted.update(map(tensor_name, operands(node)))
            if self.roles[node_name(node)].role is Role.COMPUTE:
                leading.append(node_name(node))
        return leading[::-1]
