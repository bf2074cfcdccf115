"""Which repairs are made: those that are proven, that help, and that cost no more than keeping."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from halfwise.case import Settings
from halfwise.errors import CaseError, RunFailed, UsageError
from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.plan.rules import ISLAND
from halfwise.fixing.planner import Planner
from halfwise.fixing.repair import rules
from halfwise.fixing.repair.advice import own_names, own_nodes
from halfwise.fixing.repair.difference import infinite_at
from halfwise.fixing.repair.making import repaired
from halfwise.fixing.repair.proof import Prover, holds
from halfwise.fixing.repair.rule import Rule
from halfwise.graph.model import node_name
from halfwise.graph.roles import float_io
from halfwise.progress import Watcher
from halfwise.records import APPROXIMATE, Guard, NodeName, Remark, RemarkKind, Repair
from halfwise.wording import listed

ROUNDS = 3
"""Times that all rules are asked again of what the last repairs left: each mends what it sees, so
a second round is for what they uncovered; more than two were needed by no model that was tried."""
PROBES = 24
"""Repaired models that a run looks at: each takes a look at all samples and a trial on them."""
PART = 0.5
"""Of the budget that is left, which repairs may take: the rest is the search's."""
FALLS = 0.9
"""An error has fallen where no more than this part of it is left: less may be rounding's luck."""

Assignment = frozenset[NodeName]


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes:
        planner: Of the network with the repairs that `planner.case.repairs` lists.
        remarks: On those that were undone.
        whole: Whether the budget left time for all.
    """

    planner: Planner
    remarks: tuple[Remark, ...]
    whole: bool = True


def choose_repairs(planner: Planner, heldout: HeldOut, watcher: Watcher) -> Choice:
    """Return a planner of the network with the repairs that are worth making; the same for none.

    Those of one rule are tried together, and halves of them where that fails. Each rule is asked of
    the network as the repairs before left it. What the budget leaves no time for is not made.

    Args:
        planner: Of the network as it is, its emulation begun.
        heldout: Samples on which the function has to be the same too.
        watcher: Is told how far it is.
    """
    asked = asked_rules(planner.settings)
    choosing = _Choosing(planner, heldout, watcher)
    whole = planner.budget.within("repair", lambda: choosing.run(asked), False, part=PART)
    if choosing.left:
        numbers = {"elements": choosing.left, "size": PROBES}
        choosing.remarks.append(Remark(kind="repair-left", numbers=numbers))
    return Choice(choosing.planner, tuple(choosing.remarks), whole)


def asked_rules(settings: Settings) -> list[Rule]:
    """Return the rules that options do not leave out, in order; none where nothing is searched."""
    if not settings.searches:
        return []
    left_out = {*settings.no_repair, *(() if "approximate" in settings.allow else APPROXIMATE)}
    return [rule for rule in rules.RULES if rule.name not in left_out]


def with_repairs(original: Planner, repairs: Sequence[Repair], watcher: Watcher) -> Planner:
    """Return a planner of the network with `repairs`, its emulation begun; references stay.

    Args:
        original: That of the network without any.
        repairs: What is made, in order.
        watcher: Is told how far the planner is.

    Raises:
        CaseError: they cannot be made, or what they make cannot run.
        RunFailed: likewise.
        UsageError: a user's rule names a node that they remove.
    """
    network, samples = repaired(original.case.network, repairs), original.trials.samples
    case = replace(original.case, network=network, calibration=samples, repairs=tuple(repairs))
    planner = original.beside(case, watcher)
    planner.begin(planner.gather(case.calibration), original.evidence.references)
    return planner


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
        """What compares with the network as it is, or as approximate repairs have left it."""
        network = self._original.case.network
        made = self.planner.case.repairs
        if any(repair.rule in APPROXIMATE for repair in made):
            network = self.planner.case.network
        if self._known is None or self._known.original is not network:
            seen, unseen = self._original, self._heldout
            ids = (*seen.trials.samples.ids, *unseen.samples.ids)
            outputs = (*seen.evidence.references, *unseen.references)
            infinite = (i for i, o in zip(ids, outputs, strict=True) if infinite_at(o))
            self._known = Prover(
                network,
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
        """Return what a rule proposes for the network of now, without what was tried before."""
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
            own_names(self._original.case.network),
        )
        formula = {"identity": rule.identity.formula}
        proposed = [r.model_copy(update=formula) for r in rule.propose(evidence)]
        self.remarks += [r for r in evidence.remarks if r not in self.remarks]
        own, untold = own_nodes(self._original.case.network, planner.case.network), {"advice": ""}
        proposed = [r if own.issuperset(r.nodes) else r.model_copy(update=untold) for r in proposed]
        new = [r for r in proposed if r not in self._tried]
        return [r for r in new if not self._removes_named(rule, r)]

    def _taken(self, rule: Rule, some: Sequence[Repair]) -> bool:
        """Make those that are worth making; return whether there are any."""
        if self._probes == PROBES:
            self.left += len(some)
            return False
        if not some:
            return False
        self._probes += 1
        self.planner.budget.check()
        try:
            tried = with_repairs(self._original, self._made_already(some), self._watcher)
        except (CaseError, RunFailed, UsageError) as error:
            against: Remark | None = Remark(kind="repair-unmade", names={"why": error.message})
        else:
            against = self._against(rule, tried, some)
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

    def _removes_named(self, rule: Rule, repair: Repair) -> bool:
        """Return whether a repair removes or replaces a node that a rule of the user names."""
        forced, network = self.planner.forced, self.planner.case.network
        named = {n for n, by in forced.kept.items() if by != ISLAND}.union(forced.lowered)
        ops = {node_name(n): n.op_type for n in network.nodes() if node_name(n) in named}
        if ops.keys().isdisjoint(repair.nodes):
            return False
        model = network.copy()
        try:
            rule.apply(model, repair)
        except CaseError:
            return False  # which is told when it is tried
        left = {n.name: n.op_type for n in model.graph}
        return any(left.get(name) != op for name, op in ops.items())

    def _against(self, rule: Rule, tried: Planner, some: Sequence[Repair]) -> Remark | None:
        """Return what speaks against the last repairs of `tried`, cheapest to find first.

        Where nothing does, its records have their numbers.
        """
        effect = self._effect(tried)
        if not effect.helps:
            errors = {"before": effect.before, "after": effect.after}
            return _remark("repair-useless", **(errors if isfinite(sum(errors.values())) else {}))
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
        if not holds(proof, rule.identity):
            told = {"value": proof.repaired, "original": proof.original}
            told |= {"elements": proof.broken or None, "mended": proof.mended or None}
            return _remark("repair-unproven", **{k: v for k, v in told.items() if v is not None})
        if tried.is_free and (error := tried.trials.excess(tried.roles.computing)) > 1:
            return _remark("repair-failing", after=error)
        found = {"before": effect.before, "after": effect.after, "proof": proof}
        added = tuple(repair.model_copy(update=found) for repair in some)
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
    """What repairs do to the low model.

    Attributes:
        before: Error of everything low without them, over what the search allows.
        after: That with them.
        beside: Both again with what the guards name that are left in FP32: so an overflow shows to
            be mended beside another one that is not.
        answered: The guards that are gone.
        new: Whether there is a certain one that was not.
    """

    before: float
    after: float
    beside: tuple[float, float]
    answered: tuple[Guard, ...]
    new: bool

    @property
    def helps(self) -> bool:
        """Whether an error falls; or else whether certain guards go, and no error grows."""
        if _falls(self.before, self.after) or _falls(*self.beside):
            return True
        gone = any(guard.severity >= 1 for guard in self.answered) and not self.new
        pairs = ((self.before, self.after), self.beside)
        return gone and all(after <= max(1.0, before) for before, after in pairs)


def named(repair: Repair) -> dict[str, str]:
    """Return what a remark calls a repair."""
    return {"rule": repair.rule, "nodes": listed(repair.nodes)}


def _falls(before: float, after: float) -> bool:
    passes_now = after <= 1 < before
    return passes_now or (after < before and after <= FALLS * before)


def gone(before: Iterable[Guard], after: Iterable[Guard]) -> tuple[Guard, ...]:
    """Return the guards of one network that another has none of the same kind and node for."""
    left = {(guard.kind, guard.node) for guard in after}
    return tuple(guard for guard in before if (guard.kind, guard.node) not in left)


def cost_within(planner: Planner, kept: Assignment) -> float | None:
    """Return the predicted cost of a plan within a larger network, over that of everything low.

    Casts at the ends of this one, which keeping all of it spares, tell nothing of a part of it.
    """
    if planner.prices is None:
        return None
    ends = float_io(planner.case.network)
    model = planner.prices.model.with_ends(ends)
    return model.cost(planner.resolve(kept, low_io=ends)) / planner.prices.least


def _remark(kind: RemarkKind, **numbers: float) -> Remark:
    return Remark(kind=kind, numbers=numbers)
