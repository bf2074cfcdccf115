"""Whether a candidate that passes with sums in FP32 also passes where a runtime sums in FP16."""

from collections.abc import Sequence
from typing import Literal

import onnx_ir as ir

from halfwise.case import Case, Samples, Settings
from halfwise.emulation.runner import inspect_samples
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.judging.judge import judge_outputs
from halfwise.metrics import Computed, Excess, Outputs, totals

FEW = 2
"""Samples that are run with low sums, those with the largest errors: each takes many times as long
as without, as every addition is rounded."""
MARGIN = 0.5
"""Share of the tolerance that low sums may use: the same sums in another order had errors 1.7 times
as large (magika on ONNX Runtime's WebGPU provider)."""


def lowest_sums(
    candidate: ir.Model, passes: Sequence["LowSums"], case: Case, settings: Settings
) -> Literal["fp32", "fp16"] | None:
    """Return the lowest format of sums with which a candidate is known to pass.

    "fp16" if it passes with products, additions and reductions rounded one by one, as ONNX
    Runtime's WebGPU provider does, within `MARGIN` of the tolerance on the few samples with the
    largest errors. "fp32" if it fails then, or cannot be run so. None for a model without FP16, and
    for one with INT8, whose products are summed in INT32.

    Args:
        candidate: A typed model that passes.
        passes: Sets of samples on which it is to pass.
        case: Criterion and metric. A metric needs the outputs of all samples, and has no margin.
        settings: Where to run, and the format of sums that the verdict assumed.
    """
    nodes = [*candidate.graph.all_nodes()]
    low = any(v.dtype == ir.DataType.FLOAT16 for n in nodes for v in n.outputs)
    if not low or any(n.op_type == "DequantizeLinear" for n in nodes):
        return None
    if settings.accumulate == "fp16":
        return "fp16"
    try:
        emulation = emulate_typed(candidate, accumulate="each")
        every = all(one.holds(candidate, emulation, case, settings) for one in passes)
    except (CaseError, RunFailed):
        return "fp32"
    return "fp16" if every else "fp32"


class LowSums:
    """Samples on which a candidate runs with low sums."""

    def __init__(
        self,
        samples: Samples,
        references: Sequence[Outputs],
        errors: Sequence[float] = (),
        results: Sequence[Computed] = (),
    ) -> None:
        """Take samples, of which the `FEW` with the largest errors are run.

        Args:
            samples: The samples.
            references: Reference outputs of each.
            errors: The candidate's error on each with sums in FP32; measured if not given.
            results: Outputs of each without low sums; a metric judges nothing without them.
        """
        self._samples, self._references = samples, references
        self._errors, self._results = errors, results

    def holds(
        self, candidate: ir.Model, emulation: ir.Model, case: Case, settings: Settings
    ) -> bool:
        """Return whether a candidate, emulated with low sums, passes; see `lowest_sums`."""
        if case.metric is not None and not self._results:
            return True
        errors = self._errors or self._measured(candidate, case, settings)
        worst = sorted(range(len(errors)), key=lambda i: -errors[i])[:FEW]
        chosen = self._samples.select(worst)
        found = inspect_samples(emulation, (), chosen, runtime=settings.runtime)[0]
        if case.metric is not None:
            every = [*self._results]
            for i, result in zip(worst, found, strict=True):
                every[i] = result
            given = every, self._samples, self._references, case.criterion, case.metric
            return judge_outputs(*given).verdict.passed
        excess = Excess(case.criterion, totals(self._references))
        for i, result in zip(worst, found, strict=True):
            excess.update(self._references[i], result)
        return excess.value <= MARGIN

    def _measured(self, candidate: ir.Model, case: Case, settings: Settings) -> list[float]:
        emulation, scales = emulate_typed(candidate), totals(self._references)
        results = inspect_samples(emulation, (), self._samples, runtime=settings.runtime)[0]
        pairs = zip(self._references, results, strict=True)
        return [Excess(case.criterion, scales).update(*pair) for pair in pairs]
