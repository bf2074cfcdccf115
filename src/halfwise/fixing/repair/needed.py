"""Choose repairs again once samples have joined, and keep those that a plan needs.

One is undone if that keeps no more nodes, or costs no more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.plan.found import Found
from halfwise.fixing.planner import Planner
from halfwise.fixing.repair.choice import (
    Choice,
    asked_rules,
    begin_beside,
    choose_repairs,
    gone,
    named,
    planned_with,
)
from halfwise.fixing.scoring import LOOKED_AT, HeldOut, Infinities, pass_on
from halfwise.judging.inside import emulate
from halfwise.progress import Watcher
from halfwise.records import NodeName, Remark, Repair


def choose_again(
    original: Planner, planner: Planner, heldout: HeldOut, watcher: Watcher
) -> Choice | None:
    """Return other repairs if samples joined that make `planner` keep nodes.

    None if there are none, or no time to look for them: those of `planner` then stay.

    Args:
        original: For the network without repairs; gets the samples that joined since.
        planner: For the network with the present repairs, perhaps none.
        heldout: The remaining samples.
        watcher: Receives progress.
    """
    trial = lambda: planner.trials.evaluate(planner.ruled).passed  # noqa: E731
    if not asked_rules(planner.settings) or planner.budget.within("repair", trial, True):
        return None
    watcher.note("looking for repairs again, with the samples that joined")
    catch_up(original, planner)
    chosen = choose_repairs(original, heldout, watcher)
    made = chosen.planner.case.repairs
    if chosen.whole and made and [*map(_core, made)] != [*map(_core, planner.case.repairs)]:
        return chosen
    if chosen.planner not in (original, planner):
        chosen.planner.trials.runner.release()
    return None


def catch_up(original: Planner, planner: Planner) -> None:
    """Give a planner the samples that joined another."""
    known, every = len(original.trials.samples), planner.trials.samples
    if len(every) > known:
        more = every.select(range(known, len(every)))
        gather = partial(original.gather, every)
        evidence = original.budget.within("observe", gather, original.evidence)
        original.join(more, planner.trials.references[known:], evidence)
        pass_on(planner, original)


def _core(repair: Repair) -> Repair:
    """Return a repair without its measurements."""
    return repair.model_copy(update={"before": None, "after": None, "proof": None, "room": None})


PART = 0.1
"""Share of the remaining budget that this may take: it simplifies a plan that already passes."""

SEARCHED = 0.5
"""Share of the remaining budget for a search without repairs if nodes are kept in spite of them;
else `PART`."""

LEAST = 1.0
"""Up to this predicted cost, relative to all low, no plan that keeps nodes is searched."""

FEW = 4
"""Each repair of a rule is tried alone up to this many: larger numbers concern similar layers."""

Assignment = frozenset[NodeName]


def needed_repairs(
    original: Planner, planner: Planner, found: Found, watcher: Watcher
) -> tuple[Choice, Assignment]:
    """Return a planner with only the repairs that the plan needs, and what that plan keeps.

    A plan without repairs is taken if it costs less, if it costs no more than one that keeps nodes
    despite repairs, or if none with repairs passes. Costs are those of the report; plans that cost
    as much as FP32 gain nothing, and rank by number of nodes alone. Otherwise, before samples have
    joined, all repairs are undone together, then those of each rule, then each alone if a rule has
    few.

    Args:
        original: For the network without repairs; gets the samples that joined since.
        planner: With repairs, after its search.
        found: Its plan.
        watcher: Receives progress.
    """
    if (without := _outdone(original, planner, found, watcher)) is not None:
        return without
    if len(planner.trials.samples) > len(planner.case.calibration):
        return Choice(planner, ()), found.kept
    undoing = _Undoing(original, planner, found.kept, watcher)
    planner.budget.within("repair", undoing.run, None, part=PART)
    if undoing.undone and (rest := undoing.planner.case.repairs):
        answering = tuple(_answering(rest, undoing.undone))
        undoing.planner.case = replace(undoing.planner.case, repairs=answering)
    spare = (Remark(kind="repair-spare", names=named(repair)) for repair in undoing.undone)
    return Choice(undoing.planner, tuple(spare)), undoing.kept


def _outdone(
    original: Planner, planner: Planner, found: Found, watcher: Watcher
) -> tuple[Choice, Assignment] | None:
    """Return the cheapest plan known or found without repairs, unless it costs more."""
    bare = found.passed and found.kept <= planner.ruled
    if bare and (planner.price(found.kept) or 0.0) <= LEAST:
        return None
    catch_up(original, planner)
    mended = gone(original.evidence.guards, planner.evidence.guards)
    nodes = frozenset[NodeName]().union(*map(original.holdable, mended))
    kept = (found.kept & original.roles.computing) | original.ruled | nodes
    why = "the repairs cost something themselves" if bare else "nodes are kept in spite of them"
    watcher.note(f"a search without repairs: {why}")
    original.best.serving = planner.best.serving
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
        original.trials.evaluate(kept)
        original.find(frozenset(), certify=False)

    budget.within("repair", search, None, part=part)
    if budget.cut != cut:  # this search, not the run's
        budget.cut[:] = dict.fromkeys((*cut, "repair"))


def _best(original: Planner) -> Assignment | None:
    """Return the cheapest plan that passed, also on the samples that joined since.

    With what it must keep so that nothing is infinite inside: that is in its price.
    """
    inside = Infinities(original)
    passed = [kept for kept, tried in original.trials.tried.items() if tried.passed]
    best: Assignment | None = None
    rank = partial(_rank, original, original)
    for kept in sorted(passed, key=rank):
        if best is not None and rank(kept) >= rank(best):
            break
        whole = _sound(original, kept, inside)
        if whole is not None and (best is None or rank(whole) < rank(best)):  # BF16 was tried
            best = whole
    return best


def _sound(planner: Planner, kept: Assignment, inside: Infinities) -> Assignment | None:
    """Return a plan with what must be kept so that nothing is infinite inside; None if it fails.

    Other infinities appear only once the first ones are gone.
    """
    for _ in range(LOOKED_AT):
        if not planner.trials.evaluate(kept).passed:
            return None
        planner.budget.spend("pass", len(planner.trials.samples))
        guards = inside.guards(kept, planner.rewrite(kept)[0])
        if not guards:
            return kept
        kept = kept.union(*map(planner.holdable, guards))
    return None


def _is_dearer(
    planner: Planner, kept: Assignment, original: Planner, other: Assignment, bare: bool
) -> bool:
    """Return whether a repaired plan gives way to one without repairs.

    A plan that keeps nothing does if it costs more; one that keeps nodes, also if it costs as much.
    """
    own, others = _rank(planner, original, kept), _rank(original, original, other)
    return others[0] < own[0] if bare else others <= own


def _rank(planner: Planner, original: Planner, kept: Assignment) -> tuple[float, float, int]:
    """Return the cost (inf if the original in FP32 costs no more), and the actual cost."""
    price, fp32 = planner.price(kept), original.price(original.roles.computing)
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
    def __init__(
        self, original: Planner, planner: Planner, kept: Assignment, watcher: Watcher
    ) -> None:
        self.planner = planner
        self.undone: list[Repair] = []
        self.kept = kept
        self._original, self._watcher = original, watcher

    def run(self) -> None:
        """Undo the repairs that are not needed."""
        every = self.planner.case.repairs
        groups = [
            tuple(r for r in every if r.rule == rule)
            for rule in dict.fromkeys(r.rule for r in every)
        ]
        alone = [(repair,) for group in groups if len(group) <= FEW for repair in group]
        tried: list[tuple[Repair, ...]] = []
        for some in (every, *groups, *alone):
            if some not in tried and not any(repair in self.undone for repair in some):
                tried.append(some)
                self._undone(some)

    def _undone(self, some: Sequence[Repair]) -> None:
        """Undo some repairs together if they are unneeded."""
        rest = [repair for repair in self.planner.case.repairs if repair not in some]
        self.planner.budget.check()
        try:
            without = self._without(rest)
        except (CaseError, RunFailed):
            without = None  # one of them builds on an undone repair, or the model cannot run
        if without is not None and self._does(without):
            self.planner.trials.runner.release()
            self.planner = without
            self.undone += some
        elif without is not None:
            without.trials.runner.release()

    def _without(self, rest: Sequence[Repair]) -> Planner | None:
        """Return a planner with only the others; None if the plan fails with them.

        Its mixed model tells that sooner than an emulation in which nodes can be switched.
        """
        if not rest:
            return self._original
        without = planned_with(self._original, rest, self._watcher)
        kept = self._kept_of(without)
        if self._error(without, kept) > 1:
            return None
        begin_beside(without, self._original)
        return without

    def _error(self, without: Planner, kept: Assignment) -> float:
        """Return the error of a plan's mixed model, relative to what a trial may use.

        A trial is stricter: there, tensors also need headroom.
        """
        trials, settings = self.planner.trials, without.settings
        without.budget.spend("trial", len(trials.samples))
        emulated = emulate(
            without.rewrite(kept)[0].model,
            trials.samples.with_progress(self._watcher.step),
            accumulate=settings.accumulate,
            inspected=0,
            runtime=settings.runtime,
        )
        return trials.excess_of(emulated.results)

    def _kept_of(self, without: Planner) -> Assignment:
        """Return what is left of the plan without some repairs."""
        own = without.roles.computing
        return own if self._keeps_all else (self.kept & own) | without.ruled

    @property
    def _keeps_all(self) -> bool:
        computing = self.planner.roles.computing
        return bool(computing) and self.kept >= computing

    def _does(self, without: Planner) -> bool:
        """Return whether the plan passes there and costs no more; it is the plan then."""
        kept = self._kept_of(without)
        price, now = without.price(kept), self.planner.price(self.kept)
        if price is not None and now is not None and price > now and not self._keeps_all:
            return False
        if not without.trials.evaluate(kept).passed:
            return False
        if Infinities(without).guards(kept, without.rewrite(kept)[0]):
            return False
        self.kept = kept
        return True
