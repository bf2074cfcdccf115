"""Error measures of model outputs over samples, taken one sample at a time.

`OutputMeasure` gives every measure of one output, for the verdict. `Excess` (in `excess`) gives one
number for all outputs, for the search: how much worse than allowed, with a lower bound that holds
before all samples have been seen. Both take their sums from `difference` and judge them by
`lower_bound` and `full_excess`, so they never disagree about pass or fail.

All sums are float64. `difference` defines what counts as an error, NaN and infinities included. A
shape that differs from the reference's (data-dependent shapes) makes every error measure of the
output infinite and its agreement 0.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from msgspec import Struct
from numpy.typing import NDArray

from halfwise.declarations import default
from halfwise.errors import CaseError, RunFailed
from halfwise.metrics.difference import (
    Common,
    Difference,
    Spread,
    common_value,
    compare,
    decibel,
    rare_in,
)
from halfwise.metrics.slices import LOST, Faint, Group, Slices, group_errors, lost_classes, lost_in
from halfwise.records import Criterion, OutputError, Side, SliceGroup, replace
from halfwise.wording import FEW

Outputs = Mapping[str, NDArray[Any]]
"""Outputs of one sample: output name → array of any shape and ONNX dtype."""

Computed = Outputs | RunFailed
"""A candidate's outputs for a sample, or why it did not run."""

DEFAULT_REL_MAX: float = default("rel_max")
"""The default tolerance: FP16's 2^-11 may grow about twenty times."""

_COSINE_ROUNDING = 1e-12
"""Upper bound on the error of float64 sums in 1 - cosine, which keeps a bound a bound."""


def is_default(criterion: Criterion) -> bool:
    """Return whether `criterion` names neither a metric nor a threshold for float outputs."""
    thresholds = (criterion.max_abs, criterion.rel_max, criterion.snr_db, criterion.cosine)
    return criterion.metric is None and all(one is None for one in thresholds)


def effective(criterion: Criterion) -> Criterion:
    """Return the effective criterion: `rel_max` 1e-2 if neither threshold nor metric is set."""
    if is_default(criterion):
        return replace(criterion, rel_max=DEFAULT_REL_MAX)
    return criterion


class OutputTotals(Struct, frozen=True):
    """Totals of one reference output over all samples to be judged.

    Attributes:
        absmax: Largest finite magnitude; 0 if there is none.
        energy: Σ reference² over finite elements.
        elements: Number of elements, including non-finite ones.
        groups: Slices with their own scales; empty if all share one.
        faint: Slices that are faint beside others, which must not be lost.
        quiet: Between which largest values samples must not be lost, either.
        common: The majority value of integers and Booleans; None if there is none.
    """

    absmax: float
    energy: float
    elements: int
    groups: tuple[Group, ...] = ()
    faint: tuple[Faint, ...] = ()
    quiet: tuple[float, float] = (0.0, 0.0)
    common: Common | None = None


def totals(references: Sequence[Outputs]) -> dict[str, OutputTotals]:
    """Return the totals of every output in `references`, which may be empty, as may the arrays."""
    arrays: dict[str, list[NDArray[Any]]] = {}
    spreads: defaultdict[str, Spread] = defaultdict(Spread)
    slices: defaultdict[str, Slices] = defaultdict(Slices)
    for outputs in references:
        for name, array in outputs.items():
            arrays.setdefault(name, []).append(array)
            spreads[name].add(array)
            slices[name].add(array)
    return {
        name: OutputTotals(
            spread.absmax,
            spread.energy,
            spread.elements,
            slices[name].groups(),
            slices[name].faint(),
            slices[name].quiet(),
            common_value(arrays[name]),
        )
        for name, spread in spreads.items()
    }


def look_into(
    difference: Difference,
    total: OutputTotals,
    reference: NDArray[Any],
    candidate: NDArray[Any],
) -> None:
    """Add the results for its groups of elements to the difference of one sample."""
    if not difference.discrete:
        difference.by_group = group_errors(total.groups, reference, candidate)
        difference.lost = lost_in(total.faint, total.quiet, reference, candidate)
    else:
        difference.lost = lost_classes(total.common, reference, candidate)
    if total.common is not None:
        difference.rare = rare_in(reference, candidate, total.common.value)


def _ratio(actual: float, allowed: float) -> float:
    """Return actual / allowed; 0 for an error of 0, inf if none is allowed or it is undefined."""
    if actual == 0:
        return 0.0
    ratio = actual / allowed if allowed > 0 else math.inf
    return math.inf if math.isnan(ratio) else ratio


def _cosine_bound(total: OutputTotals, seen: Difference) -> float:
    """Return the largest cosine that is still possible, whatever the candidate outputs next.

    With reference energy E in all and e so far, p = Σ rc and q = Σ c² so far, the best that can
    follow is c = t·r. Cauchy-Schwarz over t gives cos² ≤ (E - e + max(p, 0)²/q) / E: what the
    candidate has not explained so far stays unexplained.
    """
    if total.energy == 0:
        return 0.0 if seen.candidate_energy else 1.0
    explained = 0.0
    if seen.candidate_energy:
        # In this order, because p² may leave the range of float64 where p²/q does not.
        explained = max(seen.product, 0.0) * (seen.product / seen.candidate_energy)
    missed = max(0.0, seen.reference_energy - explained) / total.energy
    return math.sqrt(max(0.0, 1.0 - missed))


def _best_agreement(total: OutputTotals, seen: Difference) -> float:
    """Return the largest agreement still possible, over all elements and over rare ones."""
    every = seen.agreement(total.elements)
    return every if total.common is None else min(every, seen.rare.agreement(total.common.others))


def lower_bound(criterion: Criterion, total: OutputTotals, seen: Difference) -> float:
    """Return a lower bound on one output's final excess, given the pairs seen so far.

    Args:
        criterion: An effective criterion.
        total: The output's totals over all samples to be judged.
        seen: Its difference over some of them, with cosine terms if the criterion has a cosine.
    """
    if seen.nonfinite:
        return math.inf
    if criterion.metric is not None:
        return 0.0
    if seen.misshapen:
        return math.inf
    if seen.discrete:
        # Through the fraction itself, because 1/10 > 1 - 0.9 in binary, but 9/10 ≥ 0.9 holds.
        agreeing = _ratio(1 - _best_agreement(total, seen), 1 - criterion.agreement)
        # Whoever accepts that most differ accepts samples in which all do.
        lost = seen.lost.share / LOST if criterion.agreement > LOST else 0.0
        return max(agreeing, lost)
    is_relative = (criterion.rel_max, criterion.snr_db) != (None, None)
    bounds = [seen.lost.share / LOST if is_relative else 0.0]
    if criterion.max_abs is not None:
        bounds.append(_ratio(seen.max_abs, criterion.max_abs))
    if criterion.rel_max is not None:
        bounds.append(_ratio(_ratio(seen.max_abs, total.absmax), criterion.rel_max))
        for group, error in zip(total.groups, seen.by_group, strict=False):
            bounds.append(_group_ratio(group, error, criterion.rel_max))
    if criterion.snr_db is not None:
        allowed = total.energy * 10.0 ** (-criterion.snr_db / 10)
        bounds.append(math.sqrt(_ratio(seen.noise, allowed)))
    if criterion.cosine is not None:
        missing = max(0.0, 1 - _cosine_bound(total, seen) - _COSINE_ROUNDING)
        bounds.append(_angle_ratio(missing, criterion.cosine))
    return max(bounds)


def _group_ratio(group: Group, error: float, rel_max: float) -> float:
    return _ratio(_ratio(error, group.scale), rel_max) / group.room


def _angle_ratio(missing: float, required: float) -> float:
    # 1 - cos θ ≈ θ²/2: the root grows with the error's amplitude, as the other ratios do.
    return math.sqrt(_ratio(missing, 1 - required))


def full_excess(criterion: Criterion, total: OutputTotals, seen: Difference) -> float:
    """Return the excess of one output over all samples; ≤ 1 passes."""
    bound = lower_bound(criterion, total, seen)
    if criterion.cosine is None or criterion.metric is not None or seen.discrete:
        return bound
    return max(bound, _angle_ratio(1 - seen.cosine, criterion.cosine))


class OutputMeasure:
    """All error measures of one output, over samples added one at a time.

    Without samples, or with empty ones, errors are 0, the signal-to-noise ratio is inf, cosine and
    agreement are 1, and the summaries of both sides NaN. A string output is measured as the Boolean
    "equal to the reference" against all true.
    """

    def __init__(self, total: OutputTotals) -> None:
        """Start with no samples.

        Args:
            total: Of the output, over all samples to be judged: these, in their order, or more.
        """
        self._total = total
        self._seen = Difference()
        self._each: list[Difference] = []
        self._reference = Spread()
        self._ids: list[str] = []

    def update(self, reference: NDArray[Any], candidate: NDArray[Any] | None, sample: str) -> None:
        """Add one sample.

        Args:
            reference: [*shape] of any ONNX dtype but complex; may hold NaN and inf, may be empty.
            candidate: [*shape] of any numeric dtype, widened; another shape is a failure, and so is
                None.
            sample: Identifier of the sample.

        Raises:
            CaseError: The reference is complex.
        """
        here = compare(reference, candidate, cosine=True)
        self._reference.add(reference)
        if candidate is not None and not here.misshapen:
            look_into(here, self._total, reference, candidate)
        self._seen.merge(here)
        self._each.append(here)
        self._ids.append(sample)

    def result(self, criterion: Criterion) -> OutputError:
        """Return all measures over the samples so far and whether they meet `criterion`.

        All thresholds that are set must hold; for discrete outputs only `agreement`. With a metric
        only new non-finite values fail. `mean_abs` and `snr_db` include the infinite error of a
        non-finite mismatch.
        `worst_sample` is the first of the largest error (of the most mismatches, if discrete).
        """
        seen, holds = self._seen, effective(criterion)
        expected = self._reference
        total = _of(self._total, seen, expected.energy)
        mean = seen.error / (seen.elements or 1)
        each, common = zip(self._each, self._ids, strict=True), self._total.common
        worst = max(each, key=lambda one: one[0].rank, default=(seen, ""))
        equal = seen.agreement(seen.elements) if seen.discrete else None
        rare = None if common is None else seen.rare.agreement(seen.rare.reference)
        return OutputError(
            max_abs=seen.max_abs,
            rel_max=_ratio(seen.max_abs, total.absmax),
            mean_abs=mean,
            snr_db=decibel(total.energy, seen.noise),
            cosine=seen.cosine,
            agreement=equal,
            rare_agreement=0.0 if rare and seen.misshapen else rare,
            nonfinite=seen.nonfinite,
            misshapen=seen.misshapen,
            reference=Side(
                nonfinite=expected.elements - expected.count, elements=expected.elements
            ),
            worst_sample=worst[1],
            passed=full_excess(holds, total, seen) <= 1,
            groups=self._groups(holds),
        )

    def failing(self, criterion: Criterion) -> list[bool]:
        """Return the samples that fail alone, with `rel_max` on the scale of all samples."""
        one, whole = effective(criterion), self._total
        each = ((_of(whole, d, d.reference_energy), d) for d in self._each)
        return [full_excess(one, total, difference) > 1 for total, difference in each]

    def _groups(self, criterion: Criterion) -> tuple[SliceGroup, ...]:
        """Return the results for groups of slices; empty if they are not judged."""
        if (criterion.rel_max, criterion.snr_db) == (None, None) or criterion.metric is not None:
            return ()
        groups = list[SliceGroup]()
        for index, group in enumerate(self._total.groups if criterion.rel_max is not None else ()):
            assert criterion.rel_max is not None
            errors = [d.by_group[index] if d.by_group else 0.0 for d in self._each]
            each = zip(errors, self._ids, strict=True)
            error, worst = max(each, key=lambda one: one[0], default=(0.0, ""))
            groups.append(
                SliceGroup(
                    axis=group.axis,
                    ranges=group.ranges()[:FEW],
                    slices=group.slices.size,
                    scale=group.scale,
                    span=group.span,
                    room=group.room,
                    max_abs=error,
                    allowed=criterion.rel_max * group.scale * group.room,
                    worst_sample=worst,
                    passed=_group_ratio(group, error, criterion.rel_max) <= 1,
                )
            )
        hidden = all(group.passed for group in groups)
        return (*groups, *(self._lost() if hidden else ()))

    def _lost(self) -> Iterator[SliceGroup]:
        """Yield the slice or sample of which most is lost, if it is."""
        worst = max(range(len(self._each)), key=lambda i: self._each[i].lost.share, default=0)
        share, axis, place, scale = self._seen.lost
        place = worst if axis is None else place
        if share > LOST:
            yield SliceGroup(
                axis=axis,
                ranges=((place, place),),
                slices=1,
                scale=scale,
                max_abs=share * scale,
                allowed=LOST * scale,
                worst_sample=self._ids[worst],
                passed=False,
            )


def _of(total: OutputTotals, seen: Difference, energy: float) -> OutputTotals:
    """Return the totals of only those samples that the difference covers."""
    common = total.common and total.common._replace(others=seen.rare.reference)
    return replace(total, energy=energy, elements=seen.elements, common=common)


class Excess:
    """Worst measure over all outputs divided by what the criterion allows; > 1 is a failure.

    - max_abs, rel_max: largest error over the allowed one (`rel_max` times `OutputTotals.absmax`,
      and in each group times the group's scale);
    - snr_db: 10^((required - actual) / 20), a ratio of amplitudes;
    - cosine: √((1 - actual) / (1 - required)), roughly a ratio of angles;
    - agreement: fraction of mismatches over the allowed fraction, among all elements and among the
      uncommon ones (`rare`).

    0 means no error at all. inf means a non-finite value that the reference does not have, a
    different shape, or an error where the criterion allows none. If the criterion has a metric, no
    threshold counts: 0, or inf for a new non-finite value.
    """

    def __init__(
        self, criterion: Criterion, totals: Mapping[str, OutputTotals], spare: int = 0
    ) -> None:
        """Start with no samples.

        Args:
            criterion: What is acceptable; the default tolerance is filled in here.
            totals: Totals of every output over all samples to be judged, from `totals`.
            spare: How many samples may fail: those with the largest excess do not count.
        """
        self._criterion = effective(criterion)
        self._totals = totals
        limits = self._criterion.rel_max, self._criterion.snr_db
        self._slices = limits != (None, None) and self._criterion.metric is None
        self._seen = {name: Difference() for name in totals}
        self._value = 0.0
        self._spare, self._added = spare, 0
        self._aside: list[tuple[float, int, dict[str, Difference]]] = []

    def update(self, reference: Outputs, candidate: Computed) -> float:
        """Add one sample and return its own excess.

        That is `value` as if the other samples had no error: above 1, this sample alone makes the
        result fail. Costs one pass over the elements, two with a cosine, and one more per axis with
        groups.

        Args:
            reference: Its outputs, all of them among the totals.
            candidate: Its outputs; extra ones are ignored. A failed run is inf.

        Raises:
            CaseError: The candidate lacks an output, or an output is complex.
            KeyError: The totals lack an output.
        """
        excess, parts = self._compared(reference, candidate)
        self._added += 1
        heappush(self._aside, (excess, self._added, parts))
        if len(self._aside) > self._spare:
            least, _, others = heappop(self._aside)
            for name, part in others.items():
                self._seen[name].merge(part)
                bound = lower_bound(self._criterion, self._totals[name], self._seen[name])
                self._value = max(self._value, bound)
            # By rounding alone, one sample's bound could exceed the bound over all so far.
            self._value = max(self._value, least)
        return excess

    def _compared(
        self, reference: Outputs, candidate: Computed
    ) -> tuple[float, dict[str, Difference]]:
        """Return the excess of one sample, and the difference of each of its outputs."""
        excess, parts = 0.0, dict[str, Difference]()
        if isinstance(candidate, RunFailed):
            return math.inf, parts
        for name, expected in reference.items():
            if name not in candidate:
                raise CaseError(f"The candidate lacks output {name!r} of the reference.")
            part = compare(expected, candidate[name], cosine=self._criterion.cosine is not None)
            total = self._totals[name]
            if (self._slices or part.discrete) and not part.misshapen:
                look_into(part, total, expected, candidate[name])
            parts[name] = part
            excess = max(excess, lower_bound(self._criterion, total, part))
        return excess, parts

    @property
    def value(self) -> float:
        """Lower bound of the final excess over all samples that count, ≥ 0; never falls.

        Above 1 the final result fails whatever the remaining samples are, provided the totals cover
        all samples.
        """
        return self._value

    def final(self) -> float:
        """Return the excess, ≥ `value`, once every sample of the totals has been added."""
        return max(
            self._value,
            *(
                full_excess(self._criterion, self._totals[name], seen)
                for name, seen in self._seen.items()
            ),
            0.0,
        )
