"""`diagnose`: find the first thing that is wrong, from the inputs up to the kernels."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from halfwise.case import Case, Samples
from halfwise.declarations import Inputs, Options
from halfwise.errors import CaseError
from halfwise.fixing.next_steps import fix_step
from halfwise.fixing.outcome import cost, unsearched_run, with_unjudged
from halfwise.fixing.result import Result
from halfwise.graph.conversion import upcast
from halfwise.inputs import split_sources
from halfwise.judging.reference import check
from halfwise.metrics import Outputs
from halfwise.options.loading import load_case, load_model, tell
from halfwise.options.options import Data, Model, Request, bounded, understand
from halfwise.page.finish import finish
from halfwise.progress import Silent, Watcher
from halfwise.records import Failure, Observations, Run, Rung, RungName, Sign, Verdict, said
from halfwise.reporting.remarks import with_failures
from halfwise.scratch import scratch
from halfwise.store import free_folder, new_folder
from halfwise.tools.compare.command import recorded_tensors
from halfwise.tools.compare.engine_maker import engine_maker
from halfwise.tools.diagnose.export import exported, healthy
from halfwise.tools.diagnose.harness import harness
from halfwise.tools.diagnose.kernels import fp32_engine, low_engine
from halfwise.tools.diagnose.precision import precision, tf32
from halfwise.tools.diagnose.subject import Subject
from halfwise.wording import count


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
        HalfwiseError: the model, an option or `expected` cannot be used. Inputs that do not fit are
            not an error: they fail the first rung.
    """
    started = time.monotonic()
    watcher = watcher or Silent()
    request = understand(inputs, options)
    folder = free_folder(out)
    watcher.stage("load")
    case, refused = _case(model, request, watcher)
    tell(watcher, case.notes)
    with scratch() if folder is None else new_folder(folder) as partial:
        if refused is None:
            beside = expected, _second(request.data, inputs_b, preprocess_b)
            rungs, outputs, seen = _climb(model, case, request, partial, beside, folder, watcher)
        else:
            rungs, outputs, seen = (_misfit(refused),), (), None
        verdict = _verdict(case, request, rungs, outputs)
        run = _run(case, request, rungs, verdict, time.monotonic() - started)
        if folder is not None:
            finish(partial, run, case, watcher, observations=seen)
    return Result(run, folder, observations=seen)


def _climb(
    model: Model,
    case: Case,
    request: Request,
    folder: Path,
    beside: tuple[str | Path | None, Data | None],
    out: Path | None,
    watcher: Watcher,
) -> tuple[tuple[Rung, ...], Sequence[Outputs], Observations | None]:
    """Return the rungs, FP32's outputs for every sample if they ran to the end, and observations.

    `beside` holds expected and the second pipeline of `diagnose`; `out` is where `folder` ends.
    """
    expected, other = beside
    settings = request.settings
    check(case.network, runtime=settings.runtime)
    tensors = others = None
    if expected is not None:
        tensors = recorded_tensors(case, Path(expected))
    if other is not None:
        others = _others(model, request, other, case.calibration)
    with engine_maker(case, request, watcher) as engines:
        subject = Subject(
            case=case,
            settings=settings,
            folder=folder,
            watcher=watcher,
            allow_random=request.data.allow_random,
            allow_unjudged=request.data.allow_unjudged,
            expected=tensors,
            others=others,
            engines=engines,
            fix=fix_step(case, request, out),
        )
        rungs = climb(subject, LADDER)
        return rungs, () if _failed(rungs) else subject.references, subject.seen


def _case(model: Model, request: Request, watcher: Watcher) -> tuple[Case, CaseError | None]:
    """Return the case; if the inputs do not fit, one without samples, and the reason."""
    network, stored = upcast(load_model(model, watcher))
    try:
        arguments, runtime = (model, request.data, request.criterion), request.settings.runtime
        return load_case(*arguments, split=False, runtime=runtime, watcher=watcher), None
    except CaseError as refused:
        if _is_missing(request.data.inputs):
            raise
        nothing = Samples((), lambda _: {})
        bare = Case(network, nothing, nothing, request.criterion, None, (), "", stored=stored)
        return bare, refused


def _is_missing(inputs: Inputs) -> bool:
    """Return whether inputs name a missing file: a typo, not something to diagnose.

    Functions are named `file.py:function`.
    """
    if not isinstance(inputs, str | Path):
        return False
    if sources := split_sources(str(inputs)):
        return not all(path.exists() for path in sources.values())
    path, file = Path(inputs), str(inputs).rpartition(":")[0]
    return not path.exists() and not (file and Path(file).exists())


def _misfit(refused: CaseError) -> Rung:
    return Rung(
        rung=1,
        name="harness",
        passed=False,
        how="measured",
        cause=f"The inputs cannot be used: {refused.message}",
        evidence=(Sign(severity="error", text=refused.message),),
        advice=said(refused.hint) if refused.hint else (),
    )


def _second(data: Data, inputs: Inputs | None, preprocess: str | None) -> Data | None:
    """Return the data of a second pipeline, None if there is none."""
    if inputs is None and preprocess is None:
        return None
    inputs = data.inputs if inputs is None else inputs
    return replace(data, inputs=inputs, preprocess=preprocess or data.preprocess, labels=None)


def _others(model: Model, request: Request, data: Data, samples: Samples) -> Samples:
    others = load_case(model, data, request.criterion, split=False).calibration
    if len(others) != len(samples):
        raise CaseError(
            f"--inputs-b has {count(len(others), 'sample')}; expected {len(samples)}, as --inputs.",
            "Give the same samples, in the same order, from both pipelines.",
        )
    return others


def _failed(rungs: Sequence[Rung]) -> Rung | None:
    return next((rung for rung in rungs if rung.passed is False), None)


def _verdict(
    case: Case, request: Request, rungs: Sequence[Rung], references: Sequence[Outputs]
) -> Verdict:
    """Return a verdict: passed if no rung fails and the samples test what the rungs checked."""
    wrong = _failed(rungs)
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
        return with_failures(verdict, (Failure(kind="rung", text=wrong.cause),))
    # Engines contain every body, and so does the emulation with everything low.
    return with_unjudged(verdict, case, request, None, case.calibration, references)


def _run(
    case: Case, request: Request, rungs: tuple[Rung, ...], verdict: Verdict, seconds: float
) -> Run:
    failed = _failed(rungs)
    advice = () if failed is None else failed.advice
    spent = cost(0, seconds, {})
    run = unsearched_run("diagnose", case, request, verdict, spent, next_step=advice)
    return run.model_copy(update={"diagnosis": rungs})


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
            unsure = {"passed": None}
            rungs = [one.model_copy(update=unsure) if one.passed is False else one for one in rungs]
        rungs.append(rung)
        if found:
            break
    return tuple(rungs)
