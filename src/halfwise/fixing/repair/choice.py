"""Choose repairs: those that are proven, that help, and that cost no more than keeping nodes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from halfwise.case import Settings
from halfwise.emulation.budget import sized
from halfwise.errors import CaseError, RunFailed, UsageError
from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.plan.rules import ISLAND
from halfwise.fixing.planner import Planner
from halfwise.fixing.repair import making
from halfwise.fixing.repair.making import repaired
from halfwise.fixing.repair.proof import Prover, infinite_at, is_same
from halfwise.fixing.repair.rule import Rule
from halfwise.fixing.scoring import HeldOut, pass_on
from halfwise.graph.model import node_name
from halfwise.graph.roles import float_io
from halfwise.progress import Watcher
from halfwise.records import Guard, NodeName, Remark, RemarkKind, Repair
from halfwise.wording import listed

ROUNDS = 3
"""Rounds over all rules: each rule repairs what it sees, so a second round is for what the first
uncovered; no model tried needed more than two."""
PROBES = 24
"""Repaired models examined in a run: each takes one pass over all samples and a trial on them."""
PART = 0.5
"""Share of the remaining budget that repairs may take: the rest is for the search."""
FALLS = 0.9
"""An error has fallen if at most this share of it is left: a smaller change may be chance."""

Assignment = frozenset[NodeName]


@dataclass(frozen=True)
class Choice:
    """The chosen repairs.

    Attributes:
        planner: For the network with the repairs listed in `planner.case.repairs`.
        remarks: On undone repairs.
        whole: Whether the budget sufficed for all.
    """

    planner: Planner
    remarks: tuple[Remark, ...]
    whole: bool = True


def choose_repairs(planner: Planner, heldout: HeldOut, watcher: Watcher) -> Choice:
    """Return a planner for the network with the worthwhile repairs; the same one if none are.

    Repairs of one rule are tried together, and in halves if that fails. Each rule is applied to the
    network as earlier repairs left it. Repairs for which the budget leaves no time are not made.

    Args:
        planner: For the network as it is, with its emulation started.
        heldout: Samples on which the function has to be the same as well.
        watcher: Receives progress.
    """
    asked = asked_rules(planner.settings)
    choosing = _Choosing(planner, heldout, watcher)
    whole = planner.budget.within("repair", lambda: choosing.run(asked), False, part=PART)
    if choosing.left:
        numbers = {"elements": choosing.left, "size": PROBES}
        choosing.remarks.append(Remark(kind="repair-left", numbers=numbers))
    return Choice(choosing.planner, tuple(choosing.remarks), whole)


def asked_rules(settings: Settings) -> list[Rule]:
    """Return the rules not excluded by options, in order; none if nothing is searched."""
    if not settings.searches:
        return []
    return [rule for rule in making.RULES if rule.name not in settings.no_repair]


def with_repairs(original: Planner, repairs: Sequence[Repair], watcher: Watcher) -> Planner:
    """Return a planner for the network with `repairs`, emulation started; references stay.

    Args:
        original: The planner of the network without any.
        repairs: Repairs to make, in order.
        watcher: Receives the planner's progress.

    Raises:
        CaseError: they cannot be made, or the result cannot run.
        RunFailed: likewise.
        UsageError: a user's rule names a node that they remove.
    """
    planner = planned_with(original, repairs, watcher)
    begin_beside(planner, original)
    return planner


def planned_with(original: Planner, repairs: Sequence[Repair], watcher: Watcher) -> Planner:
    """Return what `with_repairs` does, without its emulation: it can write plans, not try them."""
    network, samples = repaired(original.case.network, repairs), original.trials.samples
    case = replace(original.case, network=network, calibration=samples, repairs=tuple(repairs))
    return original.beside(case, watcher)


def begin_beside(planner: Planner, original: Planner) -> None:
    """Start the emulation of a planner with repairs; references stay those of the original."""
    planner.begin(planner.gather(planner.case.calibration), original.evidence.references)
    pass_on(original, planner)


class _Choosing:
    def __init__(self, planner: Planner, heldout: HeldOut, watcher: Watcher) -> None:
        self.planner = planner
        self.remarks: list[Remark] = []
        self._original, self._heldout, self._watcher = planner, heldout, watcher
        self._known: Prover | None = None
        self._tried: list[Repair] = []
        self._probes = self.left = 0

    @property
    def _prover(self) -> Prover:
        """Return the prover for the network as it is."""
        if self._known is None:
            seen, unseen = self._original, self._heldout
            ids = (*seen.trials.samples.ids, *unseen.samples.ids)
            outputs = (*seen.evidence.references, *unseen.references)
            infinite = (i for i, o in zip(ids, outputs, strict=True) if infinite_at(o))
            self._known = Prover(
                seen.case.network,
                seen.case.calibration,
                unseen.samples,
                infinite=frozenset(infinite),
                runtime=seen.settings.runtime,
                budget=seen.budget,
            )
        return self._known

    def run(self, asked: Sequence[Rule]) -> bool:
        for _ in range(ROUNDS):
            made = [self._taken(rule, self.proposed(rule)) for rule in asked]
            if not any(made):
                break
        return True

    def proposed(self, rule: Rule) -> list[Repair]:
        """Return a rule's proposals for the present network, without those tried before."""
        planner, settings = self.planner, self.planner.settings
        planner.budget.check()
        evidence = Evidence(
            planner.case.network,
            planner.roles,
            planner.evidence.observations,
            settings.fmt,
            settings.headroom,
            settings.accumulate,
            planner.evidence.guards,
        )
        formula = {"identity": rule.identity}
        proposed = [r.model_copy(update=formula) for r in rule.propose(evidence)]
        self.remarks += [r for r in evidence.remarks if r not in self.remarks]
        return [r for r in proposed if r not in self._tried]

    def _taken(self, rule: Rule, some: Sequence[Repair]) -> bool:
        """Make the worthwhile repairs; return whether there are any."""
        if self._probes == PROBES:
            self.left += len(some)
            return False
        if not some:
            return False
        self._probes += 1
        self.planner.budget.check()
        try:
            with sized("trying"):
                tried = with_repairs(self._original, self._made_already(some), self._watcher)
                against = self._against(tried, some)
        except (CaseError, RunFailed, UsageError) as error:
            against = Remark(kind="repair-unmade", names={"why": error.message})
        else:
            (tried if against else self.planner).trials.runner.release()
        if against is None:
            self.planner = tried
            self._tried += some
            return True
        if len(some) > 1:
            half = len(some) // 2
            first = self._taken(rule, some[:half])
            return self._taken(rule, some[half:]) or first
        self._tried += some
        names = {**against.names, **named(some[0])}
        self.remarks.append(against.model_copy(update={"names": names}))
        return False

    def _made_already(self, some: Sequence[Repair]) -> tuple[Repair, ...]:
        return (*self.planner.case.repairs, *some)

    def _keeps_named(self, tried: Planner) -> bool:
        """Return whether each node that a user's rule names is there still, with its operator."""
        forced = self.planner.forced
        named = {n for n, by in forced.kept.items() if by != ISLAND}.union(forced.lowered)
        before, after = (
            {node_name(n): n.op_type for n in planner.case.network.nodes()}
            for planner in (self.planner, tried)
        )
        return all(after.get(name) == before[name] for name in named)

    def _against(self, tried: Planner, some: Sequence[Repair]) -> Remark | None:
        """Return the objection to the last repairs of `tried`, checking the cheapest first.

        If there is none, its records have their numbers.
        """
        if not self._keeps_named(tried):
            why = "a rule names a node that it removes or replaces"
            return Remark(kind="repair-unmade", names={"why": why})
        effect = self._effect(tried)
        if not effect.helps:
            errors = {"before": effect.before, "after": effect.after}
            # With a metric, an excess is no multiple of what is allowed.
            measured = isfinite(sum(errors.values())) and tried.trials.metric is None
            return _remark("repair-useless", **(errors if measured else {}))
        now = self.planner
        guarded = frozenset(n for guard in effect.answered for n in now.holdable(guard))
        own = frozenset(n for repair in some for n in repair.nodes) & now.roles.computing
        keeping, cost = (
            cost_within(now, now.ruled | (guarded or own)),
            cost_within(tried, tried.ruled),
        )
        if keeping is not None and cost is not None and cost > keeping:
            return _remark("repair-dearer", before=keeping, after=cost)
        proof = self._prover.prove(tried.case.network)
        if not is_same(proof):
            told = {"value": proof.repaired, "original": proof.original}
            told |= {"elements": proof.broken or None, "mended": proof.mended or None}
            return _remark("repair-unproven", **{k: v for k, v in told.items() if v is not None})
        if tried.is_free and (error := tried.trials.excess(tried.roles.computing)) > 1:
            return _remark(
                "repair-failing", **({"after": error} if not tried.trials.metric else {})
            )
        found = {"before": effect.before, "after": effect.after, "proof": proof}
        added = tuple(
            repair.model_copy(update={**found, "room": room(tried, repair)}) for repair in some
        )
        tried.case = replace(tried.case, repairs=self._made_already(added))
        return None

    def _effect(self, tried: Planner) -> "_Effect":
        now, names = self.planner, self.planner.roles.computing
        others = tried.evidence.suspected - frozenset(tried.forced.lowered)
        errors = [p.trials.excess(p.ruled) for p in (now, tried)]
        beside = errors
        if not _falls(*errors) and others:
            kept = ((now, now.ruled | others & names), (tried, tried.ruled | others))
            beside = [p.trials.excess(nodes) for p, nodes in kept]
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


def room(planner: Planner, repair: Repair) -> float | None:
    """Return how many times larger the tensors that `repair` scales may become until one overflows.

    Args:
        planner: With the repair.
        repair: Any; None if it scales nothing that was seen.
    """
    seen = planner.evidence.observations.tensors
    largest = max((o.absmax for o in seen if o.tensor in repair.exponents), default=0.0)
    return planner.settings.fmt.overflow_threshold / largest if largest else None


def named(repair: Repair) -> dict[str, str]:
    """Return the name of a repair in a remark."""
    return {"rule": repair.rule, "nodes": listed(repair.nodes)}


def _falls(before: float, after: float) -> bool:
    passes_now = after <= 1 < before
    return passes_now or (after < before and after <= FALLS * before)


def gone(before: Iterable[Guard], after: Iterable[Guard]) -> tuple[Guard, ...]:
    """Return the guards of one network that have no match of kind and node in another."""
    left = {(guard.kind, guard.node) for guard in after}
    return tuple(guard for guard in before if (guard.kind, guard.node) not in left)


def cost_within(planner: Planner, kept: Assignment) -> float | None:
    """Return the predicted cost of a plan within a larger network, relative to everything low.

    Casts at the ends of this network, which keeping all of it avoids, say nothing about a part of
    it.
    """
    if planner.prices is None:
        return None
    ends = float_io(planner.case.network)
    model = planner.prices.model.with_ends(ends)
    return model.cost(planner.resolve(kept, low_io=ends)) / planner.prices.least


def _remark(kind: RemarkKind, **numbers: float) -> Remark:
    return Remark(kind=kind, numbers=numbers)
