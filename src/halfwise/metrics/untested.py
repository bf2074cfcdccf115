"""What samples can show: how many inputs may fail, and where the samples test nothing.

Samples test nothing if meaningless outputs would be accepted too.
"""

import math
from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.formats import FP16, ROUNDINGS
from halfwise.metrics.difference import Spread, is_discrete
from halfwise.metrics.measures import Excess, Outputs, OutputTotals, totals
from halfwise.metrics.slices import FEWEST
from halfwise.metrics.targets import Metric, evidence_of
from halfwise.metrics.task import guessing, target_peaks
from halfwise.records import Criterion, FailureBound, Unjudged, replace
from halfwise.wording import number

FEWEST_ROWS = 10
"""Rows, boxes and the like below which a score is weak evidence: a sound classifier may well be no
better than guessing, and if ten are all right, up to one in four others may be wrong (95 %)."""
CONFIDENCE = 0.95
"""Smallest probability, over many runs, that a bound holds."""


def untested_outputs(criterion: Criterion, references: Sequence[Outputs]) -> tuple[Unjudged, ...]:
    """Return the outputs that no sample tests: no finite element, or a constant would pass.

    The constant is zero, or the middle of a range of values wider than FP16 could hide. An integer
    or Boolean output may correctly be all zeros, beside others that are not. If zeros would pass
    for all outputs, it is reported too.

    Args:
        criterion: What is acceptable.
        references: FP32 outputs by sample; may be empty.

    Returns:
        In the order of the outputs; nothing with a metric, which may look at some of them only.
    """
    if criterion.metric is not None or not references:
        return ()
    untested: dict[str, Unjudged] = {}
    discrete = []
    whole = totals(references)
    for name, first in references[0].items():
        arrays, total = [outputs[name] for outputs in references], whole[name]
        floats = not is_discrete(first.dtype)
        if not any(array.size for array in arrays):
            untested[name] = Unjudged(kind="empty", name=name)
        elif floats and not any(np.isfinite(array).any() for array in arrays):
            untested[name] = Unjudged(kind="non-finite", name=name)
        elif _constant_passes(criterion, arrays, total, 0):
            untested[name] = Unjudged(kind="zeros", name=name, reference=total.absmax)
            discrete += [] if floats else [name]
        elif floats and (ends := _flat(criterion, arrays, total)):
            untested[name] = Unjudged(kind="flat", name=name, reference=ends[0], other=ends[1])
    named = untested if len(untested) == len(references[0]) else untested.keys() - set(discrete)
    return tuple(untested[name] for name in references[0] if name in named)


def untested_metric(
    criterion: Criterion,
    metric: Metric | None,
    references: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> tuple[Unjudged, ...]:
    """Return the metric if it tests nothing, with the numbers that show it.

    It tests nothing if there is nothing that it counts, such as tokens that are no filler, if it
    accepts near-zero values for all outputs, rising as well as falling ones
    (among equal values a metric of classes would choose the first), of confidence also classes that
    are all as likely, or if FP32 itself is no better
    than guessing. For psnr, the outputs that it ignores are returned; if FP32 outputs only zeros,
    all of them.

    Args:
        criterion: What is acceptable.
        metric: The metric; None for none.
        references: FP32 outputs by sample; may be empty.
        labels: One label per sample, or None.
    """
    if metric is None or not references:
        return ()
    name = criterion.metric or "metric"
    best = metric(references, references, labels)
    evidence, _ = evidence_of(name, best)
    if evidence == 0:
        flat: tuple[Unjudged, ...] = (Unjudged(kind="absent", name=name),)
    else:
        flat = _constant_targets(criterion, references, labels) or _only_zeros(references)
    if flat:
        return flat
    ramps = ([_small(outputs, end) for outputs in references] for end in (1, -1))
    try:
        other = min(metric(references, ramp, labels) for ramp in ramps)
        if criterion.metric == "confidence":
            other = max(other, metric(references, [*map(_even, references)], labels))
    except CaseError:
        return ()  # it refuses them, so it reads them
    unjudged = Unjudged(
        kind="metric",
        name=name,
        reference=best,
        other=other,
        allowed=criterion.metric_drop,
        labelled=labels is not None,
    )
    if other >= best - criterion.metric_drop:
        return (unjudged,)
    if labels is not None and criterion.metric == "top1":
        rows, _ = evidence_of("top1", best)
        chance = guessing(references[0])
        if (rows or 0) >= FEWEST_ROWS and best <= chance:
            return (replace(unjudged, kind="guessing", other=chance),)
    return ()


def scores(
    name: str,
    metric: Metric,
    references: Sequence[Outputs],
    candidates: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> tuple[float, float]:
    """Return the metric of the reference's own outputs and of a candidate's.

    Raises:
        CaseError: the former is not finite, or differs on a second call.
    """
    best = metric(references, references, labels)
    if not isfinite(best):
        raise CaseError(
            f"The metric {name} is {best} for the reference's own outputs.",
            "A verdict needs a finite value: check the metric, the labels and the samples.",
        )
    score = metric(references, candidates, labels)
    again = metric(references, references, labels)
    if again != best:
        raise CaseError(
            f"The metric {name} is {number(best, 6)} for the reference's own outputs, but "
            f"{number(again, 6)} "
            "on a second call.",
            "It must keep no state between calls and use no random numbers.",
        )
    return best, score


def takes_any_sample(
    criterion: Criterion,
    metric: Metric | None,
    references: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> bool:
    """Return whether the outputs of the previous sample pass in place of those of each.

    False for a single sample, if shapes differ, and if all outputs are empty.
    """
    if len(references) < 2 or not any(array.size for array in references[0].values()):
        return False
    swapped = [references[-1], *references[:-1]]
    if metric is None:
        excess = Excess(criterion, totals(references))
        for outputs, others in zip(references, swapped, strict=True):
            excess.update(outputs, others)
        return excess.final() <= 1
    try:
        value = metric(references, swapped, labels)
    except CaseError:
        return False
    return value >= metric(references, references, labels) - criterion.metric_drop


def _constant_targets(
    criterion: Criterion, references: Sequence[Outputs], labels: Sequence[Any] | None
) -> tuple[Unjudged, ...]:
    if criterion.metric != "psnr":
        return ()
    peaks = target_peaks(references, labels).items()
    return tuple(Unjudged(kind="constant", name=name) for name, peak in peaks if peak == 0)


def _only_zeros(references: Sequence[Outputs]) -> tuple[Unjudged, ...]:
    names = tuple(references[0])
    if any(_spread([outputs[name] for outputs in references]).absmax for name in names):
        return ()
    return tuple(Unjudged(kind="zeros", name=name) for name in names)


def _flat(
    criterion: Criterion, arrays: Sequence[NDArray[Any]], total: OutputTotals
) -> tuple[float, float] | None:
    """Return the smallest and the largest value if the constant midway would pass; else None.

    Values that vary by less than FP16 resolves of the largest may be meant to be constant.
    """
    spread = _spread(arrays)
    varies = (
        spread.count >= FEWEST
        and spread.maximum - spread.minimum > spread.absmax / 2**FP16.precision
    )
    middle = (spread.minimum + spread.maximum) / 2
    passes = varies and _constant_passes(criterion, arrays, total, middle)
    return (spread.minimum, spread.maximum) if passes else None


def _constant_passes(
    criterion: Criterion, arrays: Sequence[NDArray[Any]], total: OutputTotals, constant: float
) -> bool:
    """Return whether a constant would pass for one output; non-finite elements stay."""
    excess = Excess(criterion, {"": total})
    for array in arrays:
        same = np.zeros_like(array)
        if not is_discrete(array.dtype):
            same[...] = constant
            bad = ~np.isfinite(array)
            same[bad] = array[bad]
        excess.update({"": array}, {"": same})
    return excess.final() <= 1


def _small(outputs: Outputs, end: int) -> Outputs:
    """Return near-zero outputs that rise (`end` 1) or fall (-1); zeros for discrete outputs."""
    return {
        name: np.zeros_like(array) if is_discrete(array.dtype) else _ramp(array, end)
        for name, array in outputs.items()
    }


def _even(outputs: Outputs) -> Outputs:
    """Return outputs whose rows have their mean everywhere."""
    floats = {n: array for n, array in outputs.items() if not is_discrete(array.dtype)}
    return {**outputs, **{n: np.full_like(a, a.mean(-1, keepdims=True)) for n, a in floats.items()}}


def _ramp(array: NDArray[Any], end: int) -> NDArray[Any]:
    last = end * ROUNDINGS * (_spread([array]).absmax or 1.0)
    # A single element gets only the start.
    return np.linspace(-last, last, array.size).reshape(array.shape).astype(array.dtype)


def _spread(arrays: Sequence[NDArray[Any]]) -> Spread:
    spread = Spread()
    for array in arrays:
        spread.add(array)
    return spread


def upper_bound(failing: int, judged: int) -> float:
    """Return the one-sided 95 % upper bound of the share of inputs that fail, in (0, 1].

    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the
    binomial" (1934): the 95 % quantile of Beta(failing + 1, judged - failing). Without a failure
    that is 1 - 0.05^(1/n): 26 % for ten samples, 5 % for 59, 1 % for 299. It holds for samples that
    are drawn independently of each other, and of what is judged, from the distribution of the
    inputs. A limit that depends on the samples (a share of their largest value) does not invalidate
    it if none fails: the share of inputs that exceed the largest error of n samples is distributed
    as Beta(1, n) (Wilks, "Determination of sample sizes for setting tolerance limits", 1941), and
    the limit is no smaller.

    Args:
        failing: Samples that failed, 0 ≤ failing ≤ judged.
        judged: Samples that were judged, ≥ 1.
    """
    if failing == judged:
        return 1.0
    if failing == 0:
        return -math.expm1(math.log1p(-CONFIDENCE) / judged)
    from scipy.special import betaincinv  # noqa: PLC0415 - a quarter of a second, and seldom needed

    return float(betaincinv(failing + 1, judged - failing, CONFIDENCE))


def may_fail(judged: int, share: float) -> int:
    """Return how many of `judged` samples may fail if they are to show that `share` of inputs may.

    0 if they are too few to show it at all; `share` in (0, 1).
    """
    failing = 0
    while failing < judged and upper_bound(failing + 1, judged) <= share:
        failing += 1
    return failing


def needed(failing: int, share: float) -> int:
    """Return the fewest samples, `failing` of which fail, that bound the failing inputs by `share`.

    Args:
        failing: ≥ 0.
        share: In (0, 1).
    """
    fewest, enough = failing, failing + 1
    while upper_bound(failing, enough) > share:
        fewest, enough = enough, 2 * enough
    while enough - fewest > 1:
        middle = (fewest + enough) // 2
        shown = upper_bound(failing, middle) <= share
        fewest, enough = (fewest, middle) if shown else (middle, enough)
    return enough


def failure_bound(failing: Sequence[str], judged: int, joined: int = 0) -> FailureBound:
    """Return what the judged samples show about all inputs, counting joined ones as failures.

    A sample that failed and joined a search is not judged, and the remaining ones had passed
    before: a plan that learns only the samples that joined would pass on all of them. Counted as
    failures, joined samples bound the inputs that fail for each such cause.

    Args:
        failing: Identifiers of judged samples that failed.
        judged: Number of samples that were judged, ≥ 1.
        joined: Samples that failed at first and joined the search.
    """
    return FailureBound(
        judged=judged,
        failing=len(failing),
        samples=tuple(failing),
        joined=joined,
        upper=upper_bound(len(failing) + joined, judged + joined),
        confidence=CONFIDENCE,
    )
