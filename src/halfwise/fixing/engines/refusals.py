"""What the builder refused in this run, so that it is not asked for again."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from halfwise.fixing.engines.attempts import Assignment, Candidate, Plan
from halfwise.fixing.engines.builds import how_refused
from halfwise.fixing.engines.workbench import Workbench
from halfwise.fixing.planner import Planner
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Roles
from halfwise.records import BuildOutcome, Refusal, RefusalKind
from halfwise.tensorrt.failures import ENGINE_FAULTS
from halfwise.tensorrt.layers import Ends, Region, blocks, neighbours, region_of

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

    def take(self, candidate: Candidate) -> None:
        """Remember a refused candidate, or what its engine shows about other refusals."""
        self.take_build(candidate.build, candidate.plan)

    def take_build(self, build: BuildOutcome, plan: Plan | None) -> None:
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
        settings = [(t.tf32, t.level, t.rewritten) for t in (plan[1], other[1])]
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
