"""Whether a candidate that passes with sums in FP32 also passes where a runtime sums in FP16."""

from collections.abc import Sequence
from typing import Literal

import onnx_ir as ir

from halfwise.case import Case, Samples, Settings
from halfwise.emulation.runner import inspect_samples
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.judging.judge import judge_outputs
from halfwise.metrics import Computed, Outputs
from halfwise.records import Verdict

FEW = 2
"""Samples that are run with low sums, those with the largest errors: each takes ten times as long
as without, as every addition is rounded."""


def holds_with_low_sums(
    candidate: ir.Model,
    results: Sequence[Outputs],
    verdict: Verdict,
    case: Case,
    settings: Settings,
    samples: Samples,
    references: Sequence[Outputs],
) -> Literal["fp16", "fp32"] | None:
    """Return the lowest format of sums with which a candidate is known to pass.

    "fp16" if it passes with products, additions and reductions rounded one by one, as ONNX
    Runtime's WebGPU provider does, on the few samples with the largest errors. "fp32" if it fails
    then, or cannot be run so. None for a model without FP16, and for one with INT8, whose products
    are summed in INT32.

    Args:
        candidate: A typed model that passes.
        results: Its outputs of each sample, as its file gives them.
        verdict: Its verdict, which has the errors of the samples.
        case: Criterion and metric.
        settings: Where to run, and the format of sums that the verdict assumed.
        samples: The judged samples.
        references: Reference outputs of each sample.
    """
    nodes = [*candidate.graph.all_nodes()]
    low = any(v.dtype == ir.DataType.FLOAT16 for n in nodes for v in n.outputs)
    if not low or any(n.op_type == "DequantizeLinear" for n in nodes):
        return None
    if settings.accumulate == "fp16":
        return "fp16"
    worst = sorted(range(len(samples)), key=lambda i: -verdict.excesses[i])[:FEW]
    try:
        emulation = emulate_typed(candidate, accumulate="each")
        chosen = samples.select(worst)
        found = inspect_samples(emulation, (), chosen, runtime=settings.runtime)[0]
        every: list[Computed] = [*results]
        for i, one in zip(worst, found, strict=True):
            every[i] = one
        judged = judge_outputs(every, samples, references, case.criterion, case.metric)
    except (CaseError, RunFailed):
        return "fp32"
    return "fp16" if judged.verdict.passed else "fp32"
