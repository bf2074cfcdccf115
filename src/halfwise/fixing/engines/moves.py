"""What to try in place of a plan that the builder refused, most promising first.

The region that the builder names had kernels in the all-FP32 engine, and usually in the all-low
one: the plan's form is what has none. So the same plan is requested in another form first, with
fewer constraints in the region, then other plans. For one model, TensorRT 8.6.0 refused to
constrain everything to FP32, but built the same in FP32 with FP16 not allowed; most of what is
constrained in its fused block only moves data (basic_pitch, H200).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Self

import onnx_ir as ir

from halfwise.emulation.typed import TENSOR_CORE_OPS
from halfwise.fixing.engines.attempts import Assignment, Candidate, Plan, Step, Terms
from halfwise.fixing.engines.builds import how_refused
from halfwise.fixing.engines.workbench import Workbench
from halfwise.fixing.planner import Planner
from halfwise.graph.dataflow import between
from halfwise.graph.fusions import wider
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.roles import Role, Roles
from halfwise.records import BuildOutcome, Move, MoveKind, Refusal, RefusalKind
from halfwise.reporting.rungs import move_line
from halfwise.tensorrt.failures import ENGINE_FAULTS
from halfwise.tensorrt.layers import Ends, Region, blocks, neighbours, region_of, rim
from halfwise.tensorrt.versions import has, version_of

INSPECTED = 2
"""Engines that are inspected: the one in FP32, and one more."""
REFUSED = ("failed", "crashed", "timeout")
"""Build outcomes that concern the request, not the worker."""


@dataclass(frozen=True)
class Refused:
    """A plan that was refused.

    Attributes:
        plan: The plan; None for the FP32 model.
        kind: How it was refused.
        build: Number of the build.
        region: Where it was refused.
        avoided: Plans not built because of it.
        refuted: Whether an engine was built that is the same there: the refusal was by chance, or
            for another reason.
        said: The line of the log that reports it.
    """

    plan: Plan | None
    kind: RefusalKind
    build: int
    region: Region
    avoided: frozenset[Plan] = frozenset()
    refuted: bool = False
    said: str = ""


@dataclass
class Refusals:
    """The plans that the builder refused.

    Attributes:
        network: The model.
        roles: Roles of its nodes.
        fp32: Returns the nodes of a plan that are FP32 through a constraint or Cast.
        blocks: Returns the fused blocks that engines of this model show, by their ends; called when
            a builder names one.
    """

    network: Network
    roles: Roles
    fp32: Callable[[Plan], Assignment]
    blocks: Callable[[], dict[Ends, Assignment]]
    found: list[Refused] = field(default_factory=list)
    _built: set[Plan] = field(default_factory=set)

    def take(self, build: BuildOutcome, plan: Plan | None) -> None:
        """Remember a build of a plan, or of the FP32 model."""
        if build.engine is not None and plan is not None and plan not in self._built:
            self._built.add(plan)
            refuted = [r.refuted or self._alike(plan, r) for r in self.found]
            pairs = zip(self.found, refuted, strict=True)
            self.found = [replace(r, refuted=is_refuted) for r, is_refuted in pairs]
        if build.engine is None and build.status in REFUSED:
            how = how_refused(build)
            shown = self.blocks() if how.ends else {}
            region = region_of(self.network, self.roles, how.ends, shown)
            said = how.line or (build.message if how.kind == "unknown" else "")
            refused = Refused(plan, how.kind, build.number, region, said=said)
            known = any(self._alike(built, refused) for built in self._built)
            self.found.append(replace(refused, refuted=known))

    def of(self, candidate: Candidate) -> Refused:
        """Return how and where a candidate was refused; both unknown if it was not."""
        known = (r for r in self.found if r.build == candidate.build.number)
        whole = region_of(self.network, self.roles, (), {})
        otherwise = Refused(candidate.plan, "unknown", candidate.build.number, whole)
        return next(known, otherwise)

    def is_elsewhere(self, candidate: Candidate) -> bool:
        """Return whether a candidate was refused in a region without earlier refusals."""
        own = self.of(candidate)
        before = [r.region for r in self.found if r.build < own.build]
        return own in self.found and own.region not in before

    def expected(self, plan: Plan) -> bool:
        """Return whether a plan would be refused like an earlier one, and count it.

        It would if it is built on the same terms and has the same FP32 nodes in the region and next
        to it: these determine every type that the region computes in, reads and gives. If no engine
        shows the region, the FP32 nodes of the whole model must be the same. Once an engine of such
        a plan was built, no refusal is expected.
        """
        for place, refused in enumerate(self.found):
            if not refused.refuted and self._alike(plan, refused):
                if plan != refused.plan:
                    self.found[place] = replace(refused, avoided=refused.avoided | {plan})
                return True
        return False

    def _alike(self, plan: Plan, refused: Refused) -> bool:
        other, region = refused.plan, refused.region
        if other is None:
            return False
        settings = [(t.tf32, t.level) for t in (plan[1], other[1])]
        if settings[0] != settings[1]:
            return False
        differ = self.fp32(plan) ^ self.fp32(other)
        if not region.shown:
            return not differ
        return not differ & (region.nodes | neighbours(self.network, self.roles, region.nodes))

    def records(self) -> tuple[Refusal, ...]:
        """Return the refusals, in order."""
        order = [node_name(n) for n in self.network.nodes()]
        return tuple(
            Refusal(
                kind=r.kind,
                build=r.build,
                ends=r.region.ends,
                nodes=tuple(n for n in order if n in r.region.nodes) if r.region.ends else (),
                shown=r.region.shown,
                avoided=len(r.avoided),
                said=r.said,
            )
            for r in self.found
        )


@dataclass
class Shown:
    """What engines show about how the builder fuses the model.

    Attributes:
        bench: Holds the engines.
        planner: Holds the model.
    """

    bench: Workbench
    planner: Planner
    _found: dict[int, dict[Ends, Assignment]] = field(default_factory=dict)

    def blocks(self) -> dict[Ends, Assignment]:
        """Return the fused blocks of the first engines built, by their ends."""
        for build in self.bench.builds.outcomes:
            if build.engine is None or build.number in self._found:
                continue
            if len(self._found) == INSPECTED:
                break
            self._found[build.number] = {}
            with suppress(*ENGINE_FAULTS):  # then it shows none
                layers = self.bench.proof(build, self.planner, {}).layers
                self._found[build.number] = blocks(layers)
        return {ends: nodes for found in self._found.values() for ends, nodes in found.items()}


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
    """

    constraints: bool = True
    level: bool = True
    tf32: bool = True

    @classmethod
    def on(cls, bench: Workbench) -> Self:
        """Return what the run, its worker and its settings leave open."""
        settings, version = bench.builds.settings, version_of(bench.worker.info.tensorrt or "")
        levels = has("optimization levels", version)
        return cls(
            constraints=bench.builds.typing == "weak",
            level=levels and settings.optimization_level is None,
            tf32=not settings.tf32,
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
        yield from self._with_tf32()
        if small:
            yield from self._with_fewer_constraints(whole)
        yield from self._islands(small=True)
        yield from self._at_levels(levels[1:])
        if not small:
            yield from self._islands(small=False)
            yield self._plan("region", whole)
        yield self._plan("none", self._keep - self._computing)

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
