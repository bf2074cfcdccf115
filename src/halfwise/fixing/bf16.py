"""Which of the kept nodes BF16 is enough for: it has the range of FP32, and 8 bits."""

from math import inf

from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.plan.found import Found, Narrowed
from halfwise.fixing.plan.halving import lowered
from halfwise.fixing.planner import Planner
from halfwise.graph.model import node_name
from halfwise.graph.movement import may_have_bf16
from halfwise.judging.inside import emulate
from halfwise.records import NodeName

MOST = 24
"""Models that are tried; each is written and run on all samples of the calibration."""

Assignment = frozenset[NodeName]


def narrow(planner: Planner, found: Found) -> None:
    """Give BF16 to those kept nodes of a passing plan with which it still passes and costs less.

    Only where that is allowed, and the plan passes the search.

    All of them are tried, then halves, in graph order: `MOST` trials at most, and what the budget
    leaves. Casts count as cost, so BF16 for one node alone is seldom worth it.
    `planner.narrowed` tells of it; None where no node has BF16.

    Args:
        planner: The planner, after a search; from then on it writes this plan so.
        found: What the search found.
    """
    planner.narrowed, kept = None, found.kept
    if "bf16" not in planner.settings.allow or not found.passed:
        return
    may = may_have_bf16(planner.case.network, planner.roles)
    free = kept & may - frozenset(planner.forced.kept) - planner.islands
    tried = set[Assignment]()
    prices = planner.prices
    costs = [inf if prices is None else prices.of(kept)]

    def passes(fp32: Assignment) -> bool:
        cost = 0.0 if prices is None else prices.of(kept, kept - fp32)
        if len(tried) == MOST or cost >= costs[-1]:
            return False
        planner.budget.check()
        tried.add(fp32)
        if _excess(planner, kept, kept - fp32) > 1:
            return False
        costs.append(cost)
        return True

    order = [name for name in map(node_name, planner.case.network.nodes()) if name in free]
    groups = [frozenset(order)] if order else []
    whole = lambda: lowered(kept, groups, passes, split=order)  # noqa: E731
    fp32 = planner.budget.within("search", whole, kept)
    planner.narrowed = Narrowed(kept, kept - fp32) if fp32 < kept else None


def _excess(planner: Planner, kept: Assignment, bf16: Assignment) -> float:
    """Return the error of the written plan over what a trial may use, inf where it cannot run."""
    settings, trials = planner.settings, planner.trials
    planner.budget.spend("trial", len(trials.samples))
    planner.narrowed = Narrowed(kept, bf16)
    model = planner.rewrite(kept)[0].model
    try:
        ran = emulate(
            model,
            trials.samples,
            accumulate=settings.accumulate,
            inspected=0,
            runtime=settings.runtime,
        )
    except (CaseError, RunFailed):
        return inf
    return trials.excess_of(ran.results)
