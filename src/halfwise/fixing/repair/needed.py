"""Which repairs a plan needs: what leaves no more to keep, or costs no more, without is undone."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf

from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.infinities import Infinities
from halfwise.fixing.plan.found import Found
from halfwise.fixing.planner import Planner
from halfwise.fixing.repair.again import catch_up
from halfwise.fixing.repair.choice import Choice, gone, named, with_repairs
from halfwise.progress import Watcher
from halfwise.records import NodeName, Remark, Repair

PART = 0.1
"""Of the budget that is left, which this may take: it makes a right plan plainer, not righter."""

SEARCHED = 0.5
"""Of the budget that is left, what a search without repairs may take where nodes are kept in spite
of them; where none is, `PART`."""

LEAST = 1.0
"""Predicted cost, over everything low, up to which no plan that keeps nodes is looked for."""

FEW = 4
"""Repairs of one rule up to which each is tried alone: many are of layers that are alike."""

Assignment = frozenset[NodeName]


def needed_repairs(
    original: Planner, planner: Planner, found: Found, watcher: Watcher
) -> tuple[Choice, Assignment]:
    """Return a planner with those repairs of `planner` that its plan needs, and what that keeps.

    Where a plan without any costs less, or no more than one that keeps nodes in spite of them, or
    where none with them passes, that is taken. Costs are those of the report; what costs as much as
    FP32 gains nothing, and the number of nodes decides. Else, before samples have joined, all are
    undone together, then those of each rule, then each alone where a rule has few. What the plan
    needs alone gets the error that everything low has without it. A remark tells of those that were
    not tried alone.

    Args:
        original: Of the network without repairs; gets the samples that joined since.
        planner: With repairs, after its search.
        found: Its plan.
        watcher: Is told how far it is.
    """
    if (without := _outdone(original, planner, found, watcher)) is not None:
        return without
    some = planner.case.repairs
    if len(planner.trials.samples) > len(planner.case.calibration):
        return Choice(planner, ()), found.kept
    undoing = _Undoing(original, planner, found.kept, watcher)
    planner.budget.within("repair", undoing.run, None, part=PART)
    left = sum(repair not in undoing.tried for repair in some)
    if left:
        numbers = {"elements": left, "size": len(some)}
        undoing.remarks.append(Remark(kind="repair-untried", numbers=numbers))
    return Choice(undoing.planner, tuple(undoing.remarks)), undoing.kept


def _outdone(
    original: Planner, planner: Planner, found: Found, watcher: Watcher
) -> tuple[Choice, Assignment] | None:
    """Return the cheapest plan without repairs that is known or found, unless it costs more."""
    bare = found.passed and found.kept <= planner.ruled
    if bare and (planner.price(found.kept) or 0.0) <= LEAST:
        return None
    catch_up(original, planner)
    mended = gone(original.evidence.guards, planner.evidence.guards)
    nodes = frozenset[NodeName]().union(*map(original.holdable, mended))
    kept = (found.kept & original.roles.computing) | original.ruled | nodes
    why = "they cost something themselves" if bare else "nodes are kept in spite of them"
    watcher.note(f"a search without repairs: {why}")
    _searched(original, kept, PART if bare else SEARCHED)
    best = planner.budget.within("repair", lambda: _best(original), None)
    if found.passed and (best is None or not _is_dearer(planner, found.kept, original, best, bare)):
        original.trials.runner.release()
        return None
    best = frozenset() if best is None else best
    costs = {"before": original.price(best), "after": planner.price(found.kept)}
    numbers = {name: cost for name, cost in costs.items() if cost is not None and found.passed}
    remarks = [
        Remark(kind="repair-outdone", names=named(r), numbers=numbers) for r in planner.case.repairs
    ]
    return Choice(original, tuple(remarks)), best


def _searched(original: Planner, kept: Assignment, part: float) -> None:
    """Search for a plan without repairs, after one that keeps `kept` was tried."""
    budget = original.budget
    cut = [*budget.cut]

    def search() -> None:
        original.trials.evaluate(kept, confirm=True)
        original.find(frozenset(), certify=False)

    budget.within("repair", search, None, part=part)
    if budget.cut != cut:  # this search, and not that of the run
        budget.cut[:] = dict.fromkeys((*cut, "repair"))


def _best(original: Planner) -> Assignment | None:
    """Return the cheapest plan that passed, and does so with the samples that joined since."""
    passed = [kept for kept, tried in original.trials.tried.items() if tried.passed]
    best: Assignment | None = None
    rank = partial(_rank, original, original)
    for kept in sorted(passed, key=rank):
        if best is not None and rank(kept) >= rank(best):
            break
        passes = original.trials.evaluate(kept, confirm=True).passed
        if passes and (best is None or rank(kept) < rank(best)):  # BF16 has been tried for it now
            best = kept
    return best


def _is_dearer(
    planner: Planner, kept: Assignment, original: Planner, other: Assignment, bare: bool
) -> bool:
    """Return whether a repaired plan is to give way to one without repairs.

    One that keeps nothing does where it costs more, one that does also where it costs as much.
    """
    own, others = _rank(planner, original, kept), _rank(original, original, other)
    return others[0] < own[0] if bare else others <= own


def _rank(planner: Planner, original: Planner, kept: Assignment) -> tuple[float, float, int]:
    """Return the cost, inf where FP32 of the original costs no more; then the cost as it is."""
    price, fp32 = planner.price(kept), original.price(original.roles.computing)
    if price is None or fp32 is None:
        return inf, float(len(kept)), len(kept)
    return price if price < fp32 else inf, price, len(kept)


class _Undoing:
    def __init__(
        self, original: Planner, planner: Planner, kept: Assignment, watcher: Watcher
    ) -> None:
        self.planner = planner
        self.tried: list[Repair] = []
        self.remarks: list[Remark] = []
        self.kept = kept
        self._original, self._watcher = original, watcher

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
        price, now = without.price(kept), self.planner.price(self.kept)
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
