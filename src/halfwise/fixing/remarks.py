"""Remarks on a plan as a whole: its ends, its start, and the tolerance that rounding needs."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, inf, isfinite, log10

from halfwise.declarations import spelt
from halfwise.fixing.curve import MODERATE
from halfwise.fixing.plan.result import SearchResult, unsupported
from halfwise.fixing.space import LowSpace
from halfwise.formats import Format
from halfwise.graph.casts import adjusted_constants
from halfwise.metrics import effective
from halfwise.records import Criterion, Followed, OutputError, Remark, Verdict
from halfwise.wording import typed

NOTABLE = 0.1
"""A plan is useless if unexplained kept nodes exceed this fraction of the candidates."""


def plan_remarks(
    space: LowSpace, result: SearchResult, followed: Followed | None, baseline: Verdict
) -> Iterator[Remark]:
    """Yield remarks on a plan and its model.

    Args:
        space: The plans, after a search.
        result: The plan.
        followed: Where the error comes from; None if not needed or out of time.
        baseline: Verdict on everything low.
    """
    variant, settings, fmt = space.variant, space.variant.settings, space.variant.settings.fmt
    yield from end_remarks(space)
    yield from _looked_at(space)
    if note := space.start.note:
        numbers = {**note.numbers, "plan": len(result.kept)}
        yield note.model_copy(update={"numbers": numbers})
    kept = result.kept - frozenset(variant.forced.kept) - space.held_nodes
    searched = kept and space.searches
    if searched and baseline.passed and _islands_fail(space):
        pinned = sum(1 for _ in unsupported(variant.case.network, variant.roles))
        headroom = {} if fmt.has_range_of_fp32 else {"headroom": settings.headroom}
        numbers = {"own": len(variant.islands), "pinned": pinned, "margin": settings.margin}
        yield Remark(kind="seen-only", names={"low": fmt.name}, numbers=numbers | headroom)
    # A fault at one node counts even if no guard knows it; if time ran out, neither is known.
    if (
        followed is not None
        and not (followed.origin or followed.decided)
        and not followed.out_of_time
    ):
        yield from _wider(space, result, accumulates=followed.accumulates)


def _islands_fail(space: LowSpace) -> bool:
    """Return whether all low except the islands fails the search, if time allows."""
    work = lambda: space.evaluate(space.islands)  # noqa: E731
    tried = space.budget.within("notes", work, None)
    return tried is not None and not tried.passed


def _looked_at(space: LowSpace) -> Iterator[Remark]:
    """Yield on how many samples elements were visited, if fewer than all were enough."""
    if space.evidence.closer is not None:
        observations = space.evidence.observations
        looked = min(
            (o.detail.samples for o in observations.tensors if o.detail is not None), default=0
        )
        yield Remark(
            kind="first-look", numbers={"samples": looked, "size": len(observations.samples)}
        )


def _wider(space: LowSpace, result: SearchResult, *, accumulates: bool) -> Iterator[Remark]:
    """Yield the tolerance that the explained nodes alone would meet, if most are unexplained.

    That no node is at fault is known only where the error `accumulates` along the graph.
    """
    named, case, bench = space.explained, space.variant.case, space.bench
    if len(result.needed - named) <= NOTABLE * len(space.choices) or case.metric is not None:
        return
    explained = result.needed & named
    work = lambda: bench.errors(space.plan(explained))  # noqa: E731
    errors = space.budget.within("notes", work, None)
    if errors is not None:
        factor, fmt = bench.tolerance.factor, space.variant.settings.fmt
        note = tolerance_note(errors, case.criterion, factor, fmt, len(explained))
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


def end_remarks(space: LowSpace) -> Iterator[Remark]:
    """Yield remarks on the inputs and outputs of the mixed model."""
    variant, fmt = space.variant, space.variant.settings.fmt
    low = {"low": fmt.name}
    if other := sorted(variant.case.stored.io.keys() - variant.low_io):
        yield Remark(kind="low-io", names={"tensors": ", ".join(other), **low})
    every = frozenset(variant.roles)
    for c in adjusted_constants(variant.case.network, variant.roles, every, fmt, variant.low_io):
        numbers = {"minimum": c.minimum, "maximum": c.maximum}
        yield Remark(kind="constant", names={"tensor": c.name, **low}, numbers=numbers)
    for o in space.evidence.observations.tensors:
        beyond = o.absmax >= fmt.overflow_threshold
        if o.producer is None and o.tensor in variant.low_io and beyond:
            names = {"tensor": o.tensor, **low}
            yield Remark(kind="input", names=names, numbers={"value": o.absmax})
