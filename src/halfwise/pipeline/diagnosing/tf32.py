"""Rung 5: does TF32 matter, and at which products?"""

import numpy as np

from halfwise.backends.emulation.tf32 import SWITCH_INPUT, emulate_tf32, tf32_nodes
from halfwise.backends.ort import Session
from halfwise.errors import HalfwiseError
from halfwise.metrics import Outputs
from halfwise.metrics.relative import relative_rms
from halfwise.pipeline.comparing import EngineMaker
from halfwise.pipeline.diagnosing.subject import Subject, signs_of
from halfwise.records import NodeName, Rung, Sign, Verdict
from halfwise.render.wording import count, listed, number
from halfwise.stages.judge import judge_outputs

RANKED = 8
"""Nodes that are named; the rest is counted."""


def tf32(subject: Subject) -> Rung:
    """Return whether products in TF32 keep the outputs within the tolerance.

    With a target, in the engine; else in emulation. The nodes are ranked in emulation: each
    product alone in TF32, on the worst sample.
    """
    emulation = _Emulation(subject)
    verdict, signs = emulation.verdict, signs_of(emulation.verdict, "emulation, TF32 products")
    if subject.engines is not None:
        try:
            verdict, told = _in_engine(subject, subject.engines)
        except HalfwiseError as error:
            told = [Sign(severity="warning", text=f"The engine with TF32: {error.message}")]
        signs = [*told, *signs]
    ranked = emulation.ranking(verdict.worst_sample)
    nodes = [name for name, error in ranked if error > 0]
    signs += _ranks(ranked)
    off = "TF32 alone puts the outputs out of tolerance"
    return Rung(
        rung=5,
        name="tf32",
        passed=verdict.passed,
        how="emulated" if subject.engines is None else "measured",
        cause="TF32 does not matter: the outputs stay within the tolerance."
        if verdict.passed
        else f"{off}: {verdict.reasons[0]}. Most of it is from {listed(nodes[:RANKED])}.",
        nodes=() if verdict.passed else tuple(nodes[:RANKED]),
        evidence=tuple(signs),
        advice=()
        if verdict.passed
        else (
            "Build without TF32: trtexec --noTF32, or clear BuilderFlag.TF32; "
            "NVIDIA_TF32_OVERRIDE=0 forbids it to the libraries of a whole process.",
        ),
    )


class _Emulation:
    """The emulation of TF32, with a switch for each product."""

    def __init__(self, subject: Subject) -> None:
        self._subject, network = subject, subject.case.network
        self._nodes = tf32_nodes(network)
        self._session = Session(
            emulate_tf32(network, switched=True),
            device=subject.settings.device,
            libraries=subject.settings.libraries,
        )
        everything = np.ones(len(self._nodes), bool)
        self.verdict = judge_outputs(
            [self._run(i, everything) for i in range(len(subject.samples))],
            subject.samples,
            subject.references,
            subject.case.criterion,
            subject.case.metric,
        ).verdict

    def ranking(self, worst: str | None) -> list[tuple[NodeName, float]]:
        """Return each product with the largest error of an output that it causes alone."""
        ids = self._subject.samples.ids
        index = ids.index(worst) if worst in ids else 0
        right, found = self._subject.references[index], []
        for i, name in enumerate(self._nodes):
            self._subject.watcher.step(i + 1, len(self._nodes))
            one = np.arange(len(self._nodes)) == i
            outputs = self._run(index, one)
            found.append((name, max(relative_rms(right[n], outputs[n]) for n in right)))
        return sorted(found, key=lambda pair: pair[1], reverse=True)

    def _run(self, index: int, which: np.ndarray) -> Outputs:
        sample = dict(self._subject.samples[index])
        if self._nodes:
            sample[SWITCH_INPUT] = which
        return self._session.run(sample)


def _in_engine(subject: Subject, engines: EngineMaker) -> tuple[Verdict, list[Sign]]:
    """Return the verdict on the engine with TF32, and what the worker's environment does to it."""
    side = engines.side("tf32")
    build, _ = side.plain()
    criterion = None if subject.case.metric is not None else subject.case.criterion
    verdict = engines.judge(build, subject.references, criterion)
    signs = signs_of(verdict, side.label)
    exact, _ = engines.side("fp32").plain()
    signs += signs_of(
        engines.judge(exact, subject.references, subject.same_function), "engine (FP32, TF32 off)"
    )
    override = engines.tf32_override
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
    return verdict, signs


def _ranks(ranked: list[tuple[NodeName, float]]) -> list[Sign]:
    power = sum(error**2 for _, error in ranked)
    signs = [
        Sign(
            severity="info",
            text=f"In TF32 alone, it changes the outputs by {number(error)} (relative RMS, "
            f"emulated): {number(100 * error**2 / power)} % of the error power of all "
            f"{count(len(ranked), 'product')}.",
            nodes=(name,),
        )
        for name, error in ranked[:RANKED]
        if error > 0 and power < float("inf")
    ]
    return signs or [Sign(severity="info", text="The model has no products that TF32 changes.")]
