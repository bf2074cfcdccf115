"""Rungs 5 and 6: does TF32 matter, and at which products; which nodes does the low format break?"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, isnan
from typing import Literal

import onnx_ir as ir

from halfwise.case import Case
from halfwise.emulation.runner import ModelRunner
from halfwise.emulation.typed import emulate_tf32, emulate_typed
from halfwise.errors import HalfwiseError
from halfwise.fixing.attribute.evidence import Band
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import fix
from halfwise.fixing.plan.rules import lowered_by
from halfwise.formats import BF16
from halfwise.graph.casts import low_type
from halfwise.graph.roles import roles_of
from halfwise.inputs import split_heldout
from halfwise.judging.deciding import Deciding, with_true_values
from halfwise.judging.judge import judge
from halfwise.metrics import Computed, Excess, Outputs, is_tested, totals
from halfwise.options.options import RULES
from halfwise.progress import offered
from halfwise.records import (
    Criterion,
    Decided,
    GuardKind,
    KeptNode,
    NodeName,
    Rung,
    Sign,
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
from halfwise.reporting.remarks import explained, reasons, worded
from halfwise.tools.compare.engine_maker import EngineMaker
from halfwise.tools.compare.walk import all_low, with_bf16
from halfwise.tools.diagnose.subject import Subject, signs_of
from halfwise.wording import MOST_ROWS, count, stopped

_OFF = (
    "Build without TF32: trtexec --noTF32, or clear BuilderFlag.TF32; NVIDIA_TF32_OVERRIDE=0 "
    "disables it for all libraries of a process."
)


def tf32(subject: Subject) -> Rung:
    """Return whether products in TF32 keep the outputs within the tolerance.

    With a target, in the engine; otherwise emulated with rounding toward zero, as in the coarsest
    kernels. No node is blamed: a builder has one switch for all products.
    """
    emulation = emulate_tf32(subject.case.network, rounding="zero")
    verdict = emulated = subject.judge(emulation)
    signs = signs_of(verdict, "emulation, TF32 products rounded toward zero")
    how: Literal["emulated", "measured"] = "emulated"
    if subject.engines is not None:
        try:
            verdict, measured = _in_engine(subject, subject.engines)
            how = "measured"
        except HalfwiseError as error:
            measured = [Sign(severity="warning", text=f"The engine with TF32: {error.message}")]
        signs = [*measured, *signs]
    rung = Rung(
        rung=5,
        name="tf32",
        passed=verdict.passed,
        how=how,
        cause="TF32 does not matter: the outputs stay within the tolerance.",
        evidence=tuple(signs),
    )
    if verdict.passed:
        return rung
    cause = f"TF32 alone puts the outputs out of tolerance: {reasons(verdict.failures)[0]}."
    rung = rung.model_copy(update={"cause": cause, "advice": said(_OFF)})
    decided = None if emulated.passed else _in_emulation(subject, emulated, emulation)
    return _decided_rung(rung, decided, "TF32 changes", subject, *rung.advice)


def _in_engine(subject: Subject, engines: EngineMaker) -> tuple[Verdict, list[Sign]]:
    """Return the verdict on the engine with TF32, and signs of it and of the one without."""
    side, exact = engines.side("tf32"), engines.side("fp32")
    verdict = engines.judge(side.plain()[0], subject.references, subject.case.criterion)
    signs = signs_of(verdict, side.label)
    try:
        right = engines.judge(exact.plain()[0], subject.references, subject.same_function)
    except HalfwiseError as error:
        signs.append(Sign(severity="info", text=f"The engine without TF32: {error.message}"))
    else:
        signs += signs_of(right, exact.label)
    if remark := engines.worker.info.tf32_remark:
        signs.append(Sign(severity="warning", text=stopped(remark)))
    return verdict, signs


_OF_DECISIONS: frozenset[GuardKind] = frozenset(("margin", "decision"))
"""Suspicions that decisions change. Any other, such as an overflow, is a cause of its own, and
decisions change because of it."""


def precision(subject: Subject) -> Rung:
    """Return whether emulation with everything low is right; otherwise what `fix` blames."""
    low = subject.settings.fmt.name.upper()
    bf16 = subject.settings.fmt == BF16
    case = with_bf16(subject.case, subject.settings) if bf16 else subject.case
    typed = all_low(case.network, subject.settings.fmt, subject.settings)
    verdict = _judged(subject, case, typed)
    signs = signs_of(verdict, f"emulation, all {low}")
    if verdict.passed:
        return Rung(
            rung=6,
            name="precision",
            passed=True,
            how="emulated",
            cause=f"In emulation, the model passes with everything in {low}.",
            evidence=tuple(signs),
        )
    searched, heldout = split_heldout(case.calibration)
    with offered():  # nobody takes the offer: Ctrl-C ends a diagnosis
        # Find what is wrong, not what repairs could mend.
        settings = replace(subject.settings, no_repair=RULES)
        fixed = fix(replace(case, calibration=searched, heldout=heldout), settings, subject.watcher)
    subject.seen = fixed.seen
    nodes = tuple(k.node for k in fixed.plan.keep)
    suspicions = worded(fixed.guards)
    guards = [g for g in suspicions if set(nodes).intersection(g.nodes)]
    because = [k.because.guard for k in fixed.plan.keep if k.because is not None]
    blamed = {guard for guard in because if guard is not None}
    fixes = tuple(dict.fromkeys(g.fix for i, g in enumerate(suspicions) if i in blamed and g.fix))
    headroom = subject.settings.headroom
    signs += _reasons(explained(_worst_first(fixed), suspicions, headroom, fixed.followed))
    rung = Rung(
        rung=6,
        name="precision",
        passed=False,
        how="emulated",
        cause=_cause(fixed, low),
        nodes=nodes,
        evidence=tuple(signs),
        overflows=any(guard.severity >= Band.OVERFLOW for guard in guards),
        advice=(
            *((subject.fix,) if subject.fix and fixed.result.passed else ()),
            *said(*fixes[:MOST_ROWS]),
        ),
    )
    if any(suspicions[guard].kind not in _OF_DECISIONS for guard in blamed):
        return rung
    decided = _decided(subject, case, typed, verdict)
    return _decided_rung(rung, decided, f"{low} changes", subject, *rung.advice)


def _judged(subject: Subject, case: Case, typed: ir.Model) -> Verdict:
    return judge(
        typed,
        case.calibration,
        subject.references,
        case.criterion,
        case.metric,
        accumulate=subject.settings.accumulate,
        runtime=subject.settings.runtime,
    ).verdict


def _decided(subject: Subject, case: Case, typed: ir.Model, verdict: Verdict) -> Decided | None:
    emulated = emulate_typed(typed, accumulate=subject.settings.accumulate)
    of_case = subject if case is subject.case else replace(subject, case=case)
    return _in_emulation(of_case, verdict, emulated)


def _worst_first(fixed: Fixed) -> list[KeptNode]:
    """Return kept nodes, most certain and largest suspicion first."""

    def severity(kept: KeptNode) -> float:
        guard = kept.because.guard if kept.because is not None else None
        return 0.0 if guard is None else fixed.guards[guard].severity

    return sorted(fixed.plan.keep, key=severity, reverse=True)


def _reasons(kept: Sequence[KeptNode]) -> list[Sign]:
    """Return why nodes are kept: each reason once, without fixes, which are advice."""
    reasons: dict[str, list[NodeName]] = {}
    for each in kept:
        reasons.setdefault(each.reason, []).append(each.node)
    return [
        Sign(severity="error", text=text, nodes=tuple(nodes))
        for text, nodes in list(reasons.items())[:MOST_ROWS]
    ]


def _cause(fixed: Fixed, low: str) -> str:
    """Return the cause, as far as the search got."""
    kept = len(fixed.plan.keep)
    if not fixed.result.passed:
        return f"{low} breaks the model, and the search found no plan that passes."
    more = "" if fixed.plan.minimal else "; the search did not finish, so fewer may do"
    if fixed.result.spare:
        more = f"; {len(fixed.result.needed)} would do too, but cost more"
    return (
        f"{low} breaks the model. With the graph as it is, keeping {count(kept, 'node')} in "
        f"FP32 is enough{more}."
    )


def _in_emulation(subject: Subject, verdict: Verdict, low: ir.Model) -> Decided | None:
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


def _decided_rung(
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
            "advice": (*advice, *said(*decided_advice(decided, criterion, auto=auto))),
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
