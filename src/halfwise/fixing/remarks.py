"""Remarks on a plan: the ends of its model, and the tolerance that would need no plan."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, inf, isfinite, log10

from halfwise.declarations import spelt
from halfwise.fixing.plan.found import Found
from halfwise.fixing.plan.reasons import unsupported
from halfwise.fixing.planner import Planner
from halfwise.fixing.repair.advice import unscaled
from halfwise.formats import Format
from halfwise.graph.casts import adjusted_constants
from halfwise.metrics import effective
from halfwise.records import Criterion, Followed, OutputError, Remark, Verdict
from halfwise.wording import typed

MODERATE = 10.0
"""Up to this many times the tolerance an error may be mere rounding; above, look for a fault."""

NOTABLE = 0.1
"""A plan is useless if unexplained kept nodes exceed this fraction of the candidates."""


def plan_remarks(
    planner: Planner, found: Found, followed: Followed | None, baseline: Verdict
) -> Iterator[Remark]:
    """Yield remarks on a plan and its model.

    Args:
        planner: The planner, after its search.
        found: The plan.
        followed: Where the error comes from; None if not needed or out of time.
        baseline: Verdict on everything low.
    """
    settings, fmt = planner.settings, planner.settings.fmt
    yield from end_remarks(planner)
    yield from _looked_at(planner)
    if note := planner.start.note:
        numbers = {**note.numbers, "plan": len(found.kept)}
        yield note.model_copy(update={"numbers": numbers})
    kept = found.kept - frozenset(planner.forced.kept) - planner.held_nodes
    searched = kept and settings.searches
    if searched and "scale" not in settings.no_repair:
        yield from unscaled(planner.case.network, planner.evidence.guards, kept)
    if searched and baseline.passed and _islands_fail(planner):
        pinned = sum(1 for _ in unsupported(planner.case.network, planner.roles))
        headroom = {} if fmt.has_range_of_fp32 else {"headroom": settings.headroom}
        numbers = {"own": len(planner.islands), "pinned": pinned, "margin": settings.margin}
        yield Remark(kind="seen-only", names={"low": fmt.name}, numbers=numbers | headroom)
    # A fault at one node counts even if no guard knows it; if time ran out, neither is known.
    if (
        followed is not None
        and not (followed.origin or followed.decided)
        and not followed.out_of_time
    ):
        yield from _wider(planner, found, accumulates=followed.accumulates)


def _islands_fail(planner: Planner) -> bool:
    """Return whether all low except the islands fails the search, if time allows."""
    work = lambda: planner.trials.evaluate(planner.islands, confirm=True)  # noqa: E731
    tried = planner.budget.within("notes", work, None)
    return tried is not None and not tried.passed


def _looked_at(planner: Planner) -> Iterator[Remark]:
    """Yield on how many samples elements were visited, if fewer than all were enough."""
    if planner.evidence.closer is not None:
        seen = planner.evidence.observations
        looked = min((o.detail.samples for o in seen.tensors if o.detail is not None), default=0)
        yield Remark(kind="first-look", numbers={"samples": looked, "size": len(seen.samples)})


def _wider(planner: Planner, found: Found, *, accumulates: bool) -> Iterator[Remark]:
    """Yield the tolerance that the explained nodes alone would meet, if most are unexplained.

    That no node is at fault is known only where the error `accumulates` along the graph.
    """
    named, case = planner.explained, planner.case
    computing = planner.roles.computing
    if len(found.needed - named) <= NOTABLE * len(computing) or case.metric is not None:
        return
    explained, trials = found.needed & named, planner.trials
    errors = planner.budget.within("notes", lambda: trials.errors(explained), None)
    if errors is not None:
        fmt = planner.settings.fmt
        note = tolerance_note(errors, case.criterion, trials.factor, fmt, len(explained))
        if note is not None:
            unknown = {} if accumulates else {"unknown": ""}
            yield note.model_copy(update={"names": {**note.names, **unknown}})


def tolerance_note(
    errors: Mapping[str, OutputError], criterion: Criterion, factor: float, fmt: Format, kept: int
) -> Remark | None:
    """Return the error that rounding causes, and the options that accept it.

    None if the errors pass, if they exceed the tolerance more than `MODERATE` times, and if a
    metric, a cosine or an integer output prevents it.

    Args:
        errors: Measures of each output over all calibration samples.
        criterion: What is acceptable.
        factor: Fraction of the tolerance that the search may use, in (0, 1].
        fmt: The low format.
        kept: Number of FP32 nodes with which these errors were measured.
    """
    limits = effective(criterion)
    floats = [e for e in errors.values() if e.agreement is None]
    discrete = [e for e in errors.values() if e.agreement is not None]
    if limits.metric or limits.cosine is not None or not all(e.passed for e in discrete):
        return None
    if not all(isfinite(e.max_abs) and isfinite(e.rel_max) for e in floats):
        return None
    options = dict(_options(floats, limits, factor))
    if not options or max(options.values()) > MODERATE:
        return None
    worst = max(floats, key=lambda e: e.rel_max_needed)
    whose = {"slices": "slices"} if worst.rel_max_needed > worst.rel_max else {}
    numbers = {"error": worst.rel_max_needed, "snr": min(e.snr_db for e in floats)}
    return Remark(
        kind="tolerance",
        names={"low": fmt.name, "options": " ".join(options), **whose},
        numbers=numbers | {"kept": kept} if kept else numbers,
    )


def _options(
    outputs: Sequence[OutputError], limits: Criterion, factor: float
) -> Iterator[tuple[str, float]]:
    """Yield each option that needs another value, and by what factor its limit is exceeded."""
    for name, measure, limit in (
        ("rel_max", "rel_max_needed", limits.rel_max),
        ("max_abs", "max_abs", limits.max_abs),
    ):
        needed = max((getattr(o, measure) for o in outputs), default=0.0) / factor
        if limit is not None and needed > limit:
            times = needed / limit if limit > 0 else inf
            yield spelt(name, _rounded_up(needed)), times
    if limits.snr_db is not None:
        reached = min((o.snr_db for o in outputs), default=limits.snr_db) + 20 * log10(factor)
        if reached < limits.snr_db:
            yield spelt("snr_db", str(floor(reached))), 10 ** ((limits.snr_db - reached) / 20)


def _rounded_up(value: float) -> str:
    """Round a positive number up to two significant digits."""
    unit = 10.0 ** (floor(log10(value)) - 1)
    return typed(ceil(value / unit - 1e-9) * unit)


def end_remarks(planner: Planner) -> Iterator[Remark]:
    """Yield remarks on the inputs and outputs of the mixed model."""
    low = {"low": planner.settings.fmt.name}
    if other := sorted(planner.case.stored.io.keys() - planner.low_io):
        yield Remark(kind="low-io", names={"tensors": ", ".join(other), **low})
    for c in adjusted_constants(
        planner.case.network,
        planner.roles,
        frozenset(planner.roles),
        planner.settings.fmt,
        planner.low_io,
    ):
        numbers = {"minimum": c.minimum, "maximum": c.maximum}
        yield Remark(kind="constant", names={"tensor": c.name, **low}, numbers=numbers)
    limit = planner.settings.fmt.overflow_threshold
    for o in planner.evidence.observations.tensors:
        if o.producer is None and o.tensor in planner.low_io and o.absmax >= limit:
            names = {"tensor": o.tensor, **low}
            yield Remark(kind="input", names=names, numbers={"value": o.absmax})
