"""Whether a candidate that passes with sums in FP32 also passes where a runtime sums in FP16."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import onnx_ir as ir

from halfwise.case import Case, Samples, Settings
from halfwise.emulation.accumulate import MIN_OPSET, has_sum
from halfwise.emulation.budget import Budget
from halfwise.emulation.runner import inspect_samples
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.graph.conversion import raise_opset
from halfwise.graph.model import opset_of
from halfwise.judging.judge import judge_outputs
from halfwise.metrics import Computed, Excess, Outputs, totals

FEW = 2
"""Samples that are run with low sums, those with the largest errors: each takes many times as long
as without, as every addition is rounded."""
MARGIN = 0.5
"""Share of the tolerance that low sums may use: the same sums in another order had errors 1.7 times
as large (magika on ONNX Runtime's WebGPU provider)."""


def lowest_sums(
    candidate: ir.Model,
    passes: Sequence["LowSums"],
    case: Case,
    settings: Settings,
    budget: Budget,
) -> Literal["fp32", "fp16"] | None:
    """Return the lowest format of sums with which a candidate is known to pass.

    "fp16" if it passes with products, additions and reductions rounded one by one, as ONNX
    Runtime's WebGPU provider does, within `MARGIN` of the tolerance on the few samples with the
    largest errors, or if it has no such sum. "fp32" if it fails then, cannot be run so, or the
    budget ends it. None for a model without FP16, and for one with INT8, whose products are summed
    in INT32.

    Args:
        candidate: A typed model that passes.
        passes: Sets of samples on which it is to pass.
        case: Criterion and metric. A metric needs the outputs of all samples, and has no margin.
        settings: Where to run, and the format of sums that the verdict assumed.
        budget: Pays for the runs; in a block of its own, `OutOfTime` propagates.
    """
    nodes = [*candidate.graph.all_nodes()]
    low = [n for n in nodes if any(v.dtype == ir.DataType.FLOAT16 for v in n.outputs)]
    if not low or any(n.op_type == "DequantizeLinear" for n in nodes):
        return None
    if settings.accumulate == "fp16" or not any(map(has_sum, low)):
        return "fp16"
    try:
        if opset_of(candidate) < MIN_OPSET:
            candidate = raise_opset(replace(case.network, model=candidate), MIN_OPSET).model
        emulation = emulate_typed(candidate, accumulate="each")
        given = candidate, emulation, case, settings, budget
        holds = budget.within("sums", lambda: all(one.holds(*given) for one in passes), False)
    except (CaseError, RunFailed):
        return "fp32"
    return "fp16" if holds else "fp32"


@dataclass(frozen=True)
class LowSums:
    """Samples on which a candidate runs with low sums: the `FEW` with the largest errors.

    Attributes:
        samples: The samples.
        references: Reference outputs of each.
        errors: The candidate's error on each with sums in FP32; measured if empty.
        results: Outputs of each without low sums; computed if empty, where they are needed.
    """

    samples: Samples
    references: Sequence[Outputs]
    errors: Sequence[float] = ()
    results: Sequence[Computed] = ()

    def holds(
        self,
        candidate: ir.Model,
        emulation: ir.Model,
        case: Case,
        settings: Settings,
        budget: Budget,
    ) -> bool:
        """Return whether a candidate, emulated with low sums, passes; see `lowest_sums`."""
        criterion, scales = case.criterion, totals(self.references)
        results = self.results
        if not results:
            budget.spend("trial", len(self.samples))
            plain = emulate_typed(candidate)
            results = inspect_samples(plain, (), self.samples, runtime=settings.runtime)[0]
        pairs = zip(self.references, results, strict=True)
        errors = self.errors or [Excess(criterion, scales).update(*pair) for pair in pairs]
        worst = sorted(range(len(errors)), key=lambda i: -errors[i])[:FEW]
        chosen = self.samples.select(worst)
        budget.spend("sums", len(chosen))
        found = inspect_samples(emulation, (), chosen, runtime=settings.runtime)[0]
        low = dict(zip(worst, found, strict=True))
        if case.metric is not None:
            every = [low.get(i, result) for i, result in enumerate(results)]
            given = every, self.samples, self.references, criterion, case.metric
            return judge_outputs(*given).verdict.passed
        excess = Excess(criterion, scales)
        for i, result in low.items():
            excess.update(self.references[i], result)
        return excess.value <= MARGIN
