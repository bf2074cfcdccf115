"""Worth of a plan: its cost relative to all low and to FP32, and which plan would gain more."""

from collections.abc import Callable
from dataclasses import replace
from math import isfinite

from halfwise.case import Case, Settings
from halfwise.emulation.tf32 import TF32_MARK
from halfwise.errors import CaseError
from halfwise.fixing.engines.regime import low_format
from halfwise.fixing.engines.table import FP32
from halfwise.fixing.kernels import QUANTISING
from halfwise.fixing.plan.rules import starting_plan
from halfwise.fixing.planner import Planner
from halfwise.fixing.pricing import cost_model
from halfwise.graph.casts import low_type
from halfwise.graph.conversion import low_nodes, upcast
from halfwise.graph.model import Network, is_standard, tensor_name
from halfwise.graph.movement import carried
from halfwise.graph.quantisation.pairs import quantising
from halfwise.graph.roles import float_io, roles_of
from halfwise.metrics import fitting_metric
from halfwise.records import Engines, NearPlan, NodeName, TensorName, Worth

Assignment = frozenset[NodeName]
_MEASURED = 3
"""How many plans are measured on all samples; a failed trial gave only a lower bound."""


def worth_of(
    planner: Planner,
    kept: Assignment,
    engines: Engines | None = None,
    required: float | None = None,
) -> Worth | None:
    """Return the worth of the plan that keeps `kept`.

    None if shapes are unknown, including those in bodies, and if the model only moves data, which
    costs nothing.

    Args:
        planner: The planner, after its search.
        kept: Compute nodes in FP32.
        engines: Results of real engines; measured times take precedence.
        required: Maximum cost, if any. If the plan exceeds it, `nearest` is a plan predicted to
            stay within it.
    """
    prices = planner.prices
    if prices is None:
        return None
    full = engines is not None and engines.full
    predicted = Worth(
        cost=prices.fp32 if full else prices.of(kept, planner.types_of(kept)), fp32=prices.fp32
    )
    found = _compared(_timed(predicted, engines, planner.settings.fmt.name.upper()))
    fits: Callable[[float], bool]
    if required is not None and found.ratio > required:
        # If an engine took longer than predicted, only cheaper plans help.
        fits = lambda price: price <= required and price < predicted.cost  # noqa: E731
    elif found.gains or not found.model_copy(update={"cost": 1.0, "measured": None}).gains:
        return found
    else:
        fits = lambda price: predicted.model_copy(update={"cost": price}).gains  # noqa: E731
    return found.model_copy(
        update={
            # If no plan is delivered, engines have refuted the emulation.
            "nearest": None if full else _nearest(planner, fits, prices.of),
            "metric": fitting_metric(
                planner.case.criterion, planner.trials.references, planner.case.input_shapes
            ),
        }
    )


def candidate_worth(case: Case, settings: Settings, candidate: Network) -> Worth | None:
    """Return a candidate's worth; None if none of its nodes is low, or it is another model.

    Args:
        case: The case.
        settings: The low format, and where to run.
        candidate: In the types of its file; its inputs may be low.
    """
    low = low_type(settings.fmt)
    roles = roles_of(case.network, low)
    ends = (*candidate.graph.inputs, *candidate.graph.outputs)
    low_io = frozenset(tensor_name(v) for v in ends if v.dtype == low) & float_io(case.network)
    model = cost_model(case, settings, roles, low_io)
    if model is None:
        return None

    marked = any(TF32_MARK in node.metadata_props for node in candidate.nodes())

    def cost(kept: Assignment, *, tf32: bool = False) -> float:
        fp32 = kept | carried(case.network, roles, kept, low_io=low_io)
        return model.cost(fp32, tf32=tf32)

    if quantising(candidate):
        own = _quantised_cost(candidate, case, settings, low_io)
    else:
        free = frozenset(name for name, role in roles.items() if role.free)
        try:
            kept = starting_plan(case.network, roles, candidate).kept
        except CaseError:
            return None
        own = cost(kept, tf32=marked) if kept < free else None
    least = cost(frozenset())
    if own is None or least == 0:
        return None
    fp32 = model.cost(frozenset(roles)) / least
    return _compared(Worth(cost=own / least, fp32=fp32, low=low_format(settings.fmt)))


def _quantised_cost(
    candidate: Network, case: Case, settings: Settings, low_io: frozenset[TensorName]
) -> float | None:
    """Return the cost of a quantised model by its own graph.

    None if shapes are unknown, and for integer operators, whose kernel rates are unknown.
    """
    if any(not is_standard(n, *QUANTISING) for n in quantising(candidate)):
        return None
    wide, _ = upcast(candidate)
    roles = roles_of(wide, low_type(settings.fmt))
    model = cost_model(replace(case, network=wide), settings, roles, low_io)
    return None if model is None else model.cost(frozenset(roles) - low_nodes(candidate))


def _nearest(
    planner: Planner, fits: Callable[[float], bool], cost: Callable[[Assignment], float]
) -> NearPlan | None:
    """Return the tried plan of smallest error whose cost fits, of those tried in time.

    Excludes plans that do not hold, and plans with an error that no tolerance accepts.
    """
    trials = planner.trials
    near: list[NearPlan] = []

    def look() -> None:
        looked = 0
        for kept in sorted(trials.tried, key=lambda kept: trials.tried[kept].excess):
            price = cost(kept)
            if not (planner.held_nodes <= kept and fits(price)):
                continue
            error = trials.excess(kept) * trials.factor
            if isfinite(error):
                near.append(NearPlan(kept=len(kept), cost=price, error=error))
            looked += 1
            if looked == _MEASURED:
                break

    planner.budget.within("worth", look, None)
    return min(near, key=lambda plan: (plan.error, plan.cost), default=None)


def _timed(worth: Worth, engines: Engines | None, low: str) -> Worth:
    """Add the times of the delivered engine and of FP32, relative to all low."""
    if engines is None:
        return worth
    times = {r.name: r.latency.median_ms for r in engines.results if r.latency is not None}
    if engines.row is None or not times.keys() >= {engines.row.name, low, FP32}:
        return worth
    own, fp32 = times[engines.row.name], times[FP32]
    ratios = {"measured": own / times[low], "measured_fp32": fp32 / times[low]}
    return worth.model_copy(update=ratios)


def _compared(worth: Worth) -> Worth:
    return worth.model_copy(update={"over_fp32": worth.times_fp32})
