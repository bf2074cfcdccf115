"""Rungs 4 and 7: does an engine compute what it should, and if not, what is at fault?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from halfwise.emulation.runner import ModelRunner
from halfwise.errors import BuildFailed, HalfwiseError
from halfwise.fixing.engines.proposals import MARKED
from halfwise.graph.dataflow import read_by
from halfwise.graph.model import node_name
from halfwise.judging.judge import judge_outputs
from halfwise.records import (
    BuildOutcome,
    Comparison,
    Criterion,
    Rung,
    RungName,
    Sign,
    TensorName,
    Verdict,
)
from halfwise.tensorrt.worker.failures import EngineFailed
from halfwise.tools.compare import Walk
from halfwise.tools.compare.divergence import find_divergence
from halfwise.tools.compare.engine_maker import EngineMaker
from halfwise.tools.compare.engine_side import EngineSide
from halfwise.tools.compare.sides import emulated, reference
from halfwise.tools.diagnose.reproducer import save_reproducer
from halfwise.tools.diagnose.subject import Subject, signs_of, skipped
from halfwise.wording import listed

NEEDS_TENSORRT = "This needs TensorRT, and no target was given."


def fp32_engine(subject: Subject) -> Rung:
    """Return whether an FP32 engine without TF32 computes the model's function.

    Without a target, ONNX Runtime's optimised form stands in for it: other kernels, other sums.
    """
    if subject.engines is None:
        return _stand_in(subject)
    side = subject.engines.side("fp32")
    right = reference(subject.case.network, subject.samples, subject.settings)
    return _judged(_Judged(4, "fp32", subject, subject.engines, side, right, subject.same_function))


def low_engine(subject: Subject) -> Rung:
    """Return whether the engine with everything low is right, as its emulation is."""
    if subject.engines is None:
        return skipped(7, "kernels", NEEDS_TENSORRT, "Add --target tensorrt.")
    low: Literal["fp16", "bf16"] = "bf16" if subject.settings.fmt.name == "bf16" else "fp16"
    side = subject.engines.side(low)
    right = emulated(subject.case.network, subject.samples, subject.settings, low)
    criterion = subject.case.criterion
    return _judged(_Judged(7, "kernels", subject, subject.engines, side, right, criterion))


def _stand_in(subject: Subject) -> Rung:
    network, samples = subject.case.network, subject.samples
    other = reference(network, samples, subject.settings, optimise=True)
    names = [TensorName(str(v.name)) for v in network.graph.outputs]
    # An output that no node computes is an input or a constant.
    both = zip(subject.references, other.get(names), strict=True)
    verdict = judge_outputs(
        [{**right, **outputs} for right, outputs in both],
        samples,
        subject.references,
        subject.same_function,
        subject.case.metric,
    ).verdict
    found = None
    if not verdict.passed:
        right = reference(network, samples, subject.settings)
        found = find_divergence(subject.walk(right, other))
    return Rung(
        rung=4,
        name="fp32",
        passed=verdict.passed,
        how="emulated",
        cause="Without TensorRT: ONNX Runtime's optimised kernels compute the same function."
        if found is None
        else "The outputs depend on the order in which FP32 sums are rounded: ONNX Runtime with "
        "and without its optimisations disagrees.",
        nodes=() if found is None else found.first,
        evidence=tuple(signs_of(verdict, other.label)),
        advice=()
        if found is None
        else ("No engine can be expected to agree better; look at what amplifies rounding.",),
    )


@dataclass(frozen=True)
class _Judged:
    """An engine that is held against its model, by a rung.

    Attributes:
        rung: Number of the rung.
        name: Its name.
        subject: What is diagnosed.
        engines: Makes engines.
        side: The engine.
        right: What it should compute.
        criterion: What is acceptable, where the user has no metric.
    """

    rung: int
    name: RungName
    subject: Subject
    engines: EngineMaker
    side: EngineSide
    right: ModelRunner
    criterion: Criterion

    def passes(self, build: BuildOutcome) -> bool | None:
        """Return whether a build is right; None where there is no engine."""
        if build.engine is None:
            return None
        return self.verdict(build).passed

    def verdict(self, build: BuildOutcome) -> Verdict:
        """Return the verdict on a build."""
        return self.engines.judge(build, self.subject.references, self.criterion)

    def attempts(self, around: Sequence[TensorName]) -> Iterator[Sign]:
        """Yield what other builds of the same model do."""
        kind, settings = self.side.arithmetic, self.engines.engine_settings
        level = 0 if settings.optimization_level != 0 else 3
        others: list[tuple[str, EngineSide, Sequence[TensorName]]] = [
            ("another build, all kernels timed anew", self.engines.side(kind, fresh=True), ()),
            (
                f"optimization level {level}",
                self.engines.side(kind, settings=replace(settings, optimization_level=level)),
                (),
            ),
            (
                "the tactic sources of convolutions alone",
                self.engines.side(
                    kind,
                    settings=replace(
                        settings,
                        tactic_sources=("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"),
                    ),
                ),
                (),
            ),
        ]
        if around:
            marked = f"{listed(around)} marked, which breaks fusions there"
            others.insert(0, (marked, self.side, around))
        for what, side, names in others:
            yield self._attempt(what, side, names)

    def _attempt(self, what: str, side: EngineSide, names: Sequence[TensorName]) -> Sign:
        try:
            right = self.passes(side.build(names))
        except HalfwiseError as error:
            return Sign(severity="info", text=f"With {what}: cannot be tried: {error.message}")
        said = {True: "right", False: "still wrong", None: "not built"}[right]
        return Sign(
            severity="warning" if right else "info", text=f"With {what}: the engine is {said}."
        )


def _judged(engine: _Judged) -> Rung:
    rung, name, side = engine.rung, engine.name, engine.side
    try:
        build, _ = side.plain()
        verdict = engine.verdict(build)
    except (BuildFailed, EngineFailed) as failed:
        if isinstance(failed, EngineFailed) and failed.status == "lost":
            raise
        return Rung(
            rung=rung,
            name=name,
            passed=False,
            how="measured",
            cause=failed.message,
            evidence=(Sign(severity="error", text=failed.message),),
            advice=(failed.hint,) if failed.hint else (),
        )
    signs = signs_of(verdict, side.label)
    if verdict.passed:
        return Rung(
            rung=rung,
            name=name,
            passed=True,
            how="measured",
            cause=f"The {side.label} is right.",
            evidence=tuple(signs),
        )
    return _faulty(engine, signs, verdict)


def _faulty(fault: _Judged, signs: Sequence[Sign], verdict: Verdict) -> Rung:
    subject, side = fault.subject, fault.side
    walk = subject.walk(fault.right, fault.engines.shown(side))
    found = find_divergence(walk, fault.engines.rounds)
    tried = list(fault.attempts(_around(walk, found)))
    cured = [sign for sign in tried if sign.severity == "warning"]
    saved = save_reproducer(fault.engines, walk, found, subject.folder, verdict.worst_sample)
    where = f", at {listed(found.first)}" if found.first else ""
    than = "the FP32 model" if fault.name == "fp32" else "the emulation of the same plan"
    notes = [Sign(severity="info", text=note) for note in (*found.notes, *saved)]
    return Rung(
        rung=fault.rung,
        name=fault.name,
        passed=False,
        how="measured",
        cause=f"The {side.label} is wrong although {than} is right, so this is not precision: a "
        f"kernel or compiler fault{where}.",
        nodes=found.first,
        evidence=(*signs, *tried, *notes),
        advice=(
            f"{cured[0].text} Build it that way until the fault is repaired."
            if cured
            else "Try another version of TensorRT: no other build of this one is right.",
            *(["Report it to NVIDIA with the folder `reproducer`."] if saved else []),
        ),
    )


def _around(walk: Walk, found: Comparison) -> list[TensorName]:
    """Return the tensors of floats that the nodes at fault read and make, constants left out."""
    names: dict[TensorName, None] = {}
    for name, item in walk.found.items():
        if node_name(item.node) in found.first:
            names |= dict.fromkeys((*read_by(item.node), name))
    known = (n for n in names if n in walk.found and walk.found[n].is_float)
    return [n for n in known if walk.found[n].lack != "constant"][:MARKED]
