"""Rungs 5 and 6: does TF32 matter; which nodes does the low format break?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from halfwise.emulation.typed import emulate_tf32
from halfwise.errors import HalfwiseError
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import fix
from halfwise.formats import BF16
from halfwise.inputs import split_heldout
from halfwise.judging.judge import judge
from halfwise.options.options import RULES
from halfwise.progress import offered
from halfwise.records import (
    KeptNode,
    Rung,
    Sign,
    Verdict,
    said,
)
from halfwise.reporting.remarks import explained, reasons, worded
from halfwise.tools.compare.engine_maker import EngineMaker
from halfwise.tools.compare.walk import all_low, with_bf16
from halfwise.tools.diagnose.subject import Subject, signs_of
from halfwise.wording import MOST_ROWS, alike, count, stopped

_OFF = (
    "Build without TF32: trtexec --noTF32, or clear BuilderFlag.TF32; NVIDIA_TF32_OVERRIDE=0 "
    "disables it for all libraries of a process."
)


def tf32(subject: Subject) -> Rung:
    """Return whether products in TF32 keep the outputs within the tolerance.

    With a target, in the engine; otherwise emulated with rounding toward zero, as in the coarsest
    kernels. No node is blamed: a builder has one switch for all products.
    """
    verdict = subject.judge(emulate_tf32(subject.case.network))
    signs = signs_of(verdict, "emulation, TF32 products rounded toward zero")
    how: Literal["emulated", "measured"] = "emulated"
    if subject.engines is not None:
        try:
            verdict, measured = _in_engine(subject, subject.engines)
            how = "measured"
        except HalfwiseError as error:
            measured = [Sign(severity="warning", text=f"The engine with TF32: {error.message}")]
        signs = [*measured, *signs]
    cause = "TF32 does not matter: the outputs stay within the tolerance."
    if not verdict.passed:
        cause = f"TF32 alone puts the outputs out of tolerance: {reasons(verdict.failures)[0]}."
    return Rung(
        rung=5,
        name="tf32",
        passed=verdict.passed,
        how=how,
        cause=cause,
        evidence=tuple(signs),
        advice=() if verdict.passed else said(_OFF),
    )


def _in_engine(subject: Subject, engines: EngineMaker) -> tuple[Verdict, list[Sign]]:
    """Return the verdict on the engine with TF32, and signs of it."""
    side = engines.engine("tf32")
    verdict = engines.judge(side.built(), subject.references, subject.case.criterion)
    signs = signs_of(verdict, side.label)
    if remark := engines.worker.info.tf32_remark:
        signs.append(Sign(severity="warning", text=stopped(remark)))
    return verdict, signs


def precision(subject: Subject) -> Rung:
    """Return whether emulation with everything low is right; otherwise what `fix` blames."""
    low = subject.settings.fmt.name.upper()
    bf16 = subject.settings.fmt == BF16
    case = with_bf16(subject.case, subject.settings) if bf16 else subject.case
    verdict = judge(
        all_low(case.network, subject.settings.fmt, subject.settings),
        case.calibration,
        subject.references,
        case.criterion,
        case.metric,
        accumulate=subject.settings.accumulate,
        runtime=subject.settings.runtime,
    ).verdict
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
    because = [k.because.guard for k in fixed.plan.keep if k.because is not None]
    blamed = {guard for guard in because if guard is not None}
    fixes = tuple(dict.fromkeys(g.fix for i, g in enumerate(suspicions) if i in blamed and g.fix))
    headroom = subject.settings.headroom
    signs += _reasons(explained(_worst_first(fixed), suspicions, headroom, fixed.followed))
    return Rung(
        rung=6,
        name="precision",
        passed=False,
        how="emulated",
        cause=_cause(fixed, low),
        nodes=nodes,
        evidence=tuple(signs),
        advice=(
            *((subject.fix,) if subject.fix and fixed.result.passed else ()),
            *said(*fixes[:MOST_ROWS]),
        ),
    )


def _worst_first(fixed: Fixed) -> list[KeptNode]:
    """Return kept nodes, most certain and largest suspicion first."""

    def severity(kept: KeptNode) -> float:
        guard = kept.because.guard if kept.because is not None else None
        return 0.0 if guard is None else fixed.guards[guard].severity

    return sorted(fixed.plan.keep, key=severity, reverse=True)


def _reasons(kept: Sequence[KeptNode]) -> list[Sign]:
    """Return why nodes are kept: each reason once, without fixes, which are advice."""
    return [
        Sign(severity="error", text=group[0].reason, nodes=tuple(one.node for one in group))
        for group in alike(kept, lambda one: one.reason)[:MOST_ROWS]
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
