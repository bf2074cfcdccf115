"""Find where an engine departs from the emulation, a few tensors at a time.

Every tensor that is made an output ends a fusion there, so the engine that is looked at is another
one: few are marked at once, and how far that changed the final outputs is told. From 10.12 on an
engine shows what fusion leaves, without ending any.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf

import onnx_ir as ir

from halfwise.case import CPU, Runtime, Sample, Samples
from halfwise.emulation.tensors import ModelTensors
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.metrics import Outputs, finite_relative_rms
from halfwise.records import NodeName, TensorName

MARKED = 6
"""Tensors that are marked at once."""
WORSE = 4.0
"""An engine departs where its error is so many times what the emulation has there. Our choice: on
an H200 the errors of engines that passed were 1.4 to 2.8 times what the emulation predicted."""
NOISE = 1e-3
"""Relative error below which nothing counts as a departure: one rounding to FP16 is 5e-4."""

RunMarked = Callable[[Sequence[TensorName]], Outputs | None]
"""Builds and runs the plan with further outputs; returns all, or None without an engine."""


@dataclass(frozen=True)
class Departure:
    """Where an engine departs from the emulation.

    Attributes:
        nodes: Low compute nodes among which it does, in graph order.
        tensor: The first tensor that is seen to be off.
        error: Its relative RMS error in the engine.
        predicted: The same in the emulation.
        builds: Runs that were used, each with a build of its own where tensors are marked.
    """

    nodes: tuple[NodeName, ...]
    tensor: TensorName
    error: float
    predicted: float
    builds: int


def localise(
    network: Network,
    roles: Roles,
    emulation: ir.Model,
    sample: Sample,
    run_marked: RunMarked,
    *,
    rounds: int,
    among: Collection[TensorName] | None = None,
    runtime: Runtime = CPU,
) -> Departure | None:
    """Return the nodes among which the engine first departs from the emulation of its plan.

    Args:
        network: The FP32 model.
        roles: Roles of its nodes.
        emulation: Typed emulation of the plan, with the network's tensor names.
        sample: A sample on which the engine is off.
        run_marked: Builds and runs the plan with further outputs.
        rounds: How many times it may run.
        among: The tensors that can be had; None for all.
        runtime: Where model and emulation run.

    Returns:
        The departure; None where no marked tensor is off, or no engine could be built.
    """
    line = _line(network, roles, among)
    one = Samples(("sample",), lambda _: sample)

    def values(model: ir.Model, names: Sequence[TensorName]) -> Outputs:
        partial = model is emulation
        tensors = ModelTensors(model, one, partial=partial, runtime=runtime)
        return next(tensors.get(names))

    low, high, found, used = 0, len(line), None, 0
    while used < rounds and high - low > 1:
        places = _spread(low, high)
        names = [line[i][1] for i in places]
        outputs = run_marked(names)
        used += 1
        if outputs is None:
            break
        off = _first_off(names, outputs, values(network.model, names), values(emulation, names))
        if off is None:  # other marks make another engine: what is known already has to do
            break
        index, error, expected = off
        high = places[index] + 1
        low = places[index - 1] + 1 if index else low
        found = (names[index], error, expected)
    if found is None:
        return None
    nodes = tuple(dict.fromkeys(name for names, _ in line[low:high] for name in names))
    return Departure(nodes, *found, used)


def _line(
    network: Network, roles: Roles, among: Collection[TensorName] | None
) -> list[tuple[tuple[NodeName, ...], TensorName]]:
    """Return the float tensors that compute nodes make, in graph order.

    Each comes with the compute nodes since the one before it.
    """
    line, nodes = [], []
    for node in network.nodes():
        if roles[node_name(node)].role is not Role.COMPUTE:
            continue
        nodes.append(node_name(node))
        for value in node.outputs:
            name = TensorName(value.name or "")
            if name and is_float(value) and (among is None or name in among):
                line.append((tuple(nodes), name))
                nodes = [node_name(node)]
        if line and line[-1][0][-1] == node_name(node):
            nodes = []
    return line


def _spread(low: int, high: int) -> list[int]:
    """Return at most `MARKED` places in [low, high), evenly spread, the last one included."""
    count = min(MARKED, high - low)
    return sorted({low + round((i + 1) * (high - low) / count) - 1 for i in range(count)})


def _first_off(
    names: Sequence[TensorName], outputs: Outputs, expected: Outputs, predicted: Outputs
) -> tuple[int, float, float] | None:
    for index, name in enumerate(names):
        if name not in outputs:
            continue
        error = finite_relative_rms(expected[name], outputs[name])
        # What the emulation does not get to is no worse in an engine.
        usual = finite_relative_rms(expected[name], predicted[name]) if name in predicted else inf
        if error > max(NOISE, WORSE * usual):
            return index, error, usual
    return None
