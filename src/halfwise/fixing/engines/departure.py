"""Where an engine departs from the emulation of its plan, searched a few tensors at a time.

Marking a tensor as an output ends a fusion there, so the examined engine is a different one: few
are marked at once, and the resulting change of the final outputs is reported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from halfwise.case import Samples
from halfwise.emulation.runner import ModelRunner
from halfwise.emulation.typed import emulate_typed
from halfwise.fixing.engines.attempts import Attempts
from halfwise.fixing.engines.plan import Built, EnginePlan
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.metrics import Outputs, finite_relative_rms
from halfwise.records import NodeName, TensorName
from halfwise.tensorrt.failures import ENGINE_FAULTS
from halfwise.wording import number

MARKED = 6
"""Tensors marked at once: each may end a fusion, so only a few leave the engine as it is."""
LOCALISING = 2
"""Builds with marked tensors per failing engine: with six tensors each, they leave 1 of 36."""
WORSE = 4.0
"""An engine departs where its error is this many times the emulation's. Our choice: on
an H200 the errors of engines that passed were 1.4 to 2.8 times what the emulation predicted."""
NOISE = 1e-3
"""Relative error below which nothing counts as a departure: one rounding to FP16 is 5e-4."""


@dataclass(frozen=True)
class Departure:
    """Where an engine departs from the emulation.

    Attributes:
        nodes: Low compute nodes among which it departs, in graph order.
        error: Relative RMS error in the engine of the first tensor seen to be off.
        predicted: The same error in the emulation.
    """

    nodes: tuple[NodeName, ...]
    error: float
    predicted: float


def departure(
    attempts: Attempts, plan: EnginePlan, built: Built, spend: Callable[[], bool]
) -> Departure | None:
    """Return the nodes among which an engine first departs from the emulation of its plan.

    Args:
        attempts: What builds plans on the engine's device.
        plan: The plan.
        built: Its build, whose error is too large.
        spend: Takes a build from the budget; returns whether there was one.

    Returns:
        The departure; None if no marked tensor is off, or no engine could be built or run.
    """
    planner, measure = attempts.planner, attempts.device.bench.measure
    network, trials, settings = planner.case.network, planner.trials, planner.settings
    engine, line = built.build.engine, _line(planner.case.network, planner.roles)
    assert engine is not None
    try:
        outputs = measure.outputs(engine, trials.samples)
        pairs = zip(trials.references, outputs, strict=True)
        errors = [largest_change(reference, found) for reference, found in pairs]
        sample = trials.samples[errors.index(max(errors))]
        plain = measure.run(engine, sample)
    except ENGINE_FAULTS:
        return None
    emulation = emulate_typed(planner.rewrite(plan.keep)[0].model, accumulate=settings.accumulate)
    one = Samples(("sample",), lambda _: sample)
    exact = ModelRunner(network.model, one, runtime=settings.runtime)
    emulated = ModelRunner(emulation, one, partial=True, runtime=settings.runtime)
    low, high = 0, len(line)
    found: tuple[float, float] | None = None
    for _ in range(LOCALISING):
        if high - low <= 1 or not spend():
            break
        places = spread(low, high, MARKED)
        names = [line[i][1] for i in places]
        build = attempts.marked(plan, names)
        if build.engine is None:
            break
        try:
            marked = measure.run(build.engine, sample)
        except ENGINE_FAULTS:
            break
        if (change := largest_change(plain, marked)) > NOISE:
            attempts.device.bench.notes.append(
                f"marking tensors changed the final outputs by {number(change)}: the inspected "
                "engine is not quite the one without marks"
            )
        off = _first_off(names, marked, next(exact.get(names)), next(emulated.get(names)))
        if off is None:  # other marks give another engine: use what is known
            break
        index, found = off[0], off[1:]
        high = places[index] + 1
        low = places[index - 1] + 1 if index else low
    if found is None:
        return None
    nodes = tuple(dict.fromkeys(name for names, _ in line[low:high] for name in names))
    return Departure(nodes, *found)


def largest_change(before: Outputs, after: Outputs) -> float:
    """Return the largest relative RMS error of outputs; 0 without any."""
    return max((finite_relative_rms(before[n], after[n]) for n in before), default=0.0)


def _line(network: Network, roles: Roles) -> list[tuple[tuple[NodeName, ...], TensorName]]:
    """Return the float outputs of compute nodes, in graph order.

    Each comes with the compute nodes since the previous one.
    """
    line, nodes = [], list[NodeName]()
    for node in network.nodes():
        if roles[node_name(node)].role is not Role.COMPUTE:
            continue
        nodes.append(node_name(node))
        names = [TensorName(v.name) for v in node.outputs if v.name and is_float(v)]
        line += [(tuple(nodes), name) for name in names]
        nodes = [] if names else nodes
    return line


def spread(low: int, high: int, most: int) -> list[int]:
    """Return at most `most` indices in [low, high), evenly spread, including the last."""
    count = min(most, high - low)
    return sorted({low + round((i + 1) * (high - low) / count) - 1 for i in range(count)})


def _first_off(
    names: Sequence[TensorName], outputs: Outputs, expected: Outputs, predicted: Outputs
) -> tuple[int, float, float] | None:
    for index, name in enumerate(names):
        if name not in outputs:
            continue
        error = finite_relative_rms(expected[name], outputs[name])
        # What the emulation does not reach is no worse in an engine.
        usual = finite_relative_rms(expected[name], predicted[name]) if name in predicted else inf
        if error > max(NOISE, WORSE * usual):
            return index, error, usual
    return None
