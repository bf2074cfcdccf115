"""Where the error of a plan comes from if no guard explains it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isinf, prod
from pathlib import Path

import onnx_ir as ir

from halfwise.case import CPU, Runtime, Sample, Samples
from halfwise.emulation.budget import OutOfTime
from halfwise.emulation.runner import ModelRunner, seen_shapes
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.plan.plan import Nodes
from halfwise.fixing.plan.result import SearchResult
from halfwise.fixing.space import Space
from halfwise.graph.dataflow import consumers, operands, producers
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.graph.model import node_name as name_of
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.judging.deciding import (
    MOST_TRIED,
    Deciding,
    given_to,
    largest_left,
    worst_first,
)
from halfwise.metrics.difference import relative_rms
from halfwise.progress import Watcher
from halfwise.records import Followed, Growth, NodeName, Origin, TensorName

TENSORS = 32
"""Tensors of both models held at a time, which bounds memory; as many errors are shown if nothing
had to be followed. Our choice."""
MOST_ELEMENTS = 1 << 18
"""Of each tensor whose error is shown so: `TENSORS` in FP32 of both models take 64 MiB at most."""

Stage = Callable[[str], AbstractContextManager[None]]


def followed_of(
    space: Space, result: SearchResult, watcher: Watcher, stage: Stage
) -> tuple[tuple[Growth, ...], Followed | None]:
    """Follow the error that guards do not explain, with the explained nodes kept.

    Does nothing if guards explain it, if there was no search, or if the budget is spent.

    Args:
        space: The plans, after a search.
        result: What that found.
        watcher: Receives progress.
        stage: Begins and ends a stage of the run.
    """
    explained = result.needed & space.explained
    if result.needed == explained or not space.searches:
        return (), None
    work = lambda: _followed(space, explained, watcher, stage)  # noqa: E731
    path, followed = space.budget.within("growth", work, ((), None))
    if followed is not None and followed.out_of_time:
        space.budget.leave_out("origin")
    return path, followed


def _followed(
    space: Space, explained: Nodes, watcher: Watcher, stage: Stage
) -> tuple[tuple[Growth, ...], Followed | None]:
    variant, bench, budget = space.variant, space.bench, space.budget
    network, settings, plan = variant.case.network, variant.settings, space.plan(explained)

    def step(done: int, total: int) -> None:
        budget.spend("growth")
        watcher.step(done, total)

    def checked(done: int, total: int) -> None:
        budget.check()
        watcher.step(done, total)

    with stage("growth"):
        count = len(bench.samples)
        contributions = bench.contributions(plan, range(count))
        errors = []
        for done in range(count):
            checked(done, count)
            errors.append(next(contributions))
        low = emulate_typed(variant.write(plan)[0].model, accumulate=settings.accumulate)
        path = growth(
            network,
            low,
            computed(network, variant.roles),
            bench.samples[errors.index(max(errors))],
            runtime=settings.runtime,
            progress=step,
        )
    with stage("origin"):
        runtime = settings.runtime
        look = Deciding(
            network,
            variant.roles,
            lambda some: ModelRunner(low, some, partial=True, runtime=runtime),
            given_to(low, network, runtime=runtime),
            bench.error,
            bench.samples.with_progress(lambda *_: budget.spend("trial")),
            runtime,
        )
        decided, out_of_time = None, True
        with suppress(OutOfTime):
            decided, out_of_time = look.cause(errors), False
        if decided is None and not out_of_time:
            errors_with = lambda kept, of: bench.contributions(space.plan(kept), of)  # noqa: E731
            followed = follow(network, variant.roles, errors_with, explained, errors, path, checked)
        else:
            followed = Followed(
                kept=tuple(n for n in map(node_name, network.nodes()) if n in explained),
                error=max(errors),
                tried=(),
                origin=None,
                accumulates=False,
                samples=len(errors),
                out_of_time=out_of_time,
                decided=decided,
            )
    return path, followed


def with_growth(fixed: Fixed, folder: Path | None) -> Fixed:
    """Add the error along the user's model, everything low, if none was followed.

    For readers only; it decides nothing. Skipped if time is up, if everything low passed by so much
    that nothing was looked at closer, if the all-low model cannot be loaded, or if the run writes
    no folder.
    """
    space, variant = fixed.original, fixed.original.variant
    late = {"seconds", "interrupt"}.intersection(fixed.space.budget.ended_by)
    if folder is None or fixed.growth or late or space.evidence.closer is not None:
        return fixed
    network, sample = variant.case.network, space.bench.samples[0]
    runtime = variant.settings.runtime
    with suppress(CaseError, RunFailed):
        sizes = {n: prod(s) for n, s in seen_shapes(network, sample, runtime=runtime).items()}
        names = [n for n in computed(network, variant.roles) if sizes.get(n, inf) <= MOST_ELEMENTS]
        few = min(len(names), TENSORS)
        low, _ = variant.write(variant.plan(frozenset()))
        path = growth(
            network,
            emulate_typed(low.model, accumulate=variant.settings.accumulate),
            [names[(i + 1) * len(names) // few - 1] for i in range(few)],
            sample,
            runtime=runtime,
        )
        return replace(fixed, growth=path)
    return fixed


BORN_HERE = 0.2
"""An error may originate at a node if its inputs have less than this share of it. Our choice.

It is only a hint: a mean near zero, or a mask that becomes infinite, has a large relative error
that affects no output. Trials decide (`halfwise.fixing.following`)."""


def computed(network: Network, roles: Roles) -> list[TensorName]:
    """Return the float outputs of compute nodes, in graph order."""
    return [
        tensor_name(v)
        for n in network.nodes()
        if roles[name_of(n)].role is Role.COMPUTE
        for v in n.outputs
        if v.name and is_float(v)
    ]


def growth(
    network: Network,
    low: ir.Model,
    names: Sequence[TensorName],
    sample: Sample,
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
    for start in range(0, len(names), TENSORS):
        progress(start, len(names))
        chunk = names[start : start + TENSORS]
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
    depth: dict[NodeName, int] = {}
    reached: dict[TensorName, float] = dict(errors)
    records = []
    for node in network.nodes():
        read = operands(node)
        producers = [v.producer() for v in read]
        depth[name_of(node)] = 1 + max((depth[name_of(p)] for p in producers if p), default=0)
        inherited = max((reached.get(tensor_name(v), 0.0) for v in read), default=0.0)
        made = [errors[tensor_name(v)] for v in node.outputs if v.name in errors]
        for value in node.outputs:
            if value.name:
                reached.setdefault(tensor_name(value), inherited)
        if made:
            records.append(
                Growth(
                    node=name_of(node),
                    depth=depth[name_of(node)],
                    error=max(made),
                    inherited=inherited,
                )
            )
    return tuple(records)


Progress = Callable[[int, int], None]
Contributions = Callable[[Nodes, Iterable[int]], Iterator[float]]


def follow(
    network: Network,
    roles: Roles,
    contributions: Contributions,
    kept: Nodes,
    errors: Sequence[float],
    growth: Sequence[Growth],
    progress: Progress,
) -> Followed:
    """Return where most of the error originates with `kept` in FP32, if trials show a node.

    Relative errors along the graph only say where to look: that of a mean near zero is large
    without affecting any output. A node is the origin if `largest_left` is finite once the node is
    FP32 together with surrounding compute nodes (an edge is FP32 only between kept nodes). The
    group is as small as possible, and must not be more than half of the low nodes: the node alone,
    then with its readers, with their readers, with its producers; if it enlarges an error, also
    with their producers, where that leaves `BORN_HERE` of it.

    This must hold on all calibration samples, because in some models any change of rounding changes
    the errors everywhere.

    Args:
        network: The model.
        roles: Roles of its nodes.
        contributions: Returns the error of each given sample with nodes in FP32, relative to what
            the search allows; inf for new NaN or infinities.
        kept: Other FP32 nodes: the compute nodes that guards and rules explain.
        errors: That error for `kept`, of each sample.
        growth: Relative errors on one sample in the model with `kept` in FP32, in graph order.
        progress: Called before each run of a sample with the nodes tried and their total. It may
            raise `OutOfTime`: results so far are then returned.
    """
    nodes = {node_name(n): n for n in network.nodes()}
    to_try = _places(growth) if max(errors) > 0 else []
    steps = {g.node: g for g in growth}
    counterfactual = _Counterfactual(
        nodes, roles, contributions, kept, errors, progress, len(to_try)
    )
    origin, out_of_time = None, False
    with suppress(OutOfTime):
        out_of_time = True
        for name in to_try:
            origin = counterfactual.origin(steps[name])
            if origin is not None:
                break
        out_of_time = False
    return Followed(
        kept=tuple(n for n in nodes if n in kept),
        error=max(errors),
        tried=tuple(counterfactual.tried),
        origin=origin,
        accumulates=origin is None and not out_of_time and accumulates(growth),
        samples=len(errors),
        out_of_time=out_of_time,
    )


@dataclass
class _Counterfactual:
    """The error left with more nodes in FP32; attributes are those of `follow`.

    Attributes:
        most: Number of nodes to try.
        tried: Number of nodes tried.
    """

    nodes: Mapping[NodeName, ir.Node]
    roles: Roles
    contributions: Contributions
    kept: Nodes
    errors: Sequence[float]
    progress: Progress
    most: int
    tried: list[NodeName] = field(default_factory=list)
    _memo: dict[Nodes, float] = field(default_factory=dict)

    def origin(self, step: Growth) -> Origin | None:
        """Return the node as origin, with the fewest surrounding nodes that remove the error."""
        node = self.nodes[step.node]
        group = self._undone(step.node) or self._fed(step)
        self.tried.append(step.node)
        if group is None:
            return None
        if (others := self._without(node, group)) is not None:
            in_order = tuple(n for n in self.nodes if n in others)
            return Origin(node=in_order[0], kept=in_order, error=self._remaining(others))
        in_order = tuple(n for n in self.nodes if n in group)
        origin = Origin(node=step.node, kept=in_order, error=self._remaining(group))
        if step.inherited > 0 and group & _deciders(_before(node, self.roles), self.roles):
            return origin.model_copy(update={"read": step.inherited, "made": step.error})
        return origin

    def _undone(self, name: NodeName) -> Nodes | None:
        *smaller, whole = _around(self.nodes[name], self.nodes, self.roles)
        if not self._undoes(whole):
            return None
        group = next(filter(self._undoes, sorted(smaller, key=len)), whole)
        return group if self._is_few(group) else None

    def _without(self, node: ir.Node, group: Nodes) -> Nodes | None:
        """Return the fewest of a group that remove the error without the node; None if none do."""
        others = group - _deciders((node,), self.roles)
        if not others or not self._undoes(others):
            return None
        for name in sorted(others):
            fewer = others - {name}
            if fewer and self._undoes(fewer):
                others = fewer
        return others

    def _fed(self, step: Growth) -> Nodes | None:
        """Return a node that enlarges an error, with what leads to it, if that explains the error.

        FP32 at so many nodes removes some of any error; this has to remove as much as makes a place
        in the graph suspicious (`BORN_HERE`).
        """
        before = _before(self.nodes[step.node], self.roles)
        earlier = [n for node in before for n in _before(node, self.roles)]
        group = _deciders((self.nodes[step.node], *before, *earlier), self.roles)
        enlarges = step.inherited > 0 and self._is_few(group)
        remaining = self._remaining(group) if enlarges else inf
        return group if remaining <= BORN_HERE * max(self.errors) and remaining < inf else None

    def _is_few(self, group: Nodes) -> bool:
        low = sum(r.role is Role.COMPUTE for n, r in self.roles.items() if n not in self.kept)
        return len(group - self.kept) <= low / 2

    def _undoes(self, group: Nodes) -> bool:
        return self._remaining(group) < inf

    def _remaining(self, group: Nodes) -> float:
        """Return the largest error; inf if a sample shows that the group removes too little."""
        if group not in self._memo:
            self._memo[group] = self._largest(group)
        return self._memo[group]

    def _largest(self, group: Nodes) -> float:
        order = worst_first(self.errors)
        contributions = self.contributions(self.kept | group, order)

        def remaining() -> Iterator[float]:
            for _ in order:
                self.progress(len(self.tried), self.most)
                yield next(contributions)

        return largest_left(self.errors, remaining())


def _places(growth: Sequence[Growth]) -> list[NodeName]:
    """Return the nodes to try: first those with infinite error, then those with the largest."""
    places = sorted(born(growth), key=lambda g: -g.error)
    infinite = [g.node for g in places if isinf(g.error)][:MOST_TRIED]
    return infinite + [g.node for g in places if 0 < g.error < inf][:MOST_TRIED]


def _around(node: ir.Node, nodes: Mapping[NodeName, ir.Node], roles: Roles) -> list[Nodes]:
    """Return groups: the node, with its readers, with theirs, with its producers, with all."""
    before = _before(node, roles)
    after = _readers([node], nodes, roles)
    behind = _readers(after, nodes, roles)
    every = [*before, *after, *behind]
    groups: list[list[ir.Node]] = [[], after, [*after, *behind], before, every]
    return [_deciders((node, *group), roles) for group in groups]


def _before(node: ir.Node, roles: Roles) -> list[ir.Node]:
    return [n for v in operands(node) if is_float(v) for n in producers(v, roles)]


def _deciders(nodes: Iterable[ir.Node], roles: Roles) -> Nodes:
    deciders = (roles.part(n).decider for n in nodes)
    return frozenset(d for d in deciders if roles[d].role is Role.COMPUTE)


def _readers(
    group: Sequence[ir.Node], nodes: Mapping[NodeName, ir.Node], roles: Roles
) -> list[ir.Node]:
    """Return the readers of a group's outputs; for a node in a body, the owner of the body."""
    made = (v for n in group for v in n.outputs if is_float(v))
    return [nodes[roles.part(n).decider] for v in made for n, _ in consumers(v, roles)]
