"""What to know of a plan beside its nodes: the ends of its model, and a tolerance without them."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, inf, isfinite, log10

from halfwise.declarations import spelt
from halfwise.fixing.plan.found import Found
from halfwise.fixing.plan.reasons import unsupported
from halfwise.fixing.planner import Planner
from halfwise.fixing.repair.unscaled import unscaled
from halfwise.formats import Format
from halfwise.graph.casts import adjusted_constants
from halfwise.metrics import effective
from halfwise.records import Criterion, Followed, OutputError, Remark, Verdict
from halfwise.wording import typed

MODERATE = 10.0
"""Times the tolerance up to which an error may be mere rounding: beyond, look for a fault."""

NOTABLE = 0.1
"""Fraction of the candidates above which kept nodes that nothing explains make a plan of no use."""


def plan_remarks(
    planner: Planner, found: Found, followed: Followed | None, baseline: Verdict
) -> Iterator[Remark]:
    """Yield what to know of a plan and its model.

    Args:
        planner: The planner, after its search.
        found: The plan.
        followed: Where the error comes from; None where that was not needed or the time is spent.
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
    # A fault at one node is a fault although no guard knows it; without time neither is known.
    if followed is not None and not followed.origin and not followed.out_of_time:
        yield from _wider(planner, found)


def _islands_fail(planner: Planner) -> bool:
    """Return whether all low but the islands is seen to fail the search, if there is time."""
    work = lambda: planner.trials.evaluate(planner.islands, confirm=True)  # noqa: E731
    tried = planner.budget.within("notes", work, None)
    return tried is not None and not tried.passed


def _looked_at(planner: Planner) -> Iterator[Remark]:
    """Yield on how many samples elements were looked at, where these were enough."""
    if planner.evidence.closer is not None:
        seen = planner.evidence.observations
        looked = min((o.detail.samples for o in seen.tensors if o.detail is not None), default=0)
        yield Remark(kind="first-look", numbers={"samples": looked, "size": len(seen.samples)})


def _wider(planner: Planner, found: Found) -> Iterator[Remark]:
    """Yield which tolerance the explained nodes alone would meet, where most are not."""
    named, case = planner.explained, planner.case
    computing = planner.roles.computing
    if len(found.kept - named) <= NOTABLE * len(computing) or case.metric is not None:
        return
    explained, trials = found.kept & named, planner.trials
    errors = planner.budget.within("notes", lambda: trials.errors(explained), None)
    if errors is not None:
        fmt = planner.settings.fmt
        note = tolerance_note(errors, case.criterion, trials.factor, fmt, len(explained))
        yield from filter(None, (note,))


def tolerance_note(
    errors: Mapping[str, OutputError], criterion: Criterion, factor: float, fmt: Format, kept: int
) -> Remark | None:
    """Return what rounding amounts to, and the options that accept it.

    None where the errors pass, where they exceed the tolerance more than `MODERATE` times, and
    where a metric, a cosine or an integer output stands in the way.

    Args:
        errors: Measures of each output over all calibration samples.
        criterion: What is acceptable.
        factor: Fraction of the tolerance that the search may use, in (0, 1].
        fmt: The low format.
        kept: Number of nodes in FP32 that these errors hold for.
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
    """Yield each option that needs another value, and how many times its limit is exceeded."""
    for name, measure, limit in (
        ("rel_max", "rel_max_needed", limits.rel_max),
        ("max_abs", "max_abs", limits.max_abs),
    ):
        needed = max((getattr(o, measure) for o in outputs), default=0.0) / factor
        if limit is not None and needed > limit:
            times = needed / limit if limit > 0 else inf
            yield f"{spelt(name)} {_rounded_up(needed)}", times
    if limits.snr_db is not None:
        reached = min((o.snr_db for o in outputs), default=limits.snr_db) + 20 * log10(factor)
        if reached < limits.snr_db:
            yield f"--snr-db {floor(reached)}", 10 ** ((limits.snr_db - reached) / 20)


def _rounded_up(value: float) -> str:
    """Return a positive number with two significant digits, no smaller than it is."""
    unit = 10.0 ** (floor(log10(value)) - 1)
    return typed(ceil(value / unit - 1e-9) * unit)


def end_remarks(planner: Planner) -> Iterator[Remark]:
    """Yield what to know of the inputs and outputs of the mixed model."""
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
