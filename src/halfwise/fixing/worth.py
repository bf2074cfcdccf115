"""Worth of a plan: its cost relative to all low and to FP32, and which plan would gain more."""

from collections.abc import Callable
from dataclasses import replace
from math import isfinite

import onnx_ir as ir

from halfwise.case import Case, Settings
from halfwise.emulation.tf32 import TF32_MARK
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError
from halfwise.fixing.engines.workbench import FP32, low_format
from halfwise.fixing.kernels import QUANTISING
from halfwise.fixing.plan.rules import starting_plan
from halfwise.fixing.planner import Planner
from halfwise.fixing.pricing import cost_model
from halfwise.graph.casts import FORMATS, low_type
from halfwise.graph.conversion import low_nodes, raise_opset, upcast
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.movement import carried
from halfwise.graph.quantisation.pairs import quantised_nodes, quantising
from halfwise.graph.roles import Role, Roles, bodies, float_io, roles_of
from halfwise.graph.weights import LOW_TYPES, is_large, without_weights
from halfwise.metrics import fitting_metric
from halfwise.records import Engines, NearPlan, NodeName, Worth

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
    """Return a candidate's worth by its own graph; None if none of its nodes is low or INT8.

    Also None for another model, for integer operators, whose kernel rates are unknown, and for a
    large one with bodies, whose shapes would need its weights widened. Data movement counts as in a
    plan that keeps the same compute nodes.

    Args:
        case: The case.
        settings: Where to run, and the low format if the file has none.
        candidate: In the types of its file; its inputs may be low.
    """
    large = is_large(candidate.model, settings.large_from)
    few = without_weights(candidate.model) if large else candidate.model
    wide, stored = upcast(replace(candidate, model=few))
    low = next((t for t, name in LOW_TYPES.items() if name in stored.formats), None)
    low = low or low_type(settings.fmt)
    low_io = float_io(case.network).intersection(n for n, t in stored.io.items() if t == low)
    try:
        network = case.network
        network = raise_opset(network, wide.opset) if wide.opset > network.opset else network
        roles = roles_of(network, low)
        if not (integers := quantising(candidate)):
            starting_plan(network, roles, candidate)
    except CaseError:
        return None
    unseen = large and any(map(bodies, candidate.nodes()))
    if unseen or any(not is_standard(n, *QUANTISING) for n in integers):
        return None
    own_roles, low_ones = _roles(wide, low), low_nodes(candidate, (low,))
    if not (integers or low_ones):
        return None
    base = cost_model(replace(case, network=network), settings, roles, low_io)
    runs = emulate_typed(candidate.model, large_from=settings.large_from) if large else None
    own = cost_model(replace(case, network=wide), settings, own_roles, low_io, runs)
    if base is None or own is None:
        return None
    kept = own_roles.computing - low_ones - quantised_nodes(wide).keys()
    cost = own.cost(
        kept | carried(wide, own_roles, kept, low_io=low_io),
        kept & low_nodes(candidate, (ir.DataType.BFLOAT16,)),
        tf32=any(TF32_MARK in node.metadata_props for node in candidate.nodes()),
    )
    least = base.cost(carried(network, roles, frozenset(), low_io=low_io))
    fp32 = base.cost(frozenset(roles))
    if least == 0:
        return None
    format_ = low_format(FORMATS[low])
    return _compared(Worth(cost=cost / least, fp32=fp32 / least, low=format_))


def _roles(network: Network, low: ir.DataType) -> Roles:
    """Return the roles of a model; what is INT8 makes no neighbour FP32, as in its plan."""
    roles = roles_of(network, low)
    integers = {*quantised_nodes(network), *map(node_name, quantising(network))}
    found = dict(roles)
    for node in (node for node in network.nodes() if node_name(node) in integers):
        role = roles[node_name(node)]
        inputs = role.inputs or (True,) * len(node.inputs)  # a Q takes what a Flatten gives it
        found[node_name(node)] = replace(role, role=Role.COMPUTE, inputs=inputs)
    return Roles(found)


def _nearest(
    planner: Planner, fits: Callable[[float], bool], cost: Callable[[Assignment], float]
) -> NearPlan | None:
    """Return the tried plan of smallest error whose cost fits, of those tried in time.

    Excludes plans that do not hold or lack what the user keeps, and plans with an error that no
    tolerance accepts.
    """
    trials = planner.trials
    near: list[NearPlan] = []

    def look() -> None:
        looked = 0
        for kept in sorted(trials.tried, key=lambda kept: trials.tried[kept].excess):
            price = cost(kept)
            if not (planner.held_nodes | planner.ruled <= kept and fits(price)):
                continue
            excess = trials.excess(kept)
            if isfinite(error := excess * trials.factor):
                passes = excess <= 1
                near.append(NearPlan(kept=len(kept), cost=price, error=error, passes=passes))
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
