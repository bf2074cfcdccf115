"""Whether decisions that flip explain why the outputs on a rung are wrong."""

from collections.abc import Callable, Sequence
from math import inf, isnan

import onnx_ir as ir

from halfwise.emulation.runner import ModelRunner
from halfwise.fixing.plan.rules import lowered_by
from halfwise.graph.casts import low_type
from halfwise.graph.roles import roles_of
from halfwise.judging.deciding import Deciding, with_true_values
from halfwise.metrics import Computed, Excess, Outputs, is_tested, totals
from halfwise.records import (
    Criterion,
    Decided,
    Rung,
    Step,
    Verdict,
    said,
)
from halfwise.reporting.diagnosis import (
    decided_advice,
    decided_cause,
    decided_part,
    decided_signs,
)
from halfwise.tools.diagnose.subject import Subject


def in_emulation(subject: Subject, verdict: Verdict, low: ir.Model) -> Decided | None:
    """Return the decisions that cause most of the error of an emulation.

    Args:
        subject: What is diagnosed.
        verdict: The verdict on that model, on all samples.
        low: The model: an emulation in FP32, with the names of the network's tensors.
    """
    settings, network = subject.settings, subject.case.network
    lowered = lowered_by(settings.rules, network)
    criterion = subject.case.criterion if subject.case.metric is None else Criterion()
    look = Deciding(
        network,
        roles_of(network, low_type(settings.fmt), lowered=lowered),
        lambda some: ModelRunner(low, some, partial=True, runtime=settings.runtime),
        with_true_values(low, network, runtime=settings.runtime),
        _error_by(criterion, subject.references),
        subject.samples.with_progress(subject.watcher.step),
        settings.runtime,
    )
    return look.cause([inf if isnan(error) else error for error in verdict.excesses])


def decided_rung(
    rung: Rung,
    decided: Decided | None,
    what: str,
    subject: Subject,
    *advice: Step,
) -> Rung:
    """Return a failed rung with the decisions that explain it instead of its cause.

    If they explain only a part, or none were found, the rung blames what it did.

    Args:
        rung: The rung.
        decided: The decisions.
        what: What changes them, with its verb, such as `TF32 changes`.
        subject: What is diagnosed.
        advice: What to do besides.
    """
    if decided is None:
        return rung
    case = subject.case
    criterion = case.criterion
    if decided.left > 1:
        part = decided_part(decided, criterion)
        return rung.model_copy(update={"evidence": (part, *rung.evidence), "decided": decided})
    auto = criterion.metric is None and is_tested(subject.references, case.input_shapes)
    return rung.model_copy(
        update={
            "cause": decided_cause(decided, what, criterion),
            "nodes": tuple(flip.node for flip in decided.flips),
            "evidence": (*decided_signs(decided), *rung.evidence),
            "advice": (*advice, *said(*decided_advice(decided, criterion, low=True, auto=auto))),
            "decided": decided,
        }
    )


def _error_by(
    criterion: Criterion, references: Sequence[Outputs]
) -> Callable[[int, Computed], float]:
    scales = totals(references)

    def error(index: int, outputs: Computed) -> float:
        excess = Excess(criterion, scales).update(references[index], outputs)
        return inf if isnan(excess) else excess

    return error
