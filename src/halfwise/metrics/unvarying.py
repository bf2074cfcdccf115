"""Whether the same outputs for all samples would pass: if so, the samples prove little."""

from collections.abc import Sequence

import numpy as np

from halfwise.metrics.difference import is_discrete
from halfwise.metrics.measures import OutputMeasure, Outputs, is_default, totals
from halfwise.records import Criterion
from halfwise.wording import number


def unvarying_hint(criterion: Criterion, references: Sequence[Outputs]) -> tuple[str, ...]:
    """Return one sentence if outputs that are the same for all samples would pass.

    The constant is the mean of each output over the samples; for integers, Booleans and strings,
    the first sample's value.

    Args:
        criterion: What is acceptable.
        references: FP32 outputs by sample.

    Returns:
        Nothing with a metric, for fewer than two samples, if shapes differ, or if all outputs are
        empty.
    """
    if criterion.metric is not None or len(references) < 2:
        return ()
    first = references[0]
    if not any(array.size for array in first.values()):
        return ()
    sums = {n: np.zeros(a.shape) for n, a in first.items() if not is_discrete(a.dtype)}
    for outputs in references:
        if any(outputs[name].shape != array.shape for name, array in first.items()):
            return ()
        for name in sums:
            # Infinities of both signs add up to NaN.
            with np.errstate(invalid="ignore", over="ignore"):
                sums[name] += outputs[name]
    constant = {n: sums[n] / len(references) if n in sums else a for n, a in first.items()}
    measures = {name: OutputMeasure(total) for name, total in totals(references).items()}
    for outputs in references:
        for name, measure in measures.items():
            measure.update(outputs[name], constant[name], "")
    errors = {name: measure.result(criterion) for name, measure in measures.items()}
    if not errors or not all(error.passed for error in errors.values()):
        return ()
    most = max(errors.values(), key=lambda error: error.rel_max)
    tighter = " with a tighter tolerance, such as --snr-db," if is_default(criterion) else ""
    return (
        f"The outputs of the samples differ by less than the tolerance, at most "
        f"{number(most.rel_max)} of the largest value from their mean: a constant would pass "
        f"too. Judge them{tighter} or with a metric.",
    )
