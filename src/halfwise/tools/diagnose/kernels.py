"""Rungs 4 and 7: does an engine compute what it should? If not, which region is wrong?"""

from halfwise.formats import BF16
from halfwise.graph.model import node_name
from halfwise.progress import interruption
from halfwise.records import BuildOutcome, Criterion, Rung, RungName, Sign, said
from halfwise.reporting.diagnosis import advice, cause, evidence
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tensorrt.log import explain
from halfwise.tools.diagnose.subject import Subject, signs_of, skipped
from halfwise.tools.transplants import OFF, Kind, Symptom, Transplants, localise, symptom_of


def fp32_engine(subject: Subject) -> Rung:
    """Return whether an FP32 engine without TF32 computes the model's function."""
    return _judged(4, "fp32", subject, "fp32", subject.same_function)


def low_engine(subject: Subject) -> Rung:
    """Return whether the engine with everything low is as right as its emulation."""
    low: Kind = "bf16" if subject.settings.fmt == BF16 else "fp16"
    return _judged(7, "kernels", subject, low, subject.case.criterion)


def _judged(number: int, name: RungName, subject: Subject, kind: Kind, by: Criterion) -> Rung:
    """Return the answer of a rung about an engine, judged `by` that unless the user has a metric.

    Raises:
        EngineFailed: the worker is lost.
    """
    engines = subject.engines
    if engines is None:
        why = "This needs TensorRT, but no target was given."
        return skipped(number, name, why, "Add --target tensorrt.")
    side = engines.engine(kind)
    rung = Rung(rung=number, name=name, passed=False, how="measured", cause="")
    build = side.build()
    if build.status == "lost":
        raise EngineFailed(build.message, status="lost")
    if not build.parsed:
        return _unparsed(rung, subject, build)
    symptom, message, index = symptom_of(build), build.message, 0
    signs: list[Sign] = []
    if build.engine is not None:
        try:
            verdict = engines.judge(build, subject.references, by)
        except EngineFailed as failed:
            if failed.status == "lost":
                raise
            symptom, message = Symptom("run", failed.status), failed.message
        else:
            signs = signs_of(verdict, side.label)
            if verdict.passed:
                right = {"passed": True, "cause": f"The {side.label} is right."}
                return rung.model_copy(update={**right, "evidence": tuple(signs)})
            symptom, message, ids = OFF, "", subject.samples.ids
            index = ids.index(verdict.worst_sample) if verdict.worst_sample in ids else 0
    # From here on Ctrl-C ends only the search; results so far are reported.
    interruption().ready = True
    sample, network = subject.samples[index], subject.case.network
    fault = localise(Transplants(engines, network, kind, symptom, build.seconds), sample)
    told = {
        "cause": cause(fault, side.label, message, emulated=name == "kernels"),
        "nodes": fault.region,
        "evidence": (*signs, *evidence(fault)),
        "advice": said(*advice(fault)),
        "engine": fault,
    }
    return rung.model_copy(update=told)


def _unparsed(rung: Rung, subject: Subject, build: BuildOutcome) -> Rung:
    """Return the parser's message, which names the nodes: no kernel is at fault."""
    errors = [finding for finding in explain(build.log) if finding.severity == "error"]
    named = {name for finding in errors for name in finding.nodes}
    nodes = map(node_name, subject.case.network.nodes())
    told = {
        "cause": build.message,
        "nodes": tuple(name for name in nodes if name in named),
        "evidence": (Sign(severity="error", text=build.message),),
        "advice": said(*dict.fromkeys(finding.hint for finding in errors if finding.hint)),
    }
    return rung.model_copy(update=told)
