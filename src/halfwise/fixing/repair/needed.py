"""Which repairs a plan needs: what leaves no more to keep, or costs no more, without is undone."""

from collections.abc import Sequence
from dataclasses import replace

from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.infinities import Infinities
from halfwise.fixing.planner import Planner
from halfwise.fixing.repair.choice import Choice, cost_within, keys, named, with_repairs
from halfwise.progress import Watcher
from halfwise.records import NodeName, Remark, Repair

PART = 0.1
"""Of the budget that is left, which this may take: it makes a right plan plainer, not righter."""

FEW = 4
"""Repairs of one rule up to which each is tried alone: many are of layers that are alike."""

Assignment = frozenset[NodeName]


def needed_repairs(
    original: Planner, planner: Planner, kept: Assignment, watcher: Watcher
) -> tuple[Choice, Assignment]:
    """Return a planner with those repairs of `planner` that its plan needs, and what that keeps.

    Where something is kept in spite of repairs, and a plan without any passed and costs no more,
    that is taken. Else all are undone together, then those of each rule, then each alone where a
    rule has few. What the plan needs alone gets the error that everything low has without it. A
    remark tells of those that were not tried alone.

    Args:
        original: Of the network without repairs.
        planner: With repairs, after its search.
        kept: The plan, which passes.
        watcher: Is told how far it is.
    """
    undoing = _Undoing(original, planner, kept, watcher)
    if undoing.is_outdone():
        return Choice(undoing.planner, tuple(undoing.remarks)), undoing.kept
    some = planner.case.repairs
    planner.budget.within("repair", undoing.run, None, part=PART)
    left = sum(repair not in undoing.tried for repair in some)
    if left:
        numbers = {"elements": left, "size": len(some)}
        undoing.remarks.append(Remark(kind="repair-untried", numbers=numbers))
    return Choice(undoing.planner, tuple(undoing.remarks)), undoing.kept


class _Undoing:
    def __init__(
        self, original: Planner, planner: Planner, kept: Assignment, watcher: Watcher
    ) -> None:
        self.planner = planner
        self.tried: list[Repair] = []
        self.remarks: list[Remark] = []
        self.kept = kept
        self._original, self._watcher = original, watcher

    def is_outdone(self) -> bool:
        """Take the cheapest plan without repairs that passed, if it costs no more; say whether.

        One that is tried for it keeps what the plan does, and what the repairs mend.
        """
        original, now = self._original, self.planner
        if self.kept:
            self.planner.budget.within("repair", self._try_keeping, None, part=PART)
        passed = [kept for kept, tried in original.trials.tried.items() if tried.passed]
        if not (self.kept and passed):
            return False
        best = min(passed, key=lambda kept: (cost_within(original, kept) or 0.0, len(kept)))
        prices = cost_within(original, best), cost_within(now, self.kept)
        if None in prices:
            prices = float(len(best)), float(len(self.kept))
        before, after = (price or 0.0 for price in prices)
        if before > after:
            return False
        numbers = {"before": before, "after": after}
        self.remarks += [
            Remark(kind="repair-outdone", names=named(r), numbers=numbers) for r in now.case.repairs
        ]
        self.planner, self.kept = original, best
        return True

    def _try_keeping(self) -> None:
        original, left = self._original, keys(self.planner.evidence.guards)
        mended = [g for g in original.evidence.guards if (g.kind, g.node) not in left]
        nodes = frozenset[NodeName]().union(*map(original.holdable, mended))
        kept = (self.kept & original.roles.computing) | original.ruled | nodes
        original.trials.evaluate(kept, confirm=True)

    def run(self) -> None:
        """Undo what is not needed."""
        every = self.planner.case.repairs
        groups = [
            [r for r in every if r.rule == rule] for rule in dict.fromkeys(r.rule for r in every)
        ]
        if self._undone(every):
            return
        for group in groups if len(groups) > 1 else []:
            self._undone(group)
        for repair in (r for group in groups if len(group) <= FEW for r in group):
            if repair not in self.tried:
                self._undone([repair])

    def _undone(self, some: Sequence[Repair]) -> bool:
        """Undo some repairs together; return whether they are not needed."""
        rest = [repair for repair in self.planner.case.repairs if repair not in some]
        without = self._without(rest)
        if without is not None and self._does(without):
            self.planner.trials.runner.release()
            self.planner = without
            self.tried += some
            self.remarks += [Remark(kind="repair-spare", names=named(r)) for r in some]
            return True
        if len(some) == 1:
            self.tried += some
            if without is not None:
                self._weigh(some[0], without)
        if without is not None:
            without.trials.runner.release()
        return False

    def _without(self, rest: Sequence[Repair]) -> Planner | None:
        """Return a planner with the rest alone; None where that cannot be made."""
        self.planner.budget.check()
        if not rest:
            return self._original
        try:
            return with_repairs(self._original, rest, self._watcher)
        except (CaseError, RunFailed):
            return None  # one of them builds on what is undone

    def _does(self, without: Planner) -> bool:
        computing = self.planner.roles.computing
        everything = bool(computing) and self.kept >= computing
        own = without.roles.computing
        kept = own if everything else (self.kept & own) | without.ruled
        price, now = cost_within(without, kept), cost_within(self.planner, self.kept)
        if price is not None and now is not None and price > now and not everything:
            return False
        if not without.trials.evaluate(kept, confirm=True).passed:
            return False
        if Infinities(without).guards(without.rewrite(kept)[0]):
            return False
        self.kept = kept
        return True

    def _weigh(self, repair: Repair, without: Planner) -> None:
        """Put on record what everything low is off by without a repair that is needed."""
        error = without.trials.exact(without.ruled)
        case = self.planner.case
        weighed = repair.model_copy(update={"before": error})
        made = tuple(weighed if r == repair else r for r in case.repairs)
        if error is not None:
            self.planner.case = replace(case, repairs=made)
