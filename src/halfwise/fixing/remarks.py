"""What to know of a plan beside its nodes: the ends of its model, and a tolerance without them."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, inf, isfinite, log10

from halfwise.declarations import spelt
from halfwise.fixing.plan.reasons import unsupported
from halfwise.fixing.plan.search import Found
from halfwise.fixing.planner import Planner
from halfwise.formats import Format
from halfwise.graph.casts import adjusted_constants
from halfwise.graph.roles import Role
from halfwise.metrics import effective
from halfwise.records import Criterion, Followed, OutputError, Verdict
from halfwise.wording import everything_low, fixed, number, typed

MODERATE = 10.0
"""Times the tolerance up to which an error may be mere rounding: beyond, look for a fault."""

NOTABLE = 0.1
"""Fraction of the candidates above which kept nodes that nothing explains make a plan of no use."""


def plan_remarks(
    planner: Planner, found: Found, followed: Followed | None, baseline: Verdict
) -> Iterator[str]:
    """Yield what to know of a plan and its model.

    Args:
        planner: The planner, after its search.
        found: The plan.
        followed: Where the error comes from; None where that was not needed or the time is spent.
        baseline: Verdict on everything low.
    """
    settings = planner.settings
    yield from end_remarks(planner)
    if told := planner.start.note:
        yield f"{told[0].upper()}{told[1:]}; this plan keeps {len(found.kept)}."
    kept = found.kept - frozenset(planner.forced.kept) - planner.held_nodes
    searched = kept and settings.searches
    if searched and baseline.passed and planner.islands_fail():
        pinned = sum(1 for _ in unsupported(planner.case.network, planner.roles))
        start = everything_low(settings.fmt.name, len(planner.islands), pinned)
        headroom = (
            "" if settings.fmt.has_range_of_fp32 else f" and headroom {number(settings.headroom)}"
        )
        yield (
            f"With {start}, the held-out samples pass, but calibration samples fail, with the "
            f"margin {number(settings.margin)}{headroom}."
        )
    # A fault at one node is a fault although no guard knows it; without time neither is known.
    if followed is not None and not followed.origin and not followed.out_of_time:
        yield from _wider(planner, found)


def _wider(planner: Planner, found: Found) -> Iterator[str]:
    """Yield which tolerance the explained nodes alone would meet, where most are not."""
    named, case = planner.explained, planner.case
    computing = sum(role.role is Role.COMPUTE for role in planner.roles.values())
    if len(found.kept - named) <= NOTABLE * computing or case.metric is not None:
        return
    explained, trials = found.kept & named, planner.trials
    errors = planner.budget.within("notes", lambda: trials.errors(explained), None)
    if errors is not None:
        fmt = planner.settings.fmt
        note = tolerance_note(errors, case.criterion, trials.factor, fmt, len(explained))
        yield from filter(None, (note,))


def tolerance_note(
    errors: Mapping[str, OutputError], criterion: Criterion, factor: float, fmt: Format, kept: int
) -> str | None:
    """Return what rounding amounts to and the option that accepts it, in two sentences.

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
    whose = " of some slices" if worst.rel_max_needed > worst.rel_max else ""
    snr = min(e.snr_db for e in floats)
    low = f"all but {kept} of the nodes" if kept else "every node"
    others = "no others" if kept else "none"
    return (
        f"No single fault was found: with {low} low, {fmt.name.upper()}'s rounding adds up to "
        f"{number(worst.rel_max_needed)} of the largest reference value{whose} (SNR "
        f"{fixed(snr, 1)} dB) on the calibration samples. To keep {others} in FP32, "
        f"give {' '.join(options)} if the task can bear it, or judge the task itself with --metric."
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


def end_remarks(planner: Planner) -> list[str]:
    """Return what to know of the inputs and outputs of the mixed model."""
    found, name = [], planner.settings.fmt.name.upper()
    if other := sorted(planner.case.stored.io.keys() - planner.low_io):
        found.append(
            "Low in the model's file, but FP32 in the mixed model, whose low format is "
            f"{name}: {', '.join(other)}."
        )
    found += [
        f"Output {c.name} is a constant that {name} cannot hold ({number(c.minimum)} to "
        f"{number(c.maximum)}), so it is stored at other values, whatever is kept."
        for c in adjusted_constants(
            planner.case.network,
            planner.roles,
            frozenset(planner.roles),
            planner.settings.fmt,
            planner.low_io,
        )
    ]
    limit = planner.settings.fmt.overflow_threshold
    found += [
        f"Input {o.tensor} reaches {number(o.absmax)} and is {name} in the mixed model, so it "
        "becomes infinite before any node computes."
        for o in planner.evidence.observations.tensors
        if o.producer is None and o.tensor in planner.low_io and o.absmax >= limit
    ]
    return found
