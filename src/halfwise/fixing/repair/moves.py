"""Repairs as one move: a network with some of them, of which a plan costs less than those without.

What rules propose is tried by the price of keeping nothing: the cheapest set with which that
passes is taken, if it is proven to be the same function. If none passes, all of them are taken
where a plan with them costs less than what a search without them finds.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations
from math import inf, isfinite

from halfwise.emulation.budget import sized
from halfwise.errors import CaseError, RunFailed, UsageError
from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.depths import Depths
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.plan.plan import NONE, Nodes, Variant
from halfwise.fixing.plan.rules import ISLAND
from halfwise.fixing.repair import making
from halfwise.fixing.repair.proof import Prover, infinite_at, is_same
from halfwise.fixing.repair.rule import Rule
from halfwise.fixing.space import LowSpace
from halfwise.graph.model import node_name
from halfwise.judging.inside import emulate
from halfwise.observing.reference import PART_OF_BUDGET
from halfwise.records import LEAST_DEARER, NodeName, Remark, RemarkKind, Repair, RepairRule
from halfwise.wording import listed

UNDONE_ALONE = 4
"""Each repair is undone alone up to this many: larger numbers concern similar layers. Our
choice."""

Set = tuple[Repair, ...]
Place = tuple[RepairRule, tuple[NodeName, ...]]
"""A repair's rule and nodes."""


def allowed_rules(space: LowSpace) -> list[Rule]:
    """Return the rules not excluded by options, in order; none if nothing is searched."""
    if not space.searches:
        return []
    return [rule for rule in making.RULES if rule.name not in space.variant.settings.no_repair]


def with_repairs(space: LowSpace, heldout: HeldOut) -> tuple[LowSpace, tuple[Remark, ...]]:
    """Return the plans of the network with the repairs that are worth making, and remarks.

    The same plans if none are, or if the budget leaves no time.

    Args:
        space: The plans of the network without repairs.
        heldout: Samples on which the function has to be the same as well.
    """
    move = _Move(space, heldout)
    made = space.budget.within("repair", move.taken, None, part=PART_OF_BUDGET)
    return made or space, tuple(move.remarks(() if made is None else made.repairs))


@dataclass
class _Move:
    space: LowSpace
    heldout: HeldOut
    _notes: list[Remark] = field(default_factory=list)
    _objections: dict[Place, Remark] = field(default_factory=dict)

    def remarks(self, made: Iterable[Repair]) -> Iterator[Remark]:
        """Yield why each other repair that was proposed is not made."""
        places = {(repair.rule, repair.nodes) for repair in made}
        yield from self._notes
        yield from (why for place, why in self._objections.items() if place not in places)

    def taken(self) -> LowSpace | None:
        """Return the plans with the repairs that are worth making; None if none are."""
        space = self.space
        if space.evaluate(space.ruled).passed and not self._is_infinite(space):
            return None
        sets = sorted(
            self._sets(), key=lambda pair: (self._price(pair[1], pair[1].ruled), len(pair[0]))
        )
        for some, variant in sets:
            if self._is_outdone(some, variant):
                return None  # and so are those after it, which cost more
            if (error := self._error(variant)) > 1:
                before = space.excess(space.ruled)
                numbers = {"before": before, "after": error} if isfinite(before + error) else {}
                self._object("repair-useless", some, "", **numbers)
            elif (made := self._made(self._fewest(some), bare=True)) is not None:
                return made
        most = max((some for some, _ in sets), key=len, default=())
        return self._made(most, bare=False) if most else None

    # --- sets ----------------------------------------------------------------------------------

    def _sets(self) -> Iterator[tuple[Set, Variant]]:
        """Yield what some of the rules propose, and the network with it."""
        space, settings = self.space, self.space.variant.settings
        evidence = Evidence(
            space.variant.case.network,
            space.variant.roles,
            space.evidence.observations,
            settings.fmt,
            settings.headroom,
            settings.accumulate,
            space.evidence.guards,
        )
        proposed: list[Set] = []
        for rule in allowed_rules(space):
            space.budget.check()
            formula = {"identity": rule.identity}
            proposed.append(tuple(r.model_copy(update=formula) for r in rule.propose(evidence)))
        self._notes += evidence.remarks
        proposed = [repairs for repairs in proposed if repairs]
        for size in range(len(proposed)):
            for groups in combinations(proposed, size + 1):
                some = tuple(chain.from_iterable(groups))
                if (variant := self._variant(some)) is not None:
                    yield some, variant

    def _variant(self, some: Set) -> Variant | None:
        """Return the network with repairs; None if they cannot be made."""
        before, why = self.space.variant, "a rule names a node that it removes or replaces"
        try:
            variant = before.with_repairs(some)
        except (CaseError, UsageError) as error:
            why = error.message
        else:
            ops = [
                {node_name(n): n.op_type for n in v.case.network.nodes()} for v in (before, variant)
            ]
            forced = before.forced
            ruled = {n for n, by in forced.kept.items() if by != ISLAND}.union(forced.lowered)
            if all(ops[1].get(name) == ops[0][name] for name in ruled):
                return variant
        self._object("repair-unmade", some, why)
        return None

    def _fewest(self, some: Set) -> Set:
        """Return a set without repairs that it does not need, one by one if they are few."""
        for repair in some if 1 < len(some) <= UNDONE_ALONE else ():
            fewer = tuple(each for each in some if each is not repair)
            variant = self._variant(fewer)
            if variant is not None and self._error(variant) <= 1:
                some = fewer
                self._object("repair-spare", (repair,))
        return some

    # --- what speaks against one ----------------------------------------------------------------

    def _object(self, kind: RemarkKind, some: Set, why: str = "", **numbers: float) -> None:
        for repair in some:
            whose = {"rule": repair.rule, "nodes": listed(repair.nodes), "why": why}
            self._objections[repair.rule, repair.nodes] = Remark(
                kind=kind, names={n: t for n, t in whose.items() if t}, numbers=numbers
            )

    def _error(self, variant: Variant) -> float:
        """Return the error of a mixed model that keeps only what rules keep, on all samples.

        Relative to what a trial may use. A trial is stricter: there, tensors also need headroom.
        """
        space, samples = self.space, self.space.bench.samples
        space.budget.spend("trial", len(samples))
        try:
            with sized("trying"):
                model = variant.write(variant.plan(variant.ruled))[0].model
                emulated = emulate(
                    model,
                    samples.with_progress(space.watcher.step),
                    accumulate=variant.settings.accumulate,
                    inspected=0,
                    runtime=variant.settings.runtime,
                )
        except (CaseError, RunFailed):
            return inf
        return space.bench.excess_of(emulated.results)

    def _is_outdone(self, some: Set, variant: Variant) -> bool:
        """Return whether a search without repairs finds a plan that costs less than keeping none.

        None is made if no plan without them can cost less.
        """
        cost = self._price(variant, variant.ruled)
        if cost <= LEAST_DEARER * _least(self.space) or self._without >= cost:
            return False
        self._object("repair-outdone", some, before=self._without, after=cost)
        return True

    @cached_property
    def _without(self) -> float:
        """The cost of what a search without repairs finds; inf if FP32 costs no more."""
        result = self.space.find(NONE, certify=False)
        return self._price(self.space.variant, result.kept) if result.passed else inf

    def _price(self, variant: Variant, kept: Nodes) -> float:
        """Return the cost of a plan; inf if unknown, or if the original in FP32 costs no more."""
        cost, fp32 = variant.cost(variant.plan(kept)), self.space.cost(self.space.choices)
        return inf if cost is None or fp32 is None or cost >= fp32 else cost

    def _is_infinite(self, space: LowSpace) -> bool:
        return bool(Depths(space, self.heldout).look_inside(space.plan(space.ruled)))

    # --- making ---------------------------------------------------------------------------------

    def _made(self, some: Set, *, bare: bool) -> LowSpace | None:
        """Return the plans with repairs, if keeping nothing passes, or a seed that costs less."""
        space = self.space
        made = space.repaired(some)
        if bare:
            taken = made.evaluate(made.ruled).passed and not self._is_infinite(made)
        else:
            seed = made.seed()
            taken = seed is not None and self._price(made.variant, seed) < self._without
        if not taken:
            self._object("repair-useless", some)
            return None
        proof = self._prover.prove(made.variant.case.network)
        if not is_same(proof):
            numbers = {"value": proof.repaired, "original": proof.original}
            numbers |= {"elements": proof.broken or None, "mended": proof.mended or None}
            known = {name: value for name, value in numbers.items() if value is not None}
            self._object("repair-unproven", some, "", **known)
            return None
        before, after = (each.excess(each.ruled) for each in (space, made))
        facts = {"before": before, "after": after, "proof": proof}
        repairs = (r.model_copy(update={**facts, "room": room(made, r)}) for r in some)
        return replace(made, repairs=tuple(repairs))

    @cached_property
    def _prover(self) -> Prover:
        space, heldout = self.space, self.heldout
        ids = (*space.bench.samples.ids, *heldout.samples.ids)
        outputs = (*space.bench.references, *heldout.references)
        infinite = (i for i, o in zip(ids, outputs, strict=True) if infinite_at(o))
        return Prover(
            space.variant.case.network,
            space.variant.case.calibration,
            heldout.samples,
            infinite=frozenset(infinite),
            runtime=space.variant.settings.runtime,
            budget=space.budget,
        )


def room(space: LowSpace, repair: Repair) -> float | None:
    """Return how many times larger the tensors that `repair` scales may become until one overflows.

    Args:
        space: With the repair.
        repair: Any; None if it scales nothing that was seen.
    """
    observed = space.evidence.observations.tensors
    largest = max((o.absmax for o in observed if o.tensor in repair.exponents), default=0.0)
    return space.variant.settings.fmt.overflow_threshold / largest if largest else None


def _least(original: LowSpace) -> float:
    """Return the cost of the cheapest plan of all, whether it passes or not; inf if unknown."""
    kept = original.ruled if original.guide is None else original.guide.cheapest(original.ruled)
    cost = original.cost(kept & original.choices | original.ruled)
    return inf if cost is None else cost
