"""Whether an error reaches the outputs through one channel of a tensor."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.graph.dataflow import operands, reached
from halfwise.graph.model import node_name
from halfwise.graph.roles import Role
from halfwise.judging.deciding import Deciding, Given, Patch, largest_left, worst_first
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
        look: Has the reference, the candidate, and the samples.
        patched: Runs the candidate with some values of the reference.
    """

    look: Deciding
    patched: Patched

    def cause(self, errors: Sequence[float], names: Sequence[TensorName]) -> Channel | None:
        """Return the first channel in graph order that carries most of the error, if any.

        In a trial, the candidate reads the reference's values in that channel and its own in all
        others, and `largest_left` decides, as for an origin.

        Args:
            errors: The error of each sample, ≥ 0; inf for new NaN, infinities or another shape.
            names: The tensors to look at, in graph order.
        """
        order = worst_first(errors)
        if not order or not 0 < errors[order[0]] < inf:
            return None
        places = list(self._places(names, order[0]))
        few = min(len(places), MOST_TRIED)
        for place in (places[i * len(places) // few] for i in range(few)):
            trial = replace(self.look, given=self.patched(place.patch))
            left = largest_left(errors, trial.errors([place.tensor], order))
            if left < inf:
                nodes = tuple(self._leading(place.tensor))
                return Channel(**asdict(place), left=left, nodes=nodes)
        return None

    def _places(self, names: Sequence[TensorName], sample: int) -> Iterator[Place]:
        for start in range(0, len(names), AT_ONCE):
            chunk = list(names[start : start + AT_ONCE])
            true, own = (next(side.get(chunk)) for side in self.look.sides([sample]))
            found = (dominant(n, true[n], own[n]) for n in chunk if n in true and n in own)
            yield from (place for place in found if place is not None)

    def _leading(self, tensor: TensorName) -> Iterator[NodeName]:
        """Yield the compute nodes that lead to a tensor, its own included, in graph order."""
        nodes, roles = list(self.look.network.nodes()), self.look.roles
        own = [node for node in nodes if any(v.name == tensor for v in node.outputs)]
        makers = lambda n: [m for v in operands(n) if (m := v.producer()) is not None]  # noqa: E731
        leading = reached(own, makers)
        names = (node_name(node) for node in nodes if node in leading)
        return (name for name in names if roles[name].role is Role.COMPUTE)
