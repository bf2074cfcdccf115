"""Rungs 4 and 7: does an engine compute what it should? If not, what is at fault?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from halfwise.emulation.runner import ModelRunner
from halfwise.graph.model import node_name
from halfwise.graph.quantised import pairs_of
from halfwise.interruption import interruption
from halfwise.records import (
    BuildOutcome,
    Criterion,
    Decided,
    Rung,
    RungName,
    Sign,
    Verdict,
    said,
)
from halfwise.reporting.diagnosis import advice, cause, evidence
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tensorrt.log import explain
from halfwise.tools.compare.divergence import find_divergence
from halfwise.tools.compare.engine_maker import EngineMaker, EngineSide
from halfwise.tools.compare.walk import emulated, reference
from halfwise.tools.diagnose.decided import UNDONE, decided_rung, in_emulation, in_engine
from halfwise.tools.diagnose.region import OFF, Symptom, Transplants, localise, symptom_of
from halfwise.tools.diagnose.subject import Subject, signs_of, skipped
from halfwise.wording import capital

NEEDS_TENSORRT = "This needs TensorRT, but no target was given."


def fp32_engine(subject: Subject) -> Rung:
    """Return whether an FP32 engine without TF32 computes the model's function.

    Without a target, ONNX Runtime's optimised form replaces it: other kernels, other sums.
    """
    if subject.engines is None:
        return _stand_in(subject)
    side = subject.engines.side("fp32")
    right = reference(subject.case.network, subject.samples, subject.settings)
    return _judged(_Judged(4, "fp32", subject, subject.engines, side, right, subject.same_function))


def low_engine(subject: Subject) -> Rung:
    """Return whether the engine with everything low is as right as its emulation."""
    if subject.engines is None:
        return skipped(7, "kernels", NEEDS_TENSORRT, "Add --target tensorrt.")
    low: Literal["fp16", "bf16"] = "bf16" if subject.settings.fmt.name == "bf16" else "fp16"
    side = subject.engines.side(low)
    right = emulated(subject.case.network, subject.samples, subject.settings, low)
    criterion = subject.case.criterion
    return _judged(_Judged(7, "kernels", subject, subject.engines, side, right, criterion))


def _stand_in(subject: Subject) -> Rung:
    network, samples = subject.case.network, subject.samples
    criterion = subject.same_function
    verdict = subject.judge(network.model, criterion, optimise=True)
    other = reference(network, samples, subject.settings, optimise=True)
    rung = Rung(
        rung=4,
        name="fp32",
        passed=verdict.passed,
        how="emulated",
        cause="Without TensorRT: ONNX Runtime's optimised kernels compute the same function.",
        evidence=tuple(signs_of(verdict, other.label)),
    )
    if verdict.passed:
        return rung
    right = reference(network, samples, subject.settings)
    rounding = (
        "how Q/DQ pairs round, and on the integer kernels that absorb them"
        if pairs_of(network)
        else "the order in which FP32 sums are rounded"
    )
    changed = {
        "cause": f"The outputs depend on {rounding}: ONNX Runtime disagrees with itself with and "
        "without optimisations.",
        "nodes": find_divergence(subject.walk(right, other)).first,
        "advice": said("Expect no engine to agree better; look for what amplifies rounding."),
    }
    rung = rung.model_copy(update=changed)
    found = in_emulation(subject, verdict, network.model, criterion=criterion, optimise=True)
    what = f"{capital(rounding)} changes"
    return decided_rung(rung, found, what, subject, *rung.advice, low=False)


def _judged(engine: "_Judged") -> Rung:
    side = engine.side
    build = side.build(())
    if build.status == "lost":
        raise EngineFailed(build.message, status="lost")
    if not build.parsed:
        return _unparsed(engine, build)
    if build.engine is None:
        return _faulty(engine, build, symptom_of(build), build.message)
    try:
        verdict = engine.engines.judge(build, engine.subject.references, engine.criterion)
    except EngineFailed as failed:
        if failed.status == "lost":
            raise
        return _faulty(engine, build, Symptom("run", failed.status), failed.message)
    signs = signs_of(verdict, side.label)
    found = None if verdict.passed else _decided(engine, verdict)
    if found is None and not verdict.passed:
        return _faulty(engine, build, OFF, "", signs, verdict)
    rung = Rung(
        rung=engine.rung,
        name=engine.name,
        passed=verdict.passed,
        how="measured",
        cause=f"The {side.label} is right.",
        evidence=tuple(signs),
    )
    what, low = f"The {side.label} changes", engine.name == "kernels"
    return decided_rung(rung, found, what, engine.subject, low=low)


def _decided(engine: "_Judged", verdict: Verdict) -> Decided | None:
    """Return the decisions that explain an engine's error, if it has right values to decide on.

    Otherwise what computes these is at fault.
    """
    how = (engine.subject, verdict, engine.engines, engine.side)
    found = in_engine(*how, criterion=engine.criterion)
    if found is None or found.left > UNDONE or found.read is None:
        return None
    return found if found.read <= engine.side.tolerance else None


@dataclass(frozen=True)
class _Judged:
    """An engine judged against its model by a rung.

    Attributes:
        rung: Number of the rung.
        name: Its name.
        subject: What is diagnosed.
        engines: Engine maker.
        side: The engine.
        right: The right outputs.
        criterion: Criterion for acceptable outputs, unless the user has a metric.
    """

    rung: int
    name: RungName
    subject: Subject
    engines: EngineMaker
    side: EngineSide
    right: ModelRunner
    criterion: Criterion


def _unparsed(engine: _Judged, build: BuildOutcome) -> Rung:
    """Return the parser's message, which names the nodes: no kernel is at fault."""
    errors = [finding for finding in explain(build.log) if finding.severity == "error"]
    named = {name for finding in errors for name in finding.nodes}
    network = engine.subject.case.network
    return Rung(
        rung=engine.rung,
        name=engine.name,
        passed=False,
        how="measured",
        cause=build.message,
        nodes=tuple(name for node in network.nodes() if (name := node_name(node)) in named),
        evidence=(Sign(severity="error", text=build.message),),
        advice=said(*dict.fromkeys(finding.hint for finding in errors if finding.hint)),
    )


def _faulty(
    engine: _Judged,
    build: BuildOutcome,
    symptom: Symptom,
    message: str,
    signs: Sequence[Sign] = (),
    verdict: Verdict | None = None,
) -> Rung:
    """Return where a faulty engine is wrong.

    From here on Ctrl-C ends only the search; results so far are reported.
    """
    interruption().ready = True
    subject, side = engine.subject, engine.side
    ids = subject.samples.ids
    worst = None if verdict is None else verdict.worst_sample
    index = ids.index(worst) if worst in ids else 0
    found = localise(
        Transplants(engine.engines, side.arithmetic, engine.right, index, symptom, build.seconds)
    )
    return Rung(
        rung=engine.rung,
        name=engine.name,
        passed=False,
        how="measured",
        cause=cause(found, side.label, message, emulated=engine.name == "kernels"),
        nodes=tuple(name for region in found.regions for name in region),
        evidence=(*signs, *evidence(found)),
        advice=said(*advice(found)),
        engine=found,
    )
