"""The search for a plan in real engines: the emulation proposes, the engine decides.

It knows engines only through `attempt`, which builds one and measures it. What is not needed is
dropped by delta debugging (ddmin, Zeller and Hildebrandt 2002): halves first, then quarters, down
to single nodes.

In strong typing the core of an attention is FP32 as a whole or not at all. A fused attention kernel
needs both products and everything between them in one type; with only Softmax in FP32, TensorRT
does not fuse, which took 4.3 times as long (Stability-AI/stable-audio-3#79). From 11.3 on, a core
in FP32 whose queries, keys and values are cast up from FP16 is a fused kernel that sums in FP32
(TensorRT release notes). Constraints of weak typing are hints: there only engines decide.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

from halfwise.emulation.budget import Budget as EmulationBudget
from halfwise.fixing.engines.attempts import (
    USUAL,
    Assignment,
    Candidate,
    Chosen,
    Plan,
    Step,
    Terms,
    is_steady,
    passing_share,
)
from halfwise.fixing.engines.moves import Proposal
from halfwise.fixing.engines.prediction import Prediction
from halfwise.fixing.engines.proposals import (
    Budget,
    Proposals,
    quicker,
    slow,
    tf32_note,
    without_futile,
)
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles
from halfwise.graph.written_out import attentions
from halfwise.records import NodeName, ProvenEngine, Spared
from halfwise.wording import count, verb


def ddmin(
    kept: frozenset[NodeName],
    order: Sequence[NodeName],
    passes: Callable[[frozenset[NodeName], int], bool | None],
) -> tuple[frozenset[NodeName], bool]:
    """Return the smallest subset found to pass, and whether it is certain to be minimal.

    Args:
        kept: A set that passes.
        order: All nodes in graph order; nodes dropped together are adjacent in it.
        passes: Returns whether a smaller set passes, given how many nodes it drops; None ends the
            search. It may be called more than once for a set.

    Returns:
        The subset, and true if it fails without any single one of its nodes.
    """
    parts = 2
    while kept:
        before = kept
        for chunk in split([n for n in order if n in kept], min(parts, len(kept))):
            passed = passes(kept - chunk, len(chunk))
            if passed is None:
                return kept, False
            if passed:
                kept -= chunk
        if kept == before and parts >= len(kept):
            break
        parts = 2 if kept != before and len(kept) < parts else parts * 2
    return kept, True


def split(names: Sequence[NodeName], parts: int) -> list[frozenset[NodeName]]:
    """Split `names` into `parts` (≥ 1) runs of nearly equal length, omitting empty ones."""
    edges = [round(i * len(names) / parts) for i in range(parts + 1)]
    return [frozenset(names[a:b]) for a, b in pairwise(edges) if b > a]


_NOTHING: Assignment = frozenset()


@dataclass(frozen=True)
class Units:
    """The units of a model; without any, every node is its own unit.

    Attributes:
        all: Disjoint sets of nodes.
        start: What the emulation's plan keeps.
    """

    all: tuple[Assignment, ...] = ()
    start: Assignment = _NOTHING

    def whole(self, keep: Assignment) -> Assignment:
        """Return `keep` extended to all of every unit that it touches."""
        return keep.union(*(unit for unit in self.all if unit & keep))

    def apart(self, keep: Assignment) -> Assignment:
        """Return `keep` with no more of a unit than the emulation's plan keeps, if it keeps any."""
        started = [unit for unit in self.all if unit & self.start]
        return keep - (_NOTHING.union(*started) - self.start)

    def smallest(
        self,
        keep: Assignment,
        order: Sequence[NodeName],
        ruled: Assignment,
        passes: Callable[[Assignment], bool | None],
    ) -> tuple[Assignment, bool]:
        """Return what `ddmin` does, dropping whole units, but none with a ruled node.

        Args:
            keep: A set that passes, `whole`.
            order: All nodes in graph order.
            ruled: Nodes that must stay.
            passes: Returns whether a smaller set passes; None ends the search.
        """
        parts = {name: frozenset((name,)) for name in keep}
        for unit in self.all:
            if unit <= keep:
                parts = {n: part for n, part in parts.items() if n not in unit}
                parts[min(unit)] = unit
        order = [n for n in order if n in parts and not parts[n] & ruled]

        def union(names: Assignment) -> Assignment:
            return _NOTHING.union(*(parts[n] for n in names))

        found, minimal = ddmin(frozenset(parts), order, lambda names, _: passes(union(names)))
        return union(found), minimal


def units_of(network: Network, roles: Roles, start: Assignment, lowered: Assignment) -> Units:
    """Return the attention cores of a model, joined if they share nodes.

    Args:
        network: The FP32 model.
        roles: Roles of its nodes.
        start: What the emulation's plan keeps.
        lowered: Nodes that the user wants low: a core with one of them is not a unit.
    """
    found: list[Assignment] = []
    for nodes in attentions(network):
        names = map(node_name, nodes)
        unit = frozenset(n for n in names if roles[n].role is Role.COMPUTE and roles[n].free)
        joined = [other for other in found if other & unit]
        found = [other for other in found if other not in joined]
        found.append(unit.union(*joined))
    return Units(tuple(unit for unit in found if unit and not unit & lowered), start)


def restart(plans: Collection[list[Candidate]], start: Assignment) -> Candidate:
    """Return the build to continue from: a failing one if its plan has one.

    Args:
        plans: All builds of each plan, at least one.
        start: Kept nodes of the plan to continue from, if it passes; else the smallest passing
            plan. If none passes it is `start` itself, an engine rather than a build that failed, or
            the largest plan if none keeps exactly this.
    """
    passing = [plan for plan in plans if all(c.passed for c in plan)]
    own = [plan for plan in plans if plan[0].keep == start]
    own.sort(key=lambda plan: (plan not in passing, plan[0].excess is None))
    known = next((plan for plan in own if plan in passing), None)
    known = known or min(passing, key=lambda plan: len(plan[0].keep), default=None)
    known = known or next(iter(own), max(plans, key=lambda plan: len(plan[0].keep)))
    return min(known, key=lambda c: c.passed)


NONE: tuple[bool, Assignment] = (False, frozenset())
"""Not shown to be minimal; no node is needed by prediction alone."""
RESERVED = 2
"""Builds that shrinking a slow plan leaves for speeding it up."""


@dataclass
class EngineSearch:
    """Finds the passing plan with the fewest kept nodes whose engine is no slower than necessary.

    Attributes:
        attempt: Builds and measures the plan that keeps a set; receives the reason, and what to
            tell the builder in addition to the settings.
        proposals: What to try next.
        order: Nodes in graph order.
        budget: Builds left for new plans.
        builds: Builds of a plan before it counts as confirmed.
        prediction: Predictions of the emulation; None if it says nothing about these engines.
        ruled: Nodes that the user's rules keep: every delivered plan keeps them.
        full: The fastest proven FP32 or TF32 engine; None if none, or if speed does not decide.
        relative: Whether errors are shares of what is allowed; the fall of a metric is not.
        units: Sets that are kept as a whole or not at all.
        tried: Every build of each plan; on other terms it is another plan. `int8`: with INT8.
        notes: Notes on the result.
        spared: What was not built, and why.
    """

    attempt: Callable[[Assignment, Step, Terms], Candidate]
    proposals: Proposals
    order: Sequence[NodeName]
    budget: Budget
    builds: int
    prediction: Prediction | None = None
    ruled: Assignment = frozenset()
    full: ProvenEngine | None = None
    relative: bool = True
    units: Units = field(default_factory=Units)
    tried: dict[Plan, list[Candidate]] = field(default_factory=dict)
    int8: dict[Plan, list[Candidate]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    spared: list[Spared] = field(default_factory=list)

    def run(self, start: Assignment) -> Chosen:
        """Search from the plan found by the emulation.

        If the emulation with fusion says that nothing need be kept, that is built first.
        """
        if self.budget.over():
            return self._chosen(None, None)
        if self.prediction is not None and not self.ruled and self.prediction.enough(frozenset()):
            plain = self._attempt(frozenset(), "plain low precision")
            if (plain.passed and self._confirmed(plain)) or self.budget.over():
                return self._search(plain)
        return self._search(self._try(self.units.whole(start), "the plan of the emulation"))

    def again(self, start: Assignment, measure: Callable[[Candidate], Candidate]) -> Chosen:
        """Continue from a built plan when further samples have to pass.

        `measure` returns a candidate with its error on all of them.
        """
        self.tried = {plan: [measure(c) for c in group] for plan, group in self.tried.items()}
        plans = [group for group in self.groups if group[0].keep >= self.ruled]
        return self._search(restart(plans, start))

    def _search(self, first: Candidate) -> Chosen:
        plain = self._plain()
        spared = None
        if plain is not None and not self.budget.over():
            first, spared = without_futile(first, plain, self.full, self._attempt)
        if plain is None or spared is not None:
            self.spared += [] if spared is None else [spared]
            return self._chosen(first if first.passed else None, plain)
        best = first if first.passed else self._repair(first)
        if self.prediction is not None and plain.excess is not None:
            self.prediction.learn(plain.build)
        settled, minimal, predicted = None, False, frozenset[NodeName]()
        while best is not None and settled is None:
            ladder = [best]
            minimal = not best.keep
            if best.keep and not self.ruled and plain.passed and self._confirmed(plain):
                ladder.append(plain)
                minimal = True
            elif best.keep:
                reserved = RESERVED if slow(best, plain) else 0
                minimal, predicted = self._shrink(ladder, reserved)
            settled = self._settle(ladder)
            if settled is None or settled.plan != ladder[-1].plan:
                minimal, predicted = False, frozenset()
            if settled is None:  # it had passed by chance
                best = self._repair(next(c for c in self.tried[best.plan] if not c.passed))
        if settled is None:
            return self._chosen(None, plain)
        faster = self._faster(settled, plain)
        minimal = minimal and faster.keep == settled.keep
        return self._chosen(faster, plain, (minimal, predicted))

    def _chosen(
        self, best: Candidate | None, plain: Candidate | None, shown: tuple[bool, Assignment] = NONE
    ) -> Chosen:
        excesses = () if best is None else self.excesses(best)
        return Chosen(best, plain, excesses, *shown, tuple(self.notes))

    def end(self, emulations: EmulationBudget, *, tf32: bool) -> None:
        """Tell what was not built: after Ctrl-C, also `emulations`, and without a TF32 engine."""
        if self.budget.interrupted:
            emulations.tell("interrupt")
        if self.budget.over():
            self.spared.append(Spared(kind="interrupted"))
        if not tf32:
            self.spared.append(Spared(kind="no-tf32"))

    def closest(self) -> Candidate | None:
        """Return the running candidate with the smallest error; None if none runs.

        Among equals (all overflow, say) it is the one that keeps most: what that one computes in
        can contradict what was requested.
        """
        ran = [c for group in self.groups for c in group if c.excess is not None]
        return min(ran, key=lambda c: (c.excess or 0.0, -len(c.keep)), default=None)

    @property
    def groups(self) -> list[list[Candidate]]:
        """All builds of each plan."""
        return list(self.tried.values())

    def others(self, best: Candidate | None) -> list[Candidate]:
        """Return the fastest passing engine of each other steady plan, fastest first.

        On other terms it is another plan. Plans without what the user's rules keep are excluded.
        """
        chosen = None if best is None else best.plan
        groups = [g for g in self.groups if is_steady(g) and g[0].keep >= self.ruled]
        found = [self._fastest(g[0]) for g in groups if g[0].plan != chosen]
        return sorted(found, key=lambda c: c.milliseconds)

    def excesses(self, candidate: Candidate) -> tuple[float, ...]:
        """Return the errors of all builds of a candidate's plan, over what the search may use."""
        builds = (self.tried | self.int8)[candidate.plan]
        return tuple(c.excess for c in builds if c.excess is not None)

    def _try(self, keep: Assignment, step: Step, terms: Terms = USUAL) -> Candidate:
        self.budget.take()
        return self._attempt(keep, step, terms)

    def _attempt(self, keep: Assignment, step: Step, terms: Terms = USUAL) -> Candidate:
        candidate = self.attempt(keep, step, terms)
        self.proposals.hear(candidate)
        if candidate.build.status != "interrupted":  # nothing is known about it
            self.tried.setdefault((keep, terms), []).append(candidate)
        return candidate

    def _plain(self) -> Candidate | None:
        """Return the engine with nothing kept; it is a row of the table, so it uses no budget.

        None if the user asked for the best so far and it is not built yet.
        """
        plan = (frozenset[NodeName](), USUAL)
        if plan not in self.tried and not self.budget.over():
            self._attempt(frozenset(), "plain low precision")
        return next(iter(self.tried.get(plan, ())), None)

    def _repair(self, failed: Candidate) -> Candidate | None:
        """Return a passing candidate, starting from a failing one; None when the budget ends.

        Also None if a lost connection is all that is known about every build: the worker is gone.
        """
        queue = self._next_proposals(failed)
        while self.budget.left > 0 and any(not c.untold for group in self.groups for c in group):
            # Finding the next proposal may use builds itself.
            proposal = next((p for p in queue if not self._pointless(p.plan)), None)
            if proposal is None or self.budget.left <= 0:
                return None
            candidate = self._try(proposal.keep, proposal.step, proposal.terms)
            if candidate.passed:
                return candidate
            if candidate.excess is not None and not candidate.terms.loose:
                # An engine that fails says more than a build that failed.
                queue = self._next_proposals(candidate)
            elif candidate.excess is not None or self.proposals.is_elsewhere(candidate):
                queue = chain(queue, self._next_proposals(candidate))
        return None

    def _pointless(self, plan: Plan) -> bool:
        """Return whether a plan was built, or would be refused like another one."""
        return plan in self.tried or self.proposals.refused(plan)

    def _next_proposals(self, base: Candidate) -> Iterator[Proposal]:
        if base.excess is None:
            for proposal in self.proposals.unbuildable(base):
                # Then nothing is known about a missing kernel.
                why = "instead of a plan that was lost" if base.untold else proposal.step
                yield Proposal(why, self.units.whole(proposal.keep), proposal.terms)
            return
        for step, added in self.proposals.culprits(base):
            yield Proposal(step, self.units.whole(base.keep | added), base.terms)

    def _confirmed(self, candidate: Candidate) -> bool:
        """Build the plan again until it has `builds` engines; return whether all passed.

        Builds in weak typing differ: one may pass only through a tactic chosen by chance.
        """
        known = self.tried[candidate.plan]
        while len(known) < self.builds and all(c.passed for c in known) and not self.budget.over():
            number = len(known) + 1
            step = f"build {number} of {self.builds} of the same plan"
            self._attempt(candidate.keep, step, candidate.terms)
        return all(c.passed for c in known)

    def _shrink(self, ladder: list[Candidate], reserved: int) -> tuple[bool, Assignment]:
        """Append candidates that keep less and pass.

        First the set that the emulation with fusion says is enough, then sets without halves,
        quarters, single nodes. Sets that emulation rules out are not built.

        Returns:
            Whether no single node is left to try, and the nodes that only emulation shows to be
                needed.
        """
        if self.budget.over():
            return False, frozenset()
        self._propose(ladder)
        ruled_out: set[Assignment] = set()
        terms = ladder[-1].terms

        def passes(keep: Assignment) -> bool | None:
            if not keep or self._pointless((keep, terms)):
                return False
            if self._hopeless(keep):
                ruled_out.add(keep)
                return False
            if self.budget.left <= reserved:
                return None
            dropped = len(ladder[-1].keep - keep)
            needed = verb(dropped, "node is", "nodes are")
            candidate = self._try(keep, f"whether {dropped} kept {needed} needed", terms)
            if candidate.passed:
                ladder.append(candidate)
            return candidate.passed or (None if self.budget.over() else False)

        kept, minimal = self.units.smallest(ladder[-1].keep, self.order, self.ruled, passes)
        predicted = frozenset(name for name in kept if kept - {name} in ruled_out)
        if ruled_out:
            self.notes.append(
                f"emulation, with fusion and without, puts {count(len(ruled_out), 'smaller set')} "
                "of kept nodes beyond the limit by more than chance explains, so they were not "
                "built; "
                f"only this prediction shows that {len(predicted)} of "
                f"{count(len(kept), 'kept node')} are needed"
            )
        return minimal, predicted

    def _propose(self, ladder: list[Candidate]) -> None:
        """Build what the emulation with fusion says is enough, if that is less."""
        prediction = self.prediction
        if prediction is None:
            return
        start, terms = ladder[-1].plan
        proposal, _ = self.units.smallest(start, self.order, self.ruled, prediction.enough)
        if proposal == start or self._pointless((proposal, terms)) or self.budget.left <= 0:
            return
        candidate = self._try(proposal, "what is enough by the emulation with fusion", terms)
        if candidate.passed:
            ladder.append(candidate)

    def _hopeless(self, keep: Assignment) -> bool:
        """Return whether emulation rules a plan out, and no engine has refuted it so far."""
        prediction = self.prediction
        if prediction is None or not prediction.beyond(keep):
            return False
        seen = [c for group in self.groups for c in group if c.excess is not None]
        return not any(prediction.refuted(c.keep, c.excess or 0.0) for c in seen)

    def _settle(self, ladder: list[Candidate]) -> Candidate | None:
        """Return the fastest engine of the smallest confirmed plan, else of the steadiest.

        None if that fails in half of its builds: another engine of it would fail too.
        """
        for candidate in reversed(ladder):
            if self._confirmed(candidate):
                return self._fastest(candidate)
            known = self.tried[candidate.plan]
            self.notes.append(
                f"keeping {count(len(candidate.keep), 'node')} passed in only "
                f"{sum(c.passed for c in known)} of {len(known)} builds"
            )
        steadiest = max(ladder, key=lambda c: passing_share(self.tried[c.plan]))
        return self._fastest(steadiest) if is_steady(self.tried[steadiest.plan]) else None

    def _fastest(self, candidate: Candidate) -> Candidate:
        """Return the fastest passing engine of a candidate's plan."""
        passed = (c for c in self.tried[candidate.plan] if c.passed)
        return min(passed, key=lambda c: c.milliseconds)

    def _faster(self, best: Candidate, plain: Candidate) -> Candidate:
        """Return the fastest passing candidate if `best` is slow: itself or another.

        First the same plan with TF32: what is kept for its range has that range in TF32 too, and a
        kept convolution or product is several times as fast. Then wider islands.
        """
        chosen = best
        if not slow(best, plain):
            return best
        if not best.terms.tf32 and self.proposals.gains_from_tf32(best.keep):
            relaxed = replace(best.terms, tf32=True)
            chosen = self._faster_of(chosen, best.keep, "the same plan with TF32", relaxed)
        islands = self.proposals.wider(best.keep)
        plans = [(f"wider islands: {name}", self.units.whole(keep)) for name, keep in islands]
        if (apart := self.units.apart(best.keep)) != best.keep:
            plans.insert(0, ("attention cores in part", apart))
        for step, keep in plans:
            if not slow(chosen, plain) or self.budget.left <= 0:
                break
            chosen = self._faster_of(chosen, keep, step, chosen.terms)
        if chosen is not best and not self._confirmed(chosen):
            self.notes.append("a faster engine of another plan did not pass in every build")
            return best
        fastest = self._fastest(chosen)
        if fastest.terms.tf32 and not best.terms.tf32:
            self.notes.append(tf32_note(fastest, best))
        return fastest

    def _faster_of(self, chosen: Candidate, keep: Assignment, step: str, terms: Terms) -> Candidate:
        """Return the faster of `chosen` and another plan that passes, built at most once."""
        known = self.tried.get((keep, terms))
        if not known and (self.budget.left <= 0 or self.proposals.refused((keep, terms))):
            return chosen
        other = known[0] if known else self._try(keep, step, terms)
        return other if other.passed and quicker(other, chosen) else chosen
