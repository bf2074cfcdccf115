"""Rungs 5 and 6: does TF32 matter, and at which products; which nodes does the low format break?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import numpy as np
import onnx_ir as ir

from halfwise.case import Case
from halfwise.emulation.budget import sized
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import TF32_INPUT, emulate_tf32, emulate_typed, tf32_nodes
from halfwise.errors import HalfwiseError, RunFailed
from halfwise.fixing.attribute.evidence import Band
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import fix
from halfwise.fixing.rewrite import with_opset_for
from halfwise.formats import BF16
from halfwise.inputs import split_heldout
from halfwise.interruption import offered
from halfwise.judging.judge import judge, judge_outputs
from halfwise.metrics import Computed
from halfwise.metrics.difference import relative_rms
from halfwise.options.loading import nodes_of
from halfwise.options.options import RULES
from halfwise.records import (
    Decided,
    Guard,
    GuardKind,
    KeptNode,
    NodeName,
    Rung,
    Sign,
    Verdict,
    said,
)
from halfwise.reporting.guards import explained, worded
from halfwise.reporting.remarks import reasons
from halfwise.tools.compare.engine_maker import EngineMaker, EngineSide
from halfwise.tools.compare.walk import all_low
from halfwise.tools.diagnose.decided import decided_rung, in_emulation, in_engine
from halfwise.tools.diagnose.subject import Subject, signs_of
from halfwise.wording import capital, count, number, percent

RANKED = 8
"""Nodes named; the rest is counted."""
_OFF = (
    "Build without TF32: trtexec --noTF32, or clear BuilderFlag.TF32; NVIDIA_TF32_OVERRIDE=0 "
    "disables it for all libraries of a process."
)


@dataclass(frozen=True)
class _Ranked:
    """A product, and the largest relative RMS error of an output that TF32 in it alone causes."""

    node: NodeName
    error: float


def tf32(subject: Subject) -> Rung:
    """Return whether products in TF32 keep the outputs within the tolerance.

    With a target, in the engine; otherwise emulated with rounding toward zero, as in the coarsest
    kernels. Nodes are ranked by the effect of each product alone in TF32, emulated, on the worst
    sample.
    """
    emulation = _Emulation(subject)
    verdict = emulation.verdict
    signs = signs_of(verdict, "emulation, TF32 products rounded toward zero")
    how: Literal["measured", "emulated"] = "emulated"
    side = None
    if subject.engines is not None:
        try:
            verdict, told, side = _in_engine(subject, subject.engines)
            how = "measured"
        except HalfwiseError as error:
            told = [Sign(severity="warning", text=f"The engine with TF32: {error.message}")]
        signs = [*told, *signs]
    ids = subject.samples.ids
    index = ids.index(verdict.worst_sample) if verdict.worst_sample in ids else 0
    ranked = emulation.ranking(index)
    nodes = [r.node for r in ranked if r.error > 0]
    signs += _ranks(ranked)
    off = "TF32 alone puts the outputs out of tolerance"
    rung = Rung(
        rung=5,
        name="tf32",
        passed=verdict.passed,
        how=how,
        cause="TF32 does not matter: the outputs stay within the tolerance."
        if verdict.passed
        else f"{off}: {reasons(verdict.failures)[0]}.",
        nodes=() if verdict.passed else tuple(nodes[:RANKED]),
        evidence=tuple(signs),
        advice=() if verdict.passed else said(_OFF),
    )
    found = None if verdict.passed else _decisions(subject, verdict, emulation.verdict, side)
    return decided_rung(rung, found, "TF32 changes", subject, *rung.advice)


def _decisions(
    subject: Subject, verdict: Verdict, emulated: Verdict, side: EngineSide | None
) -> Decided | None:
    """Return decisions that cause the error: of the engine, else of the emulation."""
    if side is not None and subject.engines is not None:
        return in_engine(subject, verdict, subject.engines, side)
    return in_emulation(subject, emulated, emulate_tf32(subject.case.network, rounding="zero"))


class _Emulation:
    """The emulation of TF32, with a switch for each product."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._nodes = tf32_nodes(subject.case.network)
        self._session = Session(
            emulate_tf32(subject.case.network, switched=True, rounding="zero"),
            runtime=subject.settings.runtime,
        )
        everything = np.ones(len(self._nodes), bool)
        self.verdict = judge_outputs(
            [self._run(i, everything) for i in range(len(subject.samples))],
            subject.samples,
            subject.references,
            subject.case.criterion,
            subject.case.metric,
        ).verdict

    def ranking(self, index: int) -> list[_Ranked]:
        """Return each product with its effect alone on sample `index`, largest first."""
        right, found = self._subject.references[index], []
        for i, node in enumerate(self._nodes):
            self._subject.watcher.step(i + 1, len(self._nodes))
            outputs = self._run(index, np.arange(len(self._nodes)) == i)
            error = inf
            if not isinstance(outputs, RunFailed):
                error = max(relative_rms(right[n], outputs[n]) for n in right)
            found.append(_Ranked(node, error))
        return sorted(found, key=lambda ranked: ranked.error, reverse=True)

    def _run(self, index: int, which: np.ndarray) -> Computed:
        sample = dict(self._subject.samples[index])
        if self._nodes:
            sample[TF32_INPUT] = which
        try:
            return self._session.run(sample)
        except RunFailed as failure:
            return failure


def _in_engine(subject: Subject, engines: EngineMaker) -> tuple[Verdict, list[Sign], EngineSide]:
    """Return the verdict on the engine with TF32, the effect of the environment, and the engine."""
    side = engines.side("tf32")
    build, _ = side.plain()
    verdict = engines.judge(build, subject.references, subject.case.criterion)
    signs = signs_of(verdict, side.label)
    try:
        exact, _ = engines.side("fp32").plain()
        right = engines.judge(exact, subject.references, subject.same_function)
    except HalfwiseError as error:
        signs.append(Sign(severity="info", text=f"The engine without TF32: {error.message}"))
    else:
        signs += signs_of(right, "engine (FP32, TF32 off)")
    override = engines.worker.info.tf32_override
    if override is None:
        told = "NVIDIA_TF32_OVERRIDE is not set in the worker's environment"
        what = "setting it to 0"
    else:
        told = f"NVIDIA_TF32_OVERRIDE={override} is set in the worker's environment"
        what = "without it"
    try:
        effect = engines.override_effect(build)
    except HalfwiseError as error:
        signs.append(Sign(severity="info", text=f"{told}; its effect was not measured: {error}"))
    else:
        changed = f"changes them by {number(effect)}" if effect > 0 else "changes nothing"
        signs.append(
            Sign(
                severity="info" if override is None else "warning",
                text=f"{told}; {what} and running the same engine again {changed} (relative RMS of "
                "the outputs).",
            )
        )
    return verdict, signs, side


def _ranks(ranked: Sequence[_Ranked]) -> list[Sign]:
    power = sum(r.error**2 for r in ranked)
    signs = []
    for r in ranked[:RANKED]:
        if r.error > 0:
            # If a product makes an output infinite or NaN, shares say nothing.
            share = f": {percent(r.error**2 / power)}" if power < inf else ""
            all_of = f" of the error power of all {count(len(ranked), 'product')}" if share else ""
            text = f"In TF32 alone, it changes the outputs by {number(r.error)} (relative RMS, "
            text += f"emulated){share}{all_of}."
            signs.append(Sign(severity="info", text=text, nodes=(r.node,)))
    return signs or [Sign(severity="info", text="The model has no products that TF32 changes.")]


_MOST = 8
"""Kept nodes and suspicions reported; `fix` writes all to run.json."""
_OF_DECISIONS: frozenset[GuardKind] = frozenset(("margin", "decision"))
"""Suspicions that decisions change. Any other, such as an overflow, is a cause of its own, and
decisions change because of it."""


def precision(subject: Subject) -> Rung:
    """Return whether emulation with everything low is right; otherwise what `fix` blames."""
    low = subject.settings.fmt.name.upper()
    case = _with_opset(subject)
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
    told = worded(fixed.guards)
    guards = [g for g in told if set(nodes).intersection(g.nodes)]
    because = [k.because.guard for k in fixed.plan.keep if k.because is not None]
    blamed = {guard for guard in because if guard is not None}
    fixes = tuple(dict.fromkeys(g.fix for i, g in enumerate(told) if i in blamed and g.fix))
    headroom, metric = subject.settings.headroom, case.criterion.metric
    signs += _reasons(explained(_worst_first(fixed), told, headroom, metric, fixed.followed))
    signs += map(_suspicion, guards[:_MOST])
    if len(guards) < len(told):
        harmless = count(len(told) - len(guards), "other suspicion")
        signs.append(Sign(severity="info", text=f"{harmless} turned out to be harmless."))
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
            *((subject.fix,) if subject.fix and fixed.found.passed else ()),
            *said(*fixes[:_MOST]),
        ),
    )
    if any(told[guard].kind not in _OF_DECISIONS for guard in blamed):
        return rung
    found = _decided(subject, case, typed, verdict)
    return decided_rung(rung, found, f"{low} changes", subject, *rung.advice)


def _judged(subject: Subject, case: Case, typed: ir.Model) -> Verdict:
    with sized("judge", nodes_of(case.network)):
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
    return in_emulation(of_case, verdict, emulated)


def _worst_first(fixed: Fixed) -> list[KeptNode]:
    """Return kept nodes, most certain and largest suspicion first."""

    def severity(kept: KeptNode) -> float:
        guard = kept.because.guard if kept.because is not None else None
        return 0.0 if guard is None else fixed.guards[guard].severity

    return sorted(fixed.plan.keep, key=severity, reverse=True)


def _suspicion(guard: Guard) -> Sign:
    text = capital(guard.message, (guard.node, guard.tensor or ""))
    return Sign(severity="warning", text=text, nodes=guard.nodes)


def _reasons(kept: Sequence[KeptNode]) -> list[Sign]:
    """Return why nodes are kept: each reason once, without fixes, which are advice."""
    told: dict[str, list[NodeName]] = {}
    for each in kept:
        told.setdefault(each.reason, []).append(each.node)
    return [
        Sign(severity="error", text=text, nodes=tuple(nodes))
        for text, nodes in list(told.items())[:_MOST]
    ]


def _cause(fixed: Fixed, low: str) -> str:
    """Return the cause, as far as the search got."""
    kept = len(fixed.plan.keep)
    if not fixed.found.passed:
        return f"{low} breaks the model, and the search found no plan that passes."
    more = "" if fixed.plan.minimal else "; the search did not finish, so fewer may do"
    if fixed.found.spare:
        more = f"; {len(fixed.found.needed)} would do too, but cost more"
    return (
        f"{low} breaks the model. With the graph as it is, keeping {count(kept, 'node')} in "
        f"FP32 is enough{more}."
    )


def _with_opset(subject: Subject) -> Case:
    """Return the case at an opset that has the low format."""
    if subject.settings.fmt != BF16:
        return subject.case
    network, _ = with_opset_for(
        BF16,
        subject.case.network,
        subject.samples,
        runtime=subject.settings.runtime,
    )
    return replace(subject.case, network=network)
