"""Where the error of a plan comes from if no guard explains it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate, groupby
from math import inf, isfinite, prod

import onnx_ir as ir

from halfwise.case import CPU, Runtime, Sample, Samples
from halfwise.emulation.runner import ModelRunner, Shapes
from halfwise.emulation.typed import emulate_typed
from halfwise.fixing.plan.plan import Nodes
from halfwise.fixing.plan.search import SearchResult
from halfwise.fixing.space import Space
from halfwise.graph.dataflow import operands
from halfwise.graph.model import Network, bodies, node_name, tensor_name
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.metrics.difference import relative_rms
from halfwise.progress import Watcher
from halfwise.records import Followed, Growth, TensorName

ELEMENTS = 1 << 22
"""Elements of each model held at a time, beside those of one tensor: 16 MiB. Our choice."""
Stage = Callable[[str], AbstractContextManager[None]]


def followed_of(
    space: Space, result: SearchResult, watcher: Watcher, stage: Stage
) -> tuple[tuple[Growth, ...], Followed | None]:
    """Follow the error that guards do not explain, with the explained nodes kept.

    Does nothing if guards explain it, if there was no search, or if the budget is spent. Rules may
    leave no node to keep: then it is followed if the result fails and there is no guard.

    Args:
        space: The plans, after a search.
        result: What that found.
        watcher: Receives progress.
        stage: Begins and ends a stage of the run.
    """
    explained = result.needed & space.explained
    is_explained = result.passed or space.evidence.guards
    if (is_explained and result.needed == explained) or not space.searches:
        return (), None
    work = lambda: _followed(space, explained, watcher, stage)  # noqa: E731
    return space.budget.within("growth", work, ((), None))


def _followed(
    space: Space, explained: Nodes, watcher: Watcher, stage: Stage
) -> tuple[tuple[Growth, ...], Followed | None]:
    variant, bench, budget = space.variant, space.bench, space.budget
    network, settings, plan = variant.case.network, variant.settings, space.plan(explained)
    runtime = settings.runtime

    def step(done: int, total: int) -> None:
        budget.spend("growth")
        watcher.step(done, total)

    with stage("growth"):
        errors = [*bench.contributions(plan, range(len(bench.samples)))]
        low = emulate_typed(variant.write(plan)[0].model, accumulate=settings.accumulate)
        worst = bench.samples[errors.index(max(errors))]
        names = computed(network, variant.roles)
        path = growth(network, low, names, worst, variant.shapes, runtime=runtime, progress=step)
    followed = Followed(
        kept=tuple(n for n in map(node_name, network.all_nodes()) if n in explained),
        error=max(errors),
        accumulates=accumulates(path),
        samples=len(errors),
    )
    return path, followed


BORN_HERE = 0.2
"""An error may originate at a node if its inputs have less than this share of it. Our choice.

It is only a hint: a mean near zero, or a mask that becomes infinite, has a large relative error
that affects no output."""


def computed(network: Network, roles: Roles) -> list[TensorName]:
    """Return the float outputs of compute nodes, and of nodes with bodies, in graph order."""
    return [
        tensor_name(v)
        for n in network.nodes()
        if roles.of(n).role is Role.COMPUTE or bodies(n)
        for v in n.outputs
        if v.name and is_float(v)
    ]


def growth(
    network: Network,
    low: ir.Model,
    names: Sequence[TensorName],
    sample: Sample,
    shapes: Shapes,
    *,
    runtime: Runtime = CPU,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> tuple[Growth, ...]:
    """Return the relative RMS error after nodes on one sample, in graph order.

    inf after a node that the low model cannot run.

    Args:
        network: The reference model.
        low: Typed emulation of the mixed model; same tensor names.
        names: The tensors to compare.
        sample: One sample.
        shapes: Shapes of tensors on some sample, by which sessions are cut.
        runtime: Where to run.
        progress: Called before each session with the tensors done and their total; an exception
            from it ends the work.
    """
    one = Samples(("sample",), lambda _: sample)
    reference, candidate = (
        ModelRunner(model, one, partial=model is low, runtime=runtime)
        for model in (network.model, low)
    )
    errors: dict[TensorName, float] = {}
    ends = accumulate(prod(shapes.get(name, ())) for name in names)
    for _, together in groupby(zip(ends, names, strict=True), lambda one: one[0] // ELEMENTS):
        progress(len(errors), len(names))
        chunk = [name for _, name in together]
        expected, actual = next(reference.get(chunk)), next(candidate.get(chunk))
        errors |= {n: relative_rms(expected[n], actual[n]) if n in actual else inf for n in chunk}
    return _records(network, errors)


def born(growth: Sequence[Growth]) -> list[Growth]:
    """Return the steps whose inputs have too little error for their own, in graph order.

    Args:
        growth: Relative RMS errors along the graph; may be empty, errors may be inf.
    """
    return [g for g in growth if g.inherited <= g.error * BORN_HERE and isfinite(g.inherited)]


def accumulates(growth: Sequence[Growth]) -> bool:
    """Return whether the final error is not zero, and no step adds half of it or multiplies it.

    The roundings of n steps add up to between √n and n times that of one. So one more step at most
    doubles the error of what it reads, or triples that of two operands. One that makes it
    1 / `BORN_HERE` = 5 times as large does something else: the values that it passes on are
    smaller, say, and the error is not. What a first step rounds is no such error.
    """
    last = growth[-1].error if growth else 0.0
    rounding = max((g.error for g in growth if g.inherited == 0), default=0.0)
    multiplied = any(g.inherited > 0 and g.error * BORN_HERE >= rounding for g in born(growth))
    return 0 < last < inf and not multiplied and not any(g.error >= last / 2 for g in born(growth))


def _records(network: Network, errors: dict[TensorName, float]) -> tuple[Growth, ...]:
    reached: dict[TensorName, float] = dict(errors)
    records = []
    for node in network.nodes():
        name, inputs = node_name(node), operands(node)
        inherited = max((reached.get(tensor_name(v), 0.0) for v in inputs), default=0.0)
        outputs = [tensor_name(v) for v in node.outputs if v.name]
        for output in outputs:
            reached.setdefault(output, inherited)
        if measured := [errors[output] for output in outputs if output in errors]:
            records.append(Growth(node=name, error=max(measured), inherited=inherited))
    return tuple(records)
