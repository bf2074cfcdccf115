"""`ladder`: judge FP32, then TF32, the low format and INT8, up to the first that fails."""

import time
from pathlib import Path
from typing import Unpack

from halfwise.case import Case
from halfwise.declarations import Inputs, Options
from halfwise.fixing.command import fix_request
from halfwise.fixing.next_steps import diagnose_step
from halfwise.fixing.outcome import cost, unsearched_run
from halfwise.fixing.result import Result
from halfwise.metrics import untested_task
from halfwise.options.loading import load_case
from halfwise.options.options import Model, Request, bounded, understand
from halfwise.page.finish import finish
from halfwise.progress import Silent, Watcher
from halfwise.records import Failure, LadderRung, RightBy, Step, Verdict, replace
from halfwise.reporting.remarks import with_failures
from halfwise.reporting.verdict import not_judged
from halfwise.store import free_folder, new_folder
from halfwise.tools.compare.command import recorded_tensors
from halfwise.tools.diagnose.export import exported
from halfwise.tools.diagnose.subject import Subject
from halfwise.wording import argument

LAST = "int8"
"""Default last rung."""


@bounded
def ladder(
    model: Model,
    inputs: Inputs,
    *,
    out: str | Path | None = None,
    expected: str | Path | None = None,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Result:
    """Return the result of `fix` with a verdict on each type; nothing if FP32 itself is wrong.

    FP32 is judged by a metric's labels and by expected outputs; without either it counts as right,
    and its rung says that it was not judged.

    Args:
        model: FP32, FP16 or BF16 model: path or proto.
        inputs: Samples, as for `fix`.
        out: Run folder to create; must not exist. None writes nothing.
        expected: The framework's outputs on the inputs, as for `diagnose`.
        watcher: Receives progress.
        options: See `Options`; `to` is the last rung, INT8 by default.

    Raises:
        HalfwiseError: see `fix`; or `expected` cannot be used.
    """
    started = time.monotonic()
    watcher = watcher or Silent()
    request = understand(inputs, {"to": LAST, **options}).by_use
    request = replace(request, ladder=True, command="ladder")
    folder = free_folder(out)
    by: RightBy | None = None
    if expected is not None or request.data.labels is not None:
        watcher.stage("fp32")
        data = replace(request.data, heldout=None, heldout_labels=None)
        case = load_case(
            *(model, data, request.criterion),
            split=False,
            runtime=request.settings.runtime,
            watcher=watcher,
        )
        by, failures, advice = _right(case, request, expected, watcher)
        if failures:
            rung = LadderRung(rung="fp32", passed=False, by=by, failures=failures)
            words = diagnose_step(case, request, folder).command or ()
            words += () if expected is None else ("--expected", argument(expected))
            advice += (Step(kind="diagnose", command=words),)
            return _stopped(case, request, rung, advice, folder, started, watcher)
    return fix_request(model, replace(request, right_by=by), out=folder, watcher=watcher)


def _right(
    case: Case, request: Request, expected: str | Path | None, watcher: Watcher
) -> tuple[RightBy | None, tuple[Failure, ...], tuple[Step, ...]]:
    """Return what judged FP32, on all samples, why it is wrong, and what to do."""
    subject = Subject(case, request.settings, Path(), watcher)
    by: RightBy | None = None
    labels = case.calibration.labels
    if labels is not None and case.metric is not None:
        by = "labels"
        untested = untested_task(case.criterion, case.metric, subject.references, list(labels))
        wrong = tuple(
            Failure(kind="unjudged", text=not_judged(one, heldout=False))
            for one in untested
            if one.kind in ("guessing", "metric")
        )
        if wrong and not request.settings.allow_unjudged:
            return by, wrong, ()
    if expected is not None:
        subject.expected = recorded_tensors(case, Path(expected))
        rung = exported(subject)
        if rung.passed is not None:
            by = "expected"
        if rung.passed is False:
            return by, (Failure(kind="rung", text=rung.cause),), rung.advice
    return by, (), ()


def _stopped(
    case: Case,
    request: Request,
    rung: LadderRung,
    advice: tuple[Step, ...],
    folder: Path | None,
    started: float,
    watcher: Watcher,
) -> Result:
    """Return the run of a model that is wrong in FP32, and write it to `folder`, if any."""
    verdict = Verdict(
        passed=True,
        level="emulated",
        samples=case.calibration.ids,
        unseen=True,
        outputs={},
        worst_sample=None,
    )
    verdict = with_failures(verdict, rung.failures)
    spent = cost(1, time.monotonic() - started, {})
    run = unsearched_run("fix", case, request, verdict, spent, advice, rungs=(rung,))
    if folder is not None:
        with new_folder(folder) as partial:
            finish(partial, run, case, watcher)
    return Result(run, folder)
