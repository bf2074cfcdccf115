"""One number for all outputs: how much worse than allowed, over the samples seen so far."""

import math
from collections.abc import Mapping

from halfwise.errors import CaseError, RunFailed
from halfwise.metrics.difference import Difference, compare
from halfwise.metrics.measures import (
    Computed,
    Outputs,
    OutputTotals,
    effective,
    full_excess,
    look_into,
    lower_bound,
)
from halfwise.records import Criterion


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

    def __init__(self, criterion: Criterion, totals: Mapping[str, OutputTotals]) -> None:
        """Start with no samples.

        Args:
            criterion: What is acceptable; the default tolerance is filled in here.
            totals: Totals of every output over all samples to be judged, from `totals`.
        """
        self._criterion = effective(criterion)
        self._totals = totals
        self._slices = self._criterion.rel_max is not None and self._criterion.metric is None
        self._seen = {name: Difference() for name in totals}
        self._value = 0.0

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
        wants_cosine, own = self._criterion.cosine is not None, 0.0
        if isinstance(candidate, RunFailed):
            self._value = math.inf
            return math.inf
        for name, expected in reference.items():
            if name not in candidate:
                raise CaseError(f"The candidate lacks output {name!r} of the reference.")
            part = compare(expected, candidate[name], cosine=wants_cosine)
            seen, total = self._seen[name], self._totals[name]
            if (self._slices or part.discrete) and not part.misshapen:
                look_into(part, total, expected, candidate[name])
            seen.merge(part)
            own = max(own, lower_bound(self._criterion, total, part))
            self._value = max(self._value, lower_bound(self._criterion, total, seen))
        # By rounding alone, one sample's bound could exceed the bound over all so far.
        self._value = max(self._value, own)
        return own

    @property
    def value(self) -> float:
        """Lower bound of the final excess over all samples, ≥ 0; never falls.

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
