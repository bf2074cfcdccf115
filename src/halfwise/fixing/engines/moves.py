"""What to try in place of a plan that the builder refused, most promising first.

The region that the builder names had kernels in the all-FP32 engine, and usually in the all-low
one: the plan's form is what has none. So the same plan is requested in another form first, with
fewer constraints in the region, then other plans. For one model, TensorRT 8.6.0 refused to
constrain everything to FP32, but built the same in FP32 with FP16 not allowed; most of what is
constrained in its fused block only moves data (basic_pitch, H200).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import onnx_ir as ir

from halfwise.emulation.typed import TENSOR_CORE_OPS
from halfwise.fixing.engines.attempts import Assignment, Candidate, Plan, Step
from halfwise.fixing.engines.builds import how_refused
from halfwise.fixing.engines.equivalent import UNROLLED_OPS, normalisations, refusal
from halfwise.fixing.engines.refusals import REFUSED
from halfwise.fixing.engines.terms import Terms
from halfwise.fixing.engines.workbench import Workbench
from halfwise.graph.dataflow import between
from halfwise.graph.fusions import wider
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.one_node import FIRST_OPSET
from halfwise.graph.roles import Role, Roles
from halfwise.records import BuildOutcome, Move, MoveKind, NodeName, RefusalKind
from halfwise.reporting.rungs import move_line
from halfwise.tensorrt.regions import Region, rim
from halfwise.tensorrt.versions import has, has_operator, version_of

LEVELS = (5, 1)
"""Optimization levels to try: at 5 the builder tries every kernel that it has or can generate, at 1
it generates none and uses its compiler least (TensorRT's developer guide, "Builder optimization
level"; the default is 3)."""
_ISLAND = 1 / 2
"""Share of the compute nodes; with more in FP32 an engine is hardly mixed."""
_NOTABLE_GROWTH = 1.5
"""A set is worth a build if the next larger one has at least this many times its nodes."""


def build_fp32(bench: Workbench, purpose: str) -> BuildOutcome:
    """Build the FP32 model without TF32; if the builder refuses, at another level.

    The run then uses that level: if the region has no kernel at the usual level, it has none there
    for any plan. If no level gives an engine, the first build is returned.
    """
    first = bench.builds.build(bench.fp32, purpose)
    kind = how_refused(first).kind
    if first.status not in REFUSED or kind == "unknown" or not Allowed.on(bench).level:
        return first
    for level in levels_after(kind)[: 1 if first.status == "timeout" else None]:
        move = Move(kind="level", refused=first.number, level=level)
        build = bench.builds.build(bench.fp32, f"{purpose}, {move_line(move)}", level=level)
        if build.engine is not None:
            bench.builds.settings = replace(bench.builds.settings, optimization_level=level)
            return build
    return first


def levels_after(kind: RefusalKind) -> tuple[int, ...]:
    """Return the optimization levels to try, most promising first: after a time-out, lower ones."""
    return LEVELS[::-1] if kind in ("crash", "timeout") else LEVELS


@dataclass(frozen=True)
class Proposal:
    """A plan to try.

    Attributes:
        step: Why it is tried.
        keep: Compute nodes requested in FP32.
        terms: What to tell the builder in addition to the settings.
    """

    step: Step
    keep: Assignment
    terms: Terms

    @property
    def plan(self) -> Plan:
        """What distinguishes it from other plans."""
        return self.keep, self.terms


@dataclass(frozen=True)
class Allowed:
    """What may be changed.

    Attributes:
        constraints: Whether constraints decide what is FP32: weak typing.
        level: Whether the optimization level is free: the version has levels, and the user chose
            none.
        tf32: Whether TF32 may be allowed and is not yet.
        operators: Operators that replace several nodes and that the builder has.
        certain: Nodes that guards are certain about.
    """

    constraints: bool = True
    level: bool = True
    tf32: bool = True
    operators: frozenset[str] = frozenset(FIRST_OPSET)
    certain: Assignment = frozenset()

    @classmethod
    def on(cls, bench: Workbench, certain: Assignment = frozenset()) -> Self:
        """Return what the run, its worker and its settings leave open."""
        settings, version = bench.builds.settings, version_of(bench.worker.info.tensorrt or "")
        levels = has("optimization levels", version)
        return cls(
            constraints=bench.builds.typing == "weak",
            level=levels and settings.optimization_level is None,
            tf32=not settings.tf32,
            operators=frozenset(op for op in FIRST_OPSET if has_operator(op, version)),
            certain=certain,
        )


@dataclass(frozen=True)
class Moves:
    """Proposes plans in place of one that was refused.

    Attributes:
        network: The model.
        roles: Roles of its nodes.
        failed: The refused candidate.
        region: Where it was refused.
        kind: How it was refused.
        allowed: What may be changed.
    """

    network: Network
    roles: Roles
    failed: Candidate
    region: Region
    kind: RefusalKind
    allowed: Allowed

    def proposals(self) -> Iterator[Proposal]:
        """Yield the plans, each once, excluding the refused one."""
        seen = {self.failed.plan}
        for proposal in self._all():
            if proposal.plan not in seen:
                seen.add(proposal.plan)
                yield proposal

    def _all(self) -> Iterator[Proposal]:
        whole = self._keep | self._computing
        small = len(whole) <= _ISLAND * len(self.roles.computing)
        yield from self._with_fewer_constraints(self._keep)
        if small:
            yield self._plan("region", whole)
        levels = levels_after(self.kind)
        yield from self._at_levels(levels[:1])
        yield from self._as_one_node()
        yield from self._written_out()
        yield from self._with_tf32()
        if small:
            yield from self._with_fewer_constraints(whole)
        yield from self._halves()
        yield from self._islands(small=True)
        yield from self._at_levels(levels[1:])
        inside = self._keep & self._computing
        if sure := inside & self.allowed.certain:
            yield self._plan("certain", self._keep - inside | sure)
        if not small:
            yield from self._islands(small=False)
            yield self._plan("region", whole)
        yield self._plan("none", self._keep - inside)

    @property
    def _keep(self) -> Assignment:
        return self.failed.keep

    @property
    def _there(self) -> Assignment:
        """The nodes of the region.

        Nodes kept next to a region that no engine shows created that region: then all of the model.
        """
        nodes = self.region.nodes
        known = self.region.shown or nodes & self.roles.computing & self._keep
        return nodes if known else frozenset(self.roles)

    @property
    def _computing(self) -> Assignment:
        return self._there & self.roles.computing

    def _plan(
        self,
        kind: MoveKind,
        keep: Assignment,
        terms: Terms | None = None,
        island: str = "",
    ) -> Proposal:
        terms = terms or self.failed.terms
        move = Move(
            kind=kind,
            refused=self.failed.build.number,
            ends=self.region.ends,
            island=island,
            level=terms.level,
            border=bool(terms.border),
        )
        return Proposal(move, keep, terms)

    def _with_fewer_constraints(self, keep: Assignment) -> Iterator[Proposal]:
        """Yield `keep` without constraints on data movement there, then with its border only.

        If nothing is kept, or everything is next to a low node, no constraint can be dropped.
        """
        terms, nodes = self.failed.terms, self._there
        if not self.allowed.constraints or not keep & nodes:
            return
        moving = {n for n in nodes if self.roles[n].role is Role.MOVEMENT}
        if moving and not terms.computing:
            yield self._plan("computing", keep, replace(terms, computing=nodes))
        kept = keep & nodes | moving
        if not terms.border and not kept <= rim(self.network, self.roles, kept):
            yield self._plan("border", keep, replace(terms, border=nodes))

    def _at_levels(self, levels: Iterable[int]) -> Iterator[Proposal]:
        terms = self.failed.terms
        for level in levels if self.allowed.level and terms.level is None else ():
            yield self._plan("level", self._keep, replace(terms, level=level))

    def _with_tf32(self) -> Iterator[Proposal]:
        """Yield the plan with TF32 if that affects what is FP32 there."""
        terms = self.failed.terms
        products = {node_name(n) for n in self._nodes if is_standard(n, *TENSOR_CORE_OPS)}
        if self.allowed.tf32 and not terms.tf32 and products & self._keep:
            yield self._plan("tf32", self._keep, replace(terms, tf32=True))

    def _as_one_node(self) -> Iterator[Proposal]:
        """Yield the plan with each normalisation of the region as one node."""
        terms = self.failed.terms
        if not self.allowed.constraints or terms.rewritten:
            return
        found = (c.nodes for c in normalisations(self.network, self.allowed.operators)[1])
        names = frozenset(n for nodes in found if self._there & set(nodes) for n in nodes)
        if names:
            yield self._plan("one-node", self._keep, replace(terms, rewritten=names))

    def _written_out(self) -> Iterator[Proposal]:
        """Yield the plan with the GRUs and LSTMs of the region written out."""
        recurrent = (n for n in self._nodes if is_standard(n, *UNROLLED_OPS))
        names = frozenset(node_name(n) for n in recurrent if refusal(n) is None)
        terms = self.failed.terms
        if self.allowed.constraints and names and not terms.rewritten:
            yield self._plan("written-out", self._keep, replace(terms, rewritten=names))

    def _halves(self) -> Iterator[Proposal]:
        """Yield the plan with either half of the region kept, if something is kept there."""
        order = [name for name in map(node_name, self._nodes) if name in self._computing]
        middle = (len(order) + 1) // 2
        for half in map(frozenset[NodeName], (order[:middle], order[middle:])):
            if half & self._keep:
                yield self._plan("half", self._keep | half)

    def _islands(self, *, small: bool) -> Iterator[Proposal]:
        """Yield wider islands around the kept nodes there, up to half of the model or more."""
        inside, most = self._keep & self._computing, _ISLAND * len(self.roles.computing)
        if not inside:
            return
        larger = [
            *wider(self.network, self.roles, inside),
            ("all between the kept nodes", between(self.network, inside) & self.roles.computing),
        ]
        sets = sorted(((name, self._keep | wide) for name, wide in larger), key=lambda s: len(s[1]))
        for name, keep in _spaced([s for s in sets if (len(s[1]) <= most) == small]):
            yield self._plan("island", keep, island=name)

    @property
    def _nodes(self) -> list[ir.Node]:
        """The nodes of the region in graph order."""
        return [n for n in self.network.nodes() if node_name(n) in self._there]


def _spaced(sets: Sequence[tuple[str, Assignment]]) -> list[tuple[str, Assignment]]:
    """Return the largest of `sets`, which grow, and those notably smaller than the next one."""
    found: list[tuple[str, Assignment]] = []
    for name, chosen in reversed(sets):
        if not found or len(found[0][1]) >= _NOTABLE_GROWTH * len(chosen):
            found.insert(0, (name, chosen))
    return found
