"""The INT8 rung of a run: ranges from the calibration, and the planner that leaves nodes out."""

from collections.abc import Mapping
from functools import partial

from halfwise.case import Sample
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.int8.given import Given
from halfwise.fixing.int8.placing import FIRST_OPSET, quantisable, quantised
from halfwise.fixing.int8.planner import Int8Planner
from halfwise.fixing.int8.ranges import Ranges, calibrate
from halfwise.fixing.int8.unvarying import remark, unvarying
from halfwise.fixing.plan.found import Found
from halfwise.fixing.plan.rules import Start
from halfwise.fixing.planner import Planner
from halfwise.fixing.stages import Stages
from halfwise.graph.roles import Role
from halfwise.metrics import Computed, Excess, totals
from halfwise.progress import Watcher
from halfwise.records import RANGE_METHODS, Criterion, NodeName, Plan, RangeMethod, Remark
from halfwise.wording import listed, number

Assignment = frozenset[NodeName]


def int8_rung(
    below: Fixed,
    stage: Stages,
    watcher: Watcher,
    given: Given | None = None,
    start: Plan | None = None,
    *,
    is_new: bool = True,
) -> Int8Planner | Fixed:
    """Return the INT8 planner, begun; if it is impossible, `below` with a note on the reason.

    Args:
        below: The planner of the passing plan in the low format.
        stage: Begins a stage of the run.
        watcher: Receives progress.
        given: See `int8_planner`.
        start: A plan to start from, with or without INT8.
        is_new: Whether it is still unknown that the nodes can be INT8.

    Raises:
        CaseError, RunFailed: INT8 cannot be tried, although it was possible before.
    """
    own = below.planner
    start = start if start is not None and start.has_int8 else None
    try:
        with stage("calibrate"):
            planner = int8_planner(own, below.found, watcher, given, start)
        if planner is None or not planner.choices:
            own.int8 = None
            return below
        own.trials.runner.release()
        with stage("emulate"):
            planner.begin(own.evidence)
            if start is not None:
                out = planner.choices & {left.node for left in start.left_out}
                note = Remark(kind="start-int8", numbers={"elements": len(out)})
                planner.start_from(Start(out, note))
    except (CaseError, RunFailed) as error:
        if not is_new:
            raise
        own.int8 = None
        why = Remark(
            kind="int8-untried",
            severity="warning",
            names={"why": error.message},
        )
        watcher.note(f"INT8 was not tried: {error.message}")
        return below.telling(why)
    return planner


def int8_planner(
    below: Planner,
    found: Found,
    watcher: Watcher,
    given: Given | None = None,
    start: Plan | None = None,
) -> Int8Planner | None:
    """Return the INT8 planner; None if no node can be INT8.

    Args:
        below: The planner of the passing plan in the low format.
        found: That plan; what it keeps in FP32 stays so.
        watcher: Receives progress.
        given: The quantised model to leave nodes out of; without it, ranges are computed.
        start: A plan with INT8, whose method of finding ranges is used if none is requested.

    Raises:
        CaseError: see `unvarying`; and with RunFailed, as for `calibrate`.
    """
    network, roles = below.case.network, below.roles
    named = quantisable(network) if given is None else given.pairs
    candidates = frozenset(n for n in named if roles[n].role is Role.COMPUTE) - found.kept
    if given is not None and given.moved:
        why = "they read data with scales along an axis that is moved"
        watcher.note(f"left out of INT8: {listed(given.moved)}, because {why}")
    is_old = given is None and network.opset < FIRST_OPSET
    if not candidates or is_old:
        old = f", at opset {network.opset}" if is_old else ""
        watcher.note(f"no node in the low format can be INT8{old}")
        return None
    if given is not None:
        return Int8Planner(below, found.kept, given.place, candidates, None)
    asked, samples = below.settings.ranges, below.trials.samples
    if asked == "auto" and start is not None and start.ranges is not None:
        asked = start.ranges
    methods = RANGE_METHODS if asked == "auto" else (asked,)
    seen = calibrate(network, samples, methods, below.settings.runtime, watcher)
    still = unvarying(network, candidates, seen[methods[0]])
    candidates -= still.keys()
    method = methods[0] if len(methods) == 1 else _best(below, candidates, seen, watcher)
    place = partial(quantised, network, ranges=seen[method])
    planner = Int8Planner(below, found.kept, place, candidates, method)
    planner.remarks = (remark(still),) if still else ()
    return planner


def _best(
    below: Planner, candidates: Assignment, seen: Mapping[RangeMethod, Ranges], watcher: Watcher
) -> RangeMethod:
    """Return the method with the smallest error with all candidates in INT8 and the rest in FP32.

    If a metric decides, the outputs' own errors break ties.
    """
    trials, runtime = below.trials, below.settings.runtime
    whole = totals(trials.references)
    errors: dict[RangeMethod, tuple[float, float]] = {}
    for method, ranges in seen.items():
        network = quantised(below.case.network, candidates, ranges)
        session = Session(network.model, runtime=runtime)
        below.budget.spend("proof", len(trials.samples))
        results = [_run(session, sample) for sample in trials.samples]
        each = Excess(Criterion(), whole)
        off = sum(map(each.update, trials.references, results))
        errors[method] = trials.excess_of(results), off
    told = [f"{method} {number(error)}" for method, (error, _) in errors.items()]
    watcher.note(
        f"error relative to the limit with everything in INT8, by method of ranges: {listed(told)}"
    )
    return min(errors, key=errors.__getitem__)


def _run(session: Session, sample: Sample) -> Computed:
    try:
        return session.run(sample)
    except RunFailed as failure:
        return failure
