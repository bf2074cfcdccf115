"""`diagnose`: find the first thing that is wrong, from the inputs up to the kernels."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Unpack

from halfwise.case import Samples
from halfwise.declarations import Inputs, Options
from halfwise.emulation.typed import emulate_tf32
from halfwise.errors import CaseError, HalfwiseError
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import fix
from halfwise.fixing.next_steps import fix_step
from halfwise.fixing.outcome import cost, unsearched_run, with_unjudged
from halfwise.fixing.result import Result
from halfwise.formats import BF16
from halfwise.graph.model import node_name
from halfwise.inputs import split_heldout
from halfwise.judging.judge import judge
from halfwise.judging.reference import check
from halfwise.options.loading import load_asked, load_case
from halfwise.options.options import Model, Request, bounded, understand
from halfwise.page.finish import finish
from halfwise.progress import Silent, Watcher, interruption, offered
from halfwise.records import (
    BuildOutcome,
    Criterion,
    Failure,
    KeptNode,
    Run,
    Rung,
    RungName,
    Sign,
    Verdict,
    replace,
    said,
)
from halfwise.reporting.diagnosis import advice, cause, evidence
from halfwise.reporting.remarks import explained, reasons, with_failures, worded
from halfwise.scratch import scratch
from halfwise.store import free_folder, new_folder
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tensorrt.log import explain
from halfwise.tools.compare.command import recorded_tensors
from halfwise.tools.compare.engine_maker import EngineMaker, engine_maker, label_of
from halfwise.tools.compare.walk import all_low, with_bf16
from halfwise.tools.diagnose.export import exported, healthy
from halfwise.tools.diagnose.harness import harness
from halfwise.tools.diagnose.subject import Subject, signs_of, skipped
from halfwise.tools.transplants import OFF, Kind, Symptom, Transplants, localise, symptom_of
from halfwise.wording import MOST_ROWS, alike, count, stopped


@bounded
def diagnose(
    model: Model,
    inputs: Inputs,
    *,
    out: str | Path | None = None,
    expected: str | Path | None = None,
    inputs_b: Inputs | None = None,
    preprocess_b: str | None = None,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Result:
    """Return what is wrong with a model, its inputs or its engines: the first rung that fails.

    Args:
        model: The model: path or proto.
        inputs: Samples, as for `fix`.
        out: Run folder to create; must not exist. None writes nothing.
        expected: The framework's outputs on the inputs: an `.npz` file.
        inputs_b: The same samples from a second pipeline; None for `inputs`.
        preprocess_b: The second pipeline's function, as `preprocess` in `Options`; None for that.
        watcher: Receives progress.
        options: See `Options`. Without `target`, what needs engines is emulated or skipped.

    Raises:
        HalfwiseError: the model, the inputs, an option or `expected` cannot be used.
    """
    started = time.monotonic()
    watcher = watcher or Silent()
    request = understand(inputs, options)
    folder = free_folder(out)
    case, settings = load_asked(model, request, watcher, split=False), request.settings
    check(case.network, runtime=settings.runtime)
    tensors = None if expected is None else recorded_tensors(case, Path(expected))
    others = _others(model, request, inputs_b, preprocess_b, case.calibration)
    with scratch() if folder is None else new_folder(folder) as partial:
        with engine_maker(case, settings, request.target, watcher) as engines:
            subject = Subject(
                case=case,
                settings=settings,
                folder=partial,
                watcher=watcher,
                expected=tensors,
                others=others,
                engines=engines,
                fix=fix_step(case, request, folder),
            )
            rungs = climb(subject, LADDER)
        run = _run(subject, request, rungs, time.monotonic() - started)
        if folder is not None:
            finish(partial, run, case, watcher, observations=subject.seen)
    return Result(run, folder, observations=subject.seen)


def _others(
    model: Model, request: Request, inputs: Inputs | None, preprocess: str | None, samples: Samples
) -> Samples | None:
    """Return the samples of a second pipeline, None if there is none."""
    if inputs is None and preprocess is None:
        return None
    data = request.data
    inputs, preprocess = data.inputs if inputs is None else inputs, preprocess or data.preprocess
    data = replace(data, inputs=inputs, preprocess=preprocess, labels=None)
    others = load_case(model, data, request.criterion, split=False).calibration
    if len(others) != len(samples):
        raise CaseError(
            f"--inputs-b has {count(len(others), 'sample')}; expected {len(samples)}, as --inputs.",
            "Give the same samples, in the same order, from both pipelines.",
        )
    return others


def _run(subject: Subject, request: Request, rungs: tuple[Rung, ...], seconds: float) -> Run:
    """Return the run: passed if no rung fails and the samples test what the rungs checked."""
    case, wrong = subject.case, next((rung for rung in rungs if rung.passed is False), None)
    engines = any(rung.rung >= 4 and rung.how == "measured" for rung in rungs)
    verdict = Verdict(
        passed=True,
        level="engine" if engines else "emulated",
        samples=case.calibration.ids,
        unseen=True,
        outputs={},
        worst_sample=None,
    )
    if wrong is not None:
        verdict = with_failures(verdict, (Failure(kind="rung", text=wrong.cause),))
    else:
        # Engines contain every body, and so does the emulation with everything low.
        outputs = subject.references
        verdict = with_unjudged(verdict, case, request, None, case.calibration, outputs)
    advice = () if wrong is None else wrong.advice
    spent = cost(0, seconds, {})
    return unsearched_run("diagnose", case, request, verdict, spent, advice, diagnosis=rungs)


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
    engine = engines.built("tf32")
    verdict = engines.judge(engine, subject.references, subject.case.criterion)
    signs = signs_of(verdict, label_of("tf32"))
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
        settings = replace(subject.settings, no_repair=True)
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
    label = label_of(kind)
    rung = Rung(rung=number, name=name, passed=False, how="measured", cause="")
    build = engines.build(kind)
    if not build.parsed:
        return _unparsed(rung, subject, build)
    symptom, message, index = symptom_of(build), build.message, 0
    signs: list[Sign] = []
    if build.engine is not None:
        try:
            verdict = engines.judge(build.engine, subject.references, by)
        except EngineFailed as failed:
            if failed.status == "lost":
                raise
            symptom, message = Symptom("run", failed.status), failed.message
        else:
            signs = signs_of(verdict, label)
            if verdict.passed:
                right = f"The {label} is right."
                return replace(rung, passed=True, cause=right, evidence=tuple(signs))
            symptom, message, ids = OFF, "", subject.samples.ids
            index = ids.index(verdict.worst_sample) if verdict.worst_sample in ids else 0
    # From here on Ctrl-C ends only the search; results so far are reported.
    interruption().ready = True
    sample, network = subject.samples[index], subject.case.network
    fault = localise(Transplants(engines, network, kind, symptom), sample)
    return replace(
        rung,
        cause=cause(fault, label, message, emulated=name == "kernels"),
        nodes=fault.region,
        evidence=(*signs, *evidence(fault)),
        advice=said(*advice(fault)),
        engine=fault,
    )


def _unparsed(rung: Rung, subject: Subject, build: BuildOutcome) -> Rung:
    """Return the parser's message, which names the nodes: no kernel is at fault."""
    errors = [finding for finding in explain(build.log) if finding.severity == "error"]
    named = {name for finding in errors for name in finding.nodes}
    nodes = map(node_name, subject.case.network.nodes())
    return replace(
        rung,
        cause=build.message,
        nodes=tuple(name for name in nodes if name in named),
        evidence=(Sign(severity="error", text=build.message),),
        advice=said(*dict.fromkeys(finding.hint for finding in errors if finding.hint)),
    )


LADDER: tuple[tuple[RungName, Callable[[Subject], Rung]], ...] = (
    ("harness", harness),
    ("export", exported),
    ("model", healthy),
    ("fp32", fp32_engine),
    ("tf32", tf32),
    ("precision", precision),
    ("kernels", low_engine),
)
"""Cheap and frequent causes first; each rung relies on the ones below."""


def climb(
    subject: Subject,
    ladder: Sequence[tuple[RungName, Callable[[Subject], Rung]]] = LADDER,
) -> tuple[Rung, ...]:
    """Return the rungs up to and including the first that fails.

    Without an engine, a failure in TF32 is only predicted, so the next rungs are climbed too: where
    one of them fails, TF32 is only suspected.
    """
    rungs: list[Rung] = []
    for name, look in ladder:
        subject.watcher.stage(name)
        rung = look(subject)
        found = rung.passed is False and (name, rung.how) != ("tf32", "emulated")
        if found:
            rungs = [replace(r, passed=None) if r.passed is False else r for r in rungs]
        rungs.append(rung)
        if found:
            break
    return tuple(rungs)
