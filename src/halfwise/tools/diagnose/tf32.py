"""Rung 5: does TF32 matter, and at which products?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import numpy as np

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import TF32_INPUT, Rounding, emulate_tf32, tf32_nodes
from halfwise.errors import HalfwiseError, RunFailed
from halfwise.graph.dataflow import read_by
from halfwise.graph.loading import normalise
from halfwise.graph.model import node_name, tensor_name
from halfwise.judging.judge import judge_outputs
from halfwise.metrics import Computed
from halfwise.metrics.difference import relative_rms
from halfwise.records import Decided, NodeName, Rung, Sign, Verdict, said
from halfwise.reporting.remarks import reasons
from halfwise.tools.compare import comparable
from halfwise.tools.compare.engine_maker import EngineMaker
from halfwise.tools.compare.engine_side import EngineSide
from halfwise.tools.compare.sides import Regions, reference
from halfwise.tools.diagnose.decided import decided_rung, in_emulation, in_engine
from halfwise.tools.diagnose.pieces import Pieces
from halfwise.tools.diagnose.subject import Subject, signs_of
from halfwise.wording import count, number, percent

RANKED = 8
"""Nodes named; the rest is counted."""
MEASURED = 128
"""Products run alone in kernels: those that may matter most by emulation."""
IN_TF32 = 1e-5
"""Relative RMS error of a product above which its kernel used TF32: FP32 in another order gives
1e-7, rounding both factors to 11 bits 1e-4 (bench/gpu/tf32_ranks.py)."""
_OFF = (
    "Build without TF32: trtexec --noTF32, or clear BuilderFlag.TF32; NVIDIA_TF32_OVERRIDE=0 "
    "disables it for all libraries of a process."
)
FOLLOWED = 32
"""Products whose results are followed to the outputs, each in its own session."""


@dataclass(frozen=True)
class Ran:
    """A product that ran in an engine with TF32, on its FP32 inputs.

    Attributes:
        own: Relative RMS error of its result.
        effect: The effect of that alone: the largest relative RMS error of an output. 0 if the
            kernel did not use TF32; None if not followed.
    """

    own: float
    effect: float | None


@dataclass(frozen=True)
class _Ranked:
    """A product, and the largest relative RMS error of an output that TF32 in it alone causes.

    Attributes:
        node: Its name.
        nearest: Emulated, rounding to nearest.
        zero: Emulated, rounding toward zero.
        ran: In a kernel; None if not tried.
    """

    node: NodeName
    nearest: float
    zero: float
    ran: Ran | None = None

    @property
    def error(self) -> float:
        """As measured; else the larger emulated one."""
        measured = None if self.ran is None else self.ran.effect
        return max(self.nearest, self.zero) if measured is None else measured


def tf32(subject: Subject) -> Rung:
    """Return whether products in TF32 keep the outputs within the tolerance.

    With a target, in the engine; otherwise emulated with rounding toward zero, as in the coarsest
    kernels. Nodes are ranked by the effect of each product alone in TF32, on the worst sample:
    emulated, and with a target the top ones in kernels too.
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
    if subject.engines is not None and ranked:
        try:
            ranked = _measured(subject, subject.engines, ranked, index)
        except HalfwiseError as error:
            text = f"No product was measured alone in a kernel: {error.message}"
            signs.append(Sign(severity="info", text=text))
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
    found = None if verdict.passed else _decided(subject, verdict, emulation.verdict, side)
    return decided_rung(rung, found, "TF32 changes", subject, *rung.advice)


def _decided(
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
        self._session = self._of("zero")
        everything = np.ones(len(self._nodes), bool)
        self.verdict = judge_outputs(
            [self._run(i, everything) for i in range(len(subject.samples))],
            subject.samples,
            subject.references,
            subject.case.criterion,
            subject.case.metric,
        ).verdict

    def ranking(self, index: int) -> list[_Ranked]:
        """Return each product with its effect alone on sample `index`, largest first.

        Must be the last call: only one session is alive at a time, since each holds all weights
        twice.
        """
        zero = self._errors(index, 0)
        del self._session
        self._session = self._of("nearest")
        nearest = self._errors(index, len(zero))
        found = map(_Ranked, self._nodes, nearest, zero)
        return sorted(found, key=lambda ranked: ranked.error, reverse=True)

    def _of(self, rounding: Rounding) -> Session:
        settings = self._subject.settings
        return Session(
            emulate_tf32(self._subject.case.network, switched=True, rounding=rounding),
            runtime=settings.runtime,
        )

    def _errors(self, index: int, done: int) -> list[float]:
        right, found = self._subject.references[index], []
        for i in range(len(self._nodes)):
            self._subject.watcher.step(done + i + 1, 2 * len(self._nodes))
            outputs = self._run(index, np.arange(len(self._nodes)) == i)
            if isinstance(outputs, RunFailed):
                found.append(inf)
            else:
                found.append(max(relative_rms(right[n], outputs[n]) for n in right))
        return found

    def _run(self, index: int, which: np.ndarray) -> Computed:
        sample = dict(self._subject.samples[index])
        if self._nodes:
            sample[TF32_INPUT] = which
        try:
            return self._session.run(sample)
        except RunFailed as failure:
            return failure


def _measured(
    subject: Subject, engines: EngineMaker, ranked: Sequence[_Ranked], index: int
) -> list[_Ranked]:
    """Return the ranking with the first products' effects in kernels."""
    first, rest = ranked[:MEASURED], ranked[MEASURED:]
    ran = in_kernels(subject, engines, [r.node for r in first], index)
    first = [_Ranked(r.node, r.nearest, r.zero, ran[r.node]) for r in first]
    return sorted([*first, *rest], key=lambda r: r.error, reverse=True)


def in_kernels(
    subject: Subject, engines: EngineMaker, names: Sequence[NodeName], index: int
) -> dict[NodeName, Ran]:
    """Return the effect of TF32 in each of the products `names`, on sample `index`.

    Takes one build. In the whole engine, or in another build, a product may get another kernel. Of
    the products that ran in TF32, the first `FOLLOWED` in `names` are followed.

    Raises:
        HalfwiseError: the engine cannot be built or run.
    """
    network, sample = subject.case.network, subject.samples[index]
    nodes = [node for node in network.nodes() if node_name(node) in names]
    results = {node_name(node): tensor_name(node.outputs[0]) for node in nodes}
    wanted = dict.fromkeys((*(n for node in nodes for n in read_by(node)), *results.values()))
    alone = subject.samples.select([index])
    right = {**sample, **next(reference(network, alone, subject.settings).get(list(wanted)))}
    piece = Pieces(network, lambda _: right).cut([frozenset([name]) for name in results])
    case = replace(
        engines.case,
        network=normalise(piece.model, path=None, sha256=""),
        calibration=Samples(("products",), lambda _: piece.feed),
        metric=None,
    )
    _, (made,) = engines.of(case).side("tf32").plain()
    references = subject.references[index]
    # An output may be an input or a constant.
    ends = [n for v in network.graph.outputs if (n := tensor_name(v)) in comparable(network)]
    found: dict[NodeName, Ran] = {}
    for name in names:
        tensor = results[name]
        own = relative_rms(right[tensor], made[tensor])
        followed = sum(bool(ran.effect) for ran in found.values())
        if own <= IN_TF32 or followed >= FOLLOWED:
            found[name] = Ran(own, 0.0 if own <= IN_TF32 else None)
            continue
        behind = Regions(network, ends, [tensor], runtime=subject.settings.runtime)
        after = behind.run(sample, made)
        if tensor in ends:
            after = {**after, tensor: made[tensor]}
        # What cannot run on the engine's result is maximally wrong.
        errors = [relative_rms(references[n], after[n]) if n in after else inf for n in ends]
        effect = max(errors, default=0.0)
        found[name] = Ran(own, effect)
    return found


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
    signs = [
        Sign(
            severity="info",
            text=f"In TF32 alone, it changes the outputs by {number(r.error)} (relative RMS, "
            f"{_how(r)}){_share(r, power, len(ranked))}.",
            nodes=(r.node,),
        )
        for r in ranked[:RANKED]
        if r.error > 0
    ]
    without = [r.node for r in ranked if r.ran is not None and r.ran.own <= IN_TF32]
    if without:
        text = f"{count(len(without), 'product')} that ran alone have kernels without TF32."
        signs.append(Sign(severity="info", text=text, nodes=tuple(without)))
    return signs or [Sign(severity="info", text="The model has no products that TF32 changes.")]


def _share(ranked: _Ranked, power: float, products: int) -> str:
    if power == inf:  # a product makes an output infinite or NaN, and shares say nothing
        return ""
    share = percent(ranked.error**2 / power)
    return f": {share} of the error power of all {count(products, 'product')}"


def _how(ranked: _Ranked) -> str:
    emulated = f"{number(ranked.nearest)} to nearest, {number(ranked.zero)} toward zero"
    if ranked.ran is None or ranked.ran.effect is None:
        return f"emulated: {emulated}"
    return f"measured in a kernel; emulated: {emulated}"
