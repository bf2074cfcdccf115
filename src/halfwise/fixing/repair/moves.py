"""Repairs as one move: a network with some of them, of which a plan costs less than those without.

What some of the rules propose is a network of its own. Its plans that keep nothing, or what the
repairs leave in doubt, are tried by price. The first that passes is taken if it is proven to be the
same function, and if no plan costs less that a search without repairs finds.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain, combinations
from math import inf

from msgspec import Struct

from halfwise.errors import CaseError, RunFailed, UsageError
from halfwise.fixing.bench import Bench
from halfwise.fixing.depths import Depths, HeldOut
from halfwise.fixing.plan.plan import Plan, Variant, union
from halfwise.fixing.plan.rules import ISLAND, ONLY, Start
from halfwise.fixing.repair import making, proof
from halfwise.fixing.repair.making import Rule
from halfwise.fixing.repair.rule import place
from halfwise.fixing.repair.scale import Scale
from halfwise.fixing.space import Space
from halfwise.graph.model import Network, node_name
from halfwise.observing.reference import PART_OF_BUDGET
from halfwise.records import (
    LEAST_DEARER,
    NodeName,
    Proof,
    Remark,
    RemarkKind,
    Repair,
    RepairRule,
    replace,
)
from halfwise.wording import listed

UNDONE_ALONE = 4
"""Each repair is undone alone up to this many: larger numbers concern similar layers. Our
choice."""

NEAR = 2.0
"""Error with nothing kept, relative to what is allowed, up to which few kept nodes may do beside
repairs: a flow transformer is at 1.5, magika, where a search is in vain, at 10. Our choice."""

Set = tuple[Repair, ...]
Where = tuple[RepairRule, tuple[NodeName, ...]]
"""A repair's rule and nodes."""


def allowed_rules(space: Space) -> list[Rule]:
    """Return the rules, in order; none if options exclude them or nothing is searched."""
    excluded = space.variant.settings.no_repair or not space.searches
    return [] if excluded else list(making.RULES)


def with_repairs(space: Space, heldout: HeldOut) -> Space:
    """Return the plans of the network with the repairs that are worth making.

    They know what is undone. The same plans if none are, or if the budget leaves no time.

    Args:
        space: The plans of the network without repairs.
        heldout: Samples on which the function has to be the same as well.
    """
    move = _Move(space, heldout)
    made = space.budget.within("repair", move.taken, None, part=PART_OF_BUDGET)
    undone = move.remarks(() if made is None else made.repairs)
    return replace(made or space, undone=tuple(undone))


class _Move(Struct, dict=True):
    space: Space
    heldout: HeldOut
    _objections: dict[Where, Remark] = {}

    def remarks(self, made: Iterable[Repair]) -> Iterator[Remark]:
        """Yield why each other repair that was proposed is not made."""
        there = {(repair.rule, repair.nodes) for repair in made}
        yield from (why for where, why in self._objections.items() if where not in there)

    def taken(self) -> Space | None:
        """Return the plans with the repairs that are worth making; None if none are."""
        space = self.space
        bare = space.plan(space.ruled)
        if space.evaluate(bare.kept).passed and not self._is_infinite(space, bare):
            return None
        space.observed.look_at_sums(space.variant)
        for some, plan in self._tries():
            if self._is_outdone(some, plan):
                break  # and so are those after it, which cost more
            if not self._passes(plan):
                self._object("repair-useless", some)
            elif (made := self._made(*self._fewest(some, plan))) is not None:
                return made
        return self._nearest()

    def _tries(self) -> Iterator[tuple[Set, Plan]]:
        """Yield plans of networks with repairs, in the order of `_order`.

        What comes later in `_tiers` is not made before what costs as little as any.
        """
        least, tries = LEAST_DEARER * _least(self.space), list[tuple[Set, Plan]]()
        for sets in self._tiers():
            tries += [(some, plan) for some in sets for plan in self._plans(some)]
            tries.sort(key=lambda one: self._order(*one))
            early = [one for one in tries if self._price(one[1]) <= least]
            yield from early
            tries = tries[len(early) :]
        yield from tries

    def _nearest(self) -> Space | None:
        """Return the plans with all exact repairs; with those that a search keeps, if some may be.

        None if they leave more than `NEAR` times the error that is allowed, or if plans without
        repairs cost as little. Where nothing may be kept, the reasons of the failure are then those
        of the user's own nodes.
        """
        some = max(self._exact, key=len, default=())
        variant = self._variant(some) if some else None
        if variant is None:
            return None
        plan = variant.plan(variant.ruled)
        if not self._trials.excess(plan) <= NEAR:
            return None
        if self.space.variant.settings.rules.only:
            return self._made(some, plan, must_pass=False)
        made = self.space.repaired(some, variant)
        result = made.find()
        plan = made.plan(result.kept)
        dear = LEAST_DEARER * self._price(plan) >= self._without
        return self._made(some, plan) if result.passed and not dear else None

    # --- sets ----------------------------------------------------------------------------------

    def _tiers(self) -> Iterator[list[Set]]:
        """Yield scales that fold into weights, all exact sets, and those that round otherwise.

        The first take a tenth of the time to find, and are mostly enough.
        """
        scales = any(isinstance(rule, Scale) for rule in allowed_rules(self.space))
        folding = self._proposal(Scale(muls=False)) if scales else ()
        yield [folding] if folding else []
        yield [some for some in self._exact if some != folding]
        yield [some for some in self._sets if some not in self._exact]

    @cached_property
    def _exact(self) -> list[Set]:
        return [some for some in self._sets if not _rounds_otherwise(some)]

    @cached_property
    def _sets(self) -> list[Set]:
        """What some of the rules propose together."""
        proposed = [self._proposal(rule) for rule in allowed_rules(self.space)]
        proposed = [repairs for repairs in proposed if repairs]
        groups = (combinations(proposed, size + 1) for size in range(len(proposed)))
        return [tuple(chain.from_iterable(some)) for some in chain.from_iterable(groups)]

    def _proposal(self, rule: Rule) -> Set:
        self.space.budget.check()
        proposed = rule.propose(self.space.evidence)
        return tuple(replace(one, identity=rule.identity) for one in proposed)

    def _plans(self, some: Set) -> list[Plan]:
        """Return the plans to try with repairs; none if the repairs cannot be made.

        They keep nothing, the nodes that repairs insert, and those of guards not answered too; only
        nothing if all has to be low.
        """
        if (variant := self._variant(some)) is None:
            return []
        if self.space.variant.settings.rules.only:
            return [variant.plan(variant.ruled)]
        answered = {at for repair in some for at in repair.guards}
        rest = [g for g in self.space.evidence.guards if place(g) not in answered]
        inserted = variant.ruled | (variant.computing - self.space.choices)
        doubtful = union([inserted, *map(variant.holdable, rest)]) & variant.computing
        kept = dict.fromkeys((variant.ruled, inserted, doubtful))
        return [variant.plan(nodes) for nodes in kept]

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
            rules = (*forced.kept.items(), *forced.lowered.items())
            ruled = {node for node, by in rules if by not in (ISLAND, ONLY)}
            if all(ops[1].get(name) == ops[0][name] for name in ruled):
                return variant
        self._object("repair-unmade", some, why)
        return None

    def _fewest(self, some: Set, plan: Plan) -> tuple[Set, Plan]:
        """Return a set without repairs that it does not need, one by one if they are few."""
        for repair in some if 1 < len(some) <= UNDONE_ALONE else ():
            fewer = tuple(each for each in some if each is not repair)
            variant = self._variant(fewer)
            other = None if variant is None else variant.plan(plan.kept & variant.computing)
            if (
                other is not None
                and self._price(other) <= self._price(plan)
                and self._passes(other)
            ):
                some, plan = fewer, other
                self._object("repair-spare", (repair,))
        return some, plan

    # --- what speaks against one ----------------------------------------------------------------

    def _object(self, kind: RemarkKind, some: Set, why: str = "", **numbers: float) -> None:
        for repair in some:
            whose = {"rule": repair.rule, "nodes": listed(repair.nodes), "why": why}
            names = {name: text for name, text in whose.items() if text}
            note = Remark(kind=kind, names=names, numbers=numbers)
            self._objections.setdefault((repair.rule, repair.nodes), note)

    @cached_property
    def _trials(self) -> Bench[Plan]:
        """Evaluates plans of networks that were not observed, so without headroom."""
        return self.space.bench.on(self.space.bench.judge)

    def _passes(self, plan: Plan) -> bool:
        try:
            bench = self.space.bench if self.space.observed.get(plan.of) else self._trials
            return bench.evaluate(plan).passed
        except (CaseError, RunFailed):
            return False

    def _order(self, some: Set, plan: Plan) -> tuple[float, bool, float, int]:
        """Return what sorts tries: of those that cost no more than any plan has to, exact ones.

        Predictions are not good enough to prefer one that rounds differently to those.
        """
        price, least = self._price(plan), LEAST_DEARER * _least(self.space)
        return max(price, least), _rounds_otherwise(some), price, len(some)

    def _is_outdone(self, some: Set, plan: Plan) -> bool:
        """Return whether a search without repairs finds a plan that costs less.

        Or as much, if the repaired one keeps nodes. None is made if no plan without them can.
        """
        cost = self._price(plan)
        if cost <= LEAST_DEARER * _least(self.space):
            return False
        if self._without > cost or (self._without == cost and plan.kept <= plan.of.ruled):
            return False
        costs = {"before": self._without, "after": plan.of.cost(plan) or inf}
        self._object("repair-outdone", some, "", **(costs if inf not in costs.values() else {}))
        return True

    @cached_property
    def _without(self) -> float:
        """The cost of what a search without repairs finds; inf if FP32 costs no more."""
        result = self.space.find()
        return self._price(self.space.plan(result.kept)) if result.passed else inf

    def _price(self, plan: Plan) -> float:
        """Return the cost of a plan; inf if unknown, or if the original in FP32 costs no more."""
        cost, fp32 = plan.of.cost(plan), self.space.cost(self.space.choices)
        return inf if cost is None or fp32 is None or cost >= fp32 else cost

    def _is_infinite(self, space: Space, plan: Plan) -> bool:
        return bool(Depths(space, self.heldout).inside(plan).guards)

    # --- making ---------------------------------------------------------------------------------

    def _made(self, some: Set, plan: Plan, *, must_pass: bool = True) -> Space | None:
        """Return the plans with repairs if they are proven, and this one passes and holds."""
        made = self.space.repaired(some, plan.of)
        if must_pass and (not made.evaluate(plan.kept).passed or self._is_infinite(made, plan)):
            self._object("repair-useless", some)
            return None
        shown = self._proof(plan.of.case.network)
        if not proof.is_same(shown):
            known = {"elements": shown.broken} if shown.broken else {"value": shown.repaired}
            self._object("repair-unproven", some, "", **known)
            return None
        before, after = (each.excess(each.ruled) for each in (self.space, made))
        repairs = (
            replace(r, before=before, after=after, proof=shown, room=room(made, r)) for r in some
        )
        return replace(made, repairs=tuple(repairs), start=Start(plan.kept))

    def _proof(self, repaired: Network) -> Proof:
        space, heldout = self.space, self.heldout
        ids = (*space.bench.samples.ids, *heldout.samples.ids)
        outputs = (*space.bench.references, *heldout.references)
        return proof.prove(
            space.variant.case.network,
            repaired,
            space.variant.case.calibration,
            heldout.samples,
            known=dict(zip(ids, outputs, strict=True)),
            runtime=space.variant.settings.runtime,
            budget=space.budget,
            shapes=space.variant.shapes,
        )


def _rounds_otherwise(some: Set) -> bool:
    return any(repair.rule in ("one-node", "split", "shift") for repair in some)


def room(space: Space, repair: Repair) -> float | None:
    """Return how many times larger the tensors that `repair` scales may become until one overflows.

    Args:
        space: With the repair.
        repair: Any; None if it scales nothing that was seen.
    """
    observed = space.evidence.observations.tensors
    largest = max((o.absmax for o in observed if o.tensor in repair.exponents), default=0.0)
    return space.variant.settings.fmt.overflow_threshold / largest if largest else None


def _least(original: Space) -> float:
    """Return the cost of everything low that may be, whether it passes or not; inf if unknown."""
    cost = original.cost(original.ruled)
    return inf if cost is None else cost
