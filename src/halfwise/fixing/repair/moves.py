"""Repairs as moves: made if they are proven, help, and cost no more than kept nodes; undone else.

Once samples have joined, they are chosen again. A plan without repairs that is as good is taken.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, isfinite

from halfwise.emulation.budget import sized
from halfwise.errors import CaseError, RunFailed, UsageError
from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.depths import Depths
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.plan.guide import union
from halfwise.fixing.plan.plan import NONE, Nodes
from halfwise.fixing.plan.result import SearchResult
from halfwise.fixing.plan.rules import ISLAND, ONLY
from halfwise.fixing.repair import making
from halfwise.fixing.repair.proof import Prover, infinite_at, is_same
from halfwise.fixing.repair.rule import Rule
from halfwise.fixing.space import BESIDE, MODELS, LowSpace
from halfwise.graph.model import node_name
from halfwise.judging.inside import emulate
from halfwise.observing.reference import PART_OF_BUDGET
from halfwise.records import LEAST_DEARER, Guard, Remark, RemarkKind, Repair
from halfwise.wording import listed

FALLS = 0.9
"""An error has fallen if at most this share of it is left: a smaller change may be chance. Our
choice."""
UNDONE_ALONE = 4
"""Each repair of a rule is undone alone up to this many: larger numbers concern similar layers. Our
choice."""


@dataclass(frozen=True)
class Choice:
    """The chosen repairs.

    Attributes:
        space: The plans of the network with them.
        remarks: On repairs that were not made, or were undone.
        kept: What a plan that passes keeps, to start from.
        steps: Remarks on the search that found it.
        whole: Whether the budget sufficed for all.
    """

    space: LowSpace
    remarks: tuple[Remark, ...]
    kept: Nodes = NONE
    steps: tuple[Remark, ...] = ()
    whole: bool = True


def allowed_rules(space: LowSpace) -> list[Rule]:
    """Return the rules not excluded by options, in order; none if nothing is searched."""
    if not space.searches:
        return []
    return [rule for rule in making.RULES if rule.name not in space.variant.settings.no_repair]


def choose_repairs(space: LowSpace, heldout: HeldOut) -> Choice:
    """Return the plans of the network with the worthwhile repairs; the same if none are.

    Repairs of one rule are tried together, and in halves if that fails. Each rule is applied to the
    network as earlier repairs left it. Repairs for which the budget leaves no time are not made.

    Args:
        space: The plans of the network as it is.
        heldout: Samples on which the function has to be the same as well.
    """
    choosing = _Choosing(space, heldout)
    whole = space.budget.within("repair", choosing.run, False, part=PART_OF_BUDGET)
    if choosing.unprobed:
        numbers = {"elements": choosing.unprobed, "size": MODELS}
        choosing.remarks.append(Remark(kind="repair-left", numbers=numbers))
    return Choice(choosing.space, tuple(choosing.remarks), whole=whole)


def choose_again(space: LowSpace, heldout: HeldOut) -> Choice | None:
    """Return other repairs if samples joined that make plans with the present ones keep nodes.

    None if there are none, or no time to look for them: those present then stay.
    """
    budget, original = space.budget, space.original or space
    trial = lambda: space.evaluate(space.ruled).passed  # noqa: E731
    if not allowed_rules(space) or budget.within("repair", trial, True):
        return None
    space.watcher.note("looking for repairs again, with the samples that joined")
    original.observed.catch_up(original.variant, original.bench.samples)
    chosen = choose_repairs(original, heldout)
    made = chosen.space.repairs
    same = [*map(_core, made)] == [*map(_core, space.repairs)]
    return chosen if chosen.whole and made and not same else None


def _core(repair: Repair) -> Repair:
    """Return a repair without its measurements."""
    return repair.model_copy(update={"before": None, "after": None, "proof": None, "room": None})


class _Choosing:
    def __init__(self, space: LowSpace, heldout: HeldOut) -> None:
        self.space, self.remarks = space, list[Remark]()
        self._original, self._heldout = space, heldout
        self._tried: list[Repair] = []
        self._probes = self.unprobed = 0

    @cached_property
    def _prover(self) -> Prover:
        """Return the prover for the network as it is."""
        original, heldout = self._original, self._heldout
        ids = (*original.bench.samples.ids, *heldout.samples.ids)
        outputs = (*original.bench.references, *heldout.references)
        infinite = (i for i, o in zip(ids, outputs, strict=True) if infinite_at(o))
        return Prover(
            original.variant.case.network,
            original.variant.case.calibration,
            heldout.samples,
            infinite=frozenset(infinite),
            runtime=original.variant.settings.runtime,
            budget=original.budget,
        )

    def run(self) -> bool:
        # What one rule repairs may uncover something to another.
        made = [True]
        while any(made):
            made = [self._make(rule, self._proposed(rule)) for rule in allowed_rules(self.space)]
        return True

    def _proposed(self, rule: Rule) -> list[Repair]:
        """Return a rule's proposals for the present network, without those tried before."""
        space, settings = self.space, self.space.variant.settings
        space.budget.check()
        evidence = Evidence(
            space.variant.case.network,
            space.variant.roles,
            space.evidence.observations,
            settings.fmt,
            settings.headroom,
            settings.accumulate,
            space.evidence.guards,
        )
        formula = {"identity": rule.identity}
        proposed = [r.model_copy(update=formula) for r in rule.propose(evidence)]
        self.remarks += [r for r in evidence.remarks if r not in self.remarks]
        return [r for r in proposed if r not in self._tried]

    def _make(self, rule: Rule, some: Sequence[Repair]) -> bool:
        """Make the worthwhile repairs; return whether there are any."""
        if self._probes == MODELS:
            self.unprobed += len(some)
            return False
        if not some:
            return False
        self._probes += 1
        self.space.budget.check()
        try:
            with sized("trying"):
                tried = self._original.repaired((*self.space.repairs, *some))
                outcome = self._worthwhile(tried, some)
        except (CaseError, RunFailed, UsageError) as error:
            outcome = Remark(kind="repair-unmade", names={"why": error.message})
        if isinstance(outcome, LowSpace):
            self.space = outcome
            self._tried += some
            return True
        if len(some) > 1:
            half = len(some) // 2
            first = self._make(rule, some[:half])
            return self._make(rule, some[half:]) or first
        self._tried += some
        self.remarks.append(
            outcome.model_copy(update={"names": {**outcome.names, **named(some[0])}})
        )
        return False

    def _keeps_named(self, tried: LowSpace) -> bool:
        """Return whether each node that a user's rule names is there still, with its operator."""
        forced = self.space.variant.forced
        rules = (*forced.kept.items(), *forced.lowered.items())
        ruled = {node for node, by in rules if by not in (ISLAND, ONLY)}
        before, after = (
            {node_name(n): n.op_type for n in space.variant.case.network.nodes()}
            for space in (self.space, tried)
        )
        return all(after.get(name) == before[name] for name in ruled)

    def _worthwhile(self, tried: LowSpace, some: Sequence[Repair]) -> LowSpace | Remark:
        """Return the plans with the last repairs and their numbers, or the objection to them.

        The cheapest objection is looked for first.
        """
        if not self._keeps_named(tried):
            why = "a rule names a node that it removes or replaces"
            return Remark(kind="repair-unmade", names={"why": why})
        effect, now = self._effect(tried), self.space
        if not effect.helps:
            errors = {"before": effect.before, "after": effect.after}
            return _remark("repair-useless", **(errors if isfinite(sum(errors.values())) else {}))
        guarded = union([*map(now.variant.holdable, effect.answered)])
        nodes = frozenset(n for repair in some for n in repair.nodes) & now.choices
        keeping = now.variant.cost_within(now.ruled | (guarded or nodes))
        cost = tried.variant.cost_within(tried.ruled)
        is_choice = not now.variant.settings.rules.only
        if is_choice and keeping is not None and cost is not None and cost > keeping:
            return _remark("repair-dearer", before=keeping, after=cost)
        proof = self._prover.prove(tried.variant.case.network)
        if not is_same(proof):
            numbers = {"value": proof.repaired, "original": proof.original}
            numbers |= {"elements": proof.broken or None, "mended": proof.mended or None}
            return _remark("repair-unproven", **{k: v for k, v in numbers.items() if v is not None})
        if tried.variant.is_free and (error := tried.excess(tried.choices)) > 1:
            return _remark("repair-failing", after=error)
        update = {"before": effect.before, "after": effect.after, "proof": proof}
        added = tuple(r.model_copy(update={**update, "room": room(tried, r)}) for r in some)
        return replace(tried, repairs=(*now.repairs, *added))

    def _effect(self, tried: LowSpace) -> "_Effect":
        now, names = self.space, self.space.choices
        others = tried.evidence.suspected - tried.variant.lowered
        errors = [space.excess(space.ruled) for space in (now, tried)]
        beside = errors
        if not _falls(*errors) and others:
            kept = ((now, now.ruled | others & names), (tried, tried.ruled | others))
            beside = [space.excess(nodes) for space, nodes in kept]
        before, after = now.evidence.guards, tried.evidence.guards
        return _Effect(
            before=errors[0],
            after=errors[1],
            beside=(beside[0], beside[1]),
            answered=gone(before, after),
            new=any(guard.severity >= 1 for guard in gone(after, before)),
        )


@dataclass(frozen=True)
class _Effect:
    """The effect of repairs on the low model.

    Attributes:
        before: Error of everything low without them, relative to what the search allows.
        after: The same error with them.
        beside: Both errors again, with the nodes of the remaining guards in FP32: this shows a
            repaired overflow next to another one that is not.
        answered: The guards that disappeared.
        new: Whether a new certain guard appeared.
    """

    before: float
    after: float
    beside: tuple[float, float]
    answered: tuple[Guard, ...]
    new: bool

    @property
    def helps(self) -> bool:
        """Whether an error falls; or else whether certain guards disappear and no error grows."""
        if _falls(self.before, self.after) or _falls(*self.beside):
            return True
        gone = any(guard.severity >= 1 for guard in self.answered) and not self.new
        pairs = ((self.before, self.after), self.beside)
        return gone and all(after <= max(1.0, before) for before, after in pairs)


def room(space: LowSpace, repair: Repair) -> float | None:
    """Return how many times larger the tensors that `repair` scales may become until one overflows.

    Args:
        space: With the repair.
        repair: Any; None if it scales nothing that was seen.
    """
    observed = space.evidence.observations.tensors
    largest = max((o.absmax for o in observed if o.tensor in repair.exponents), default=0.0)
    return space.variant.settings.fmt.overflow_threshold / largest if largest else None


def named(repair: Repair) -> dict[str, str]:
    """Return the name of a repair in a remark."""
    return {"rule": repair.rule, "nodes": listed(repair.nodes)}


def _falls(before: float, after: float) -> bool:
    passes_now = after <= 1 < before
    return passes_now or (after < before and after <= FALLS * before)


def gone(before: Iterable[Guard], after: Iterable[Guard]) -> tuple[Guard, ...]:
    """Return the guards of one network that have no match of kind and node in another."""
    rest = {(guard.kind, guard.node) for guard in after}
    return tuple(guard for guard in before if (guard.kind, guard.node) not in rest)


def _remark(kind: RemarkKind, **numbers: float) -> Remark:
    return Remark(kind=kind, numbers=numbers)


# --- without them ------------------------------------------------------------------------------


def needed_repairs(
    space: LowSpace, result: SearchResult, heldout: HeldOut, *, joined: bool
) -> Choice:
    """Return the plans with only the repairs that a plan needs, and what that plan keeps.

    A plan without repairs is taken if it costs less, if it costs no more than one that keeps nodes
    despite repairs, or if none with repairs passes. Costs are those of the report; plans that cost
    as much as FP32 gain nothing, and rank by number of nodes alone. Otherwise, before samples have
    joined, all repairs are undone together, then those of each rule, then each alone if a rule has
    few.

    Args:
        space: The plans with repairs, after a search.
        result: What that found.
        heldout: The samples that no search has seen.
        joined: Whether samples joined since the repairs were chosen.
    """
    assert space.original is not None
    if (without := _outdone(space, space.original, result, heldout)) is not None:
        return without
    if joined:
        return Choice(space, (), result.kept)
    undoing = _Undoing(space, space.original, result.kept, heldout)
    space.budget.within("repair", undoing.run, None, part=BESIDE)
    least = undoing.space
    if undoing.undone and least.repairs:
        least = replace(least, repairs=tuple(_answering(least.repairs, undoing.undone)))
    spare = (Remark(kind="repair-spare", names=named(repair)) for repair in undoing.undone)
    return Choice(least, tuple(spare), undoing.kept)


def _outdone(
    space: LowSpace, original: LowSpace, result: SearchResult, heldout: HeldOut
) -> Choice | None:
    """Return the cheapest plan known or found without repairs, unless it costs more."""
    bare = result.passed and result.kept <= space.ruled
    if bare and (space.cost(result.kept) or 0.0) <= LEAST_DEARER * _least(original):
        return None
    budget = space.budget
    original.observed.catch_up(original.variant, original.bench.samples)
    mended = gone(original.evidence.guards, space.evidence.guards)
    nodes = union([*map(original.variant.holdable, mended)])
    kept = (result.kept & original.choices) | original.ruled | nodes
    why = "the repairs cost something themselves" if bare else "nodes are kept in spite of them"
    space.watcher.note(f"a search without repairs: {why}")

    def search() -> tuple[Remark, ...]:
        original.evaluate(kept)
        return original.find(NONE, certify=False).steps

    steps = budget.within("repair", search, (), part=BESIDE if bare else PART_OF_BUDGET)
    best = budget.within("repair", lambda: _best(original, heldout), None)
    if result.passed and (best is None or not _is_dearer(space, result.kept, original, best, bare)):
        return None
    best = NONE if best is None else best
    costs = {"before": original.cost(best), "after": space.cost(result.kept)}
    numbers = {name: cost for name, cost in costs.items() if cost is not None and result.passed}
    remarks = [
        Remark(kind="repair-outdone", names=named(r), numbers=numbers) for r in space.repairs
    ]
    return Choice(original, tuple(remarks), best, steps)


def _least(original: LowSpace) -> float:
    """Return the cost of the cheapest plan of all, whether it passes or not; inf if unknown."""
    kept = original.ruled if original.guide is None else original.guide.cheapest(original.ruled)
    cost = original.cost(kept & original.choices | original.ruled)
    return inf if cost is None else cost


def _best(original: LowSpace, heldout: HeldOut) -> Nodes | None:
    """Return the cheapest plan that passed, also on the samples that joined since.

    With what it must keep so that nothing is infinite inside: that is in its price.
    """
    depths, best = Depths(original, heldout), None
    passed = [kept for kept, tried in original.tried().items() if tried.passed]
    rank = partial(_rank, original, original)
    for kept in sorted(passed, key=rank):
        if best is not None and rank(kept) >= rank(best):
            break
        whole = depths.sound(kept, lambda nodes: original.evaluate(nodes).passed)
        if whole is not None and (best is None or rank(whole) < rank(best)):  # BF16 was tried
            best = whole
    return best


def _is_dearer(space: LowSpace, kept: Nodes, original: LowSpace, other: Nodes, bare: bool) -> bool:
    """Return whether a repaired plan gives way to one without repairs.

    A plan that keeps nothing does if it costs more; one that keeps nodes, also if it costs as much.
    """
    rank, others = _rank(space, original, kept), _rank(original, original, other)
    return others[0] < rank[0] if bare else others <= rank


def _rank(space: LowSpace, original: LowSpace, kept: Nodes) -> tuple[float, float, int]:
    """Return the cost (inf if the original in FP32 costs no more), and the actual cost."""
    price, fp32 = space.cost(kept), original.cost(original.choices)
    if price is None or fp32 is None:
        return inf, float(len(kept)), len(kept)
    return price if price < fp32 else inf, price, len(kept)


def _answering(rest: Sequence[Repair], undone: Sequence[Repair]) -> Iterator[Repair]:
    """Yield repairs that now answer the guards of undone ones, at the nodes that they replace."""
    theirs = [guard for repair in undone for guard in repair.guards]
    for repair in rest:
        more = (guard for guard in theirs if guard.node in repair.nodes)
        yield repair.model_copy(update={"guards": tuple(dict.fromkeys((*more, *repair.guards)))})


class _Undoing:
    def __init__(self, space: LowSpace, original: LowSpace, kept: Nodes, heldout: HeldOut) -> None:
        self.space, self.kept = space, kept
        self.undone: list[Repair] = []
        self._original, self._heldout = original, heldout

    def run(self) -> None:
        """Undo the repairs that are not needed."""
        every = self.space.repairs
        groups = [
            tuple(r for r in every if r.rule == rule)
            for rule in dict.fromkeys(r.rule for r in every)
        ]
        alone = [(repair,) for group in groups if len(group) <= UNDONE_ALONE for repair in group]
        tried: list[tuple[Repair, ...]] = []
        for some in (every, *groups, *alone):
            if some not in tried and not any(repair in self.undone for repair in some):
                tried.append(some)
                self._undo(some)

    def _undo(self, some: tuple[Repair, ...]) -> None:
        """Undo some repairs together if they are unneeded."""
        rest = tuple(repair for repair in self.space.repairs if repair not in some)
        self.space.budget.check()
        try:
            without = self._without(rest)
        except (CaseError, RunFailed):
            return  # one of them builds on an undone repair, or the model cannot run
        if without is not None and self._does(without):
            self.space = without
            self.undone += some

    def _without(self, rest: tuple[Repair, ...]) -> LowSpace | None:
        """Return the plans with only the others; None if the plan fails with them.

        Its mixed model tells that sooner than an emulation in which nodes can be switched.
        """
        if not rest:
            return self._original
        variant = self._original.variant.with_repairs(rest)
        kept = self._kept_of(variant.computing, variant.ruled)
        settings, samples = variant.settings, self.space.bench.samples
        self.space.budget.spend("trial", len(samples))
        emulated = emulate(
            variant.write(variant.plan(kept))[0].model,
            samples.with_progress(self.space.watcher.step),
            accumulate=settings.accumulate,
            inspected=0,
            runtime=settings.runtime,
        )
        # A trial is stricter: there, tensors also need headroom.
        if self.space.bench.excess_of(emulated.results) > 1:
            return None
        return self._original.repaired(rest, variant)

    def _kept_of(self, computing: Nodes, ruled: Nodes) -> Nodes:
        """Return what is left of the plan without some repairs."""
        return computing if self._keeps_all else (self.kept & computing) | ruled

    @property
    def _keeps_all(self) -> bool:
        return bool(self.space.choices) and self.kept >= self.space.choices

    def _does(self, without: LowSpace) -> bool:
        """Return whether the plan passes there and costs no more; it is the plan then."""
        kept = self._kept_of(without.choices, without.ruled)
        price, now = without.cost(kept), self.space.cost(self.kept)
        if price is not None and now is not None and price > now and not self._keeps_all:
            return False
        if not without.evaluate(kept).passed:
            return False
        if Depths(without, self._heldout).inside(without.plan(kept)).guards:
            return False
        self.kept = kept
        return True
