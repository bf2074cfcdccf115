"""Which tolerance a model would meet, where no fault but rounding itself breaks the one it has."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, inf, isfinite, log10

from halfwise.formats import Format
from halfwise.metrics import effective
from halfwise.records import Criterion, OutputError

MODERATE = 10.0
"""Times the tolerance up to which an error may be mere rounding: beyond, look for a fault."""

NOTABLE = 0.1
"""Fraction of the candidates above which kept nodes that nothing explains make a plan of no use."""


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
        f"{worst.rel_max_needed:.2g} of the largest reference value{whose} (SNR {snr:.0f} dB) on "
        f"the calibration samples. To keep {others} in FP32, give {' '.join(options)} if the task "
        "can bear it, or judge the task itself with --metric."
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
            yield f"--{name.replace('_', '-')} {_rounded_up(needed)}", times
    if limits.snr_db is not None:
        reached = min((o.snr_db for o in outputs), default=limits.snr_db) + 20 * log10(factor)
        if reached < limits.snr_db:
            yield f"--snr-db {floor(reached)}", 10 ** ((limits.snr_db - reached) / 20)


def _rounded_up(value: float) -> str:
    """Return a positive number with two significant digits, no smaller than it is."""
    unit = 10.0 ** (floor(log10(value)) - 1)
    return f"{ceil(value / unit - 1e-9) * unit:.2g}"
