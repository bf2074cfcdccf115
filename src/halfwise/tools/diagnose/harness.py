"""Rung 1: do the inputs fit the model, and are they real?"""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from halfwise.errors import RunFailed
from halfwise.judging.reference import frozen_size
from halfwise.records import FrozenSize, InputTrials, Rung, Sign, said
from halfwise.reporting.notes import clause, frozen_advice, frozen_cause, not_real
from halfwise.tools.diagnose.input_changes import CODE_FILE, changed_inputs
from halfwise.tools.diagnose.pipelines import MAKE_ALIKE, pipelines
from halfwise.tools.diagnose.subject import Subject
from halfwise.tools.preprocessing.report import change_cause, change_signs
from halfwise.wording import capital, count, number, stopped

_ADVICE = said(
    "Give inputs from real use, preprocessed as in production.",
    "--allow-random continues without them.",
)


def harness(subject: Subject) -> Rung:
    """Return whether the inputs look like the model's real ones.

    Names, types and shapes are known to fit: the inputs have been read.
    """
    signs, advice = [*_told(subject), *_ranges(subject)], _ADVICE
    frozen = _frozen(subject)
    if frozen is not None:
        return _insists(frozen, signs)
    if subject.others is not None:
        differing, changes = pipelines(subject, subject.others)
        signs, advice = [*signs, *differing], said(*changes)
    errors = [sign for sign in signs if sign.severity == "error"]
    if not errors:
        subject.tried = changed_inputs(subject)
        if subject.tried is not None and subject.tried.matches:
            return _changed(subject.tried, signs, len(subject.samples))
    return Rung(
        rung=1,
        name="harness",
        passed=not errors,
        how="measured",
        cause=errors[0].text
        if errors
        else f"{count(len(subject.samples), 'sample')} fit the model.",
        evidence=tuple(signs),
        advice=advice if errors else (),
    )


def _changed(trials: InputTrials, signs: list[Sign], samples: int) -> Rung:
    return Rung(
        rung=1,
        name="harness",
        passed=False,
        how="measured",
        cause=change_cause(trials, samples),
        evidence=(*change_signs(trials, samples), *signs),
        advice=said(
            MAKE_ALIKE,
            f"{CODE_FILE} in the run folder turns A into B. Training decides which of the two is "
            "right.",
        ),
        inputs=trials,
    )


def _frozen(subject: Subject) -> FrozenSize | None:
    """Return the size the model requires, if it does not run on the samples.

    Raises:
        RunFailed: it does not run, for another reason.
    """
    try:
        _ = subject.references
    except RunFailed:
        settings = subject.settings
        found = frozen_size(
            subject.case.network,
            subject.samples,
            runtime=settings.runtime,
        )
        if found is None:
            raise
        return found
    return None


def _insists(frozen: FrozenSize, signs: list[Sign]) -> Rung:
    failure = Sign(severity="error", text=frozen.failure, nodes=frozen.nodes)
    return Rung(
        rung=1,
        name="harness",
        passed=False,
        how="measured",
        cause=stopped(frozen_cause(frozen)),
        nodes=frozen.nodes,
        evidence=(failure, *signs),
        advice=said(*frozen_advice(frozen)),
        frozen=frozen,
    )


def _told(subject: Subject) -> Iterator[Sign]:
    """Yield how the inputs were read; made-up inputs are an error unless allowed."""
    severity: Literal["warning", "error"] = "warning" if subject.allow_random else "error"
    if not subject.case.real:
        yield Sign(severity=severity, text=stopped(capital(not_real(subject.case.made_up))))
    told = () if subject.case.real else subject.case.made_up
    for note in subject.case.notes:
        if note.made_up is not None and note.made_up in told:
            continue
        yield Sign(severity=note.severity, text=stopped(capital(clause(note))))


def _ranges(subject: Subject) -> Iterator[Sign]:
    for value in subject.case.network.graph.inputs:
        name = str(value.name)
        arrays = [np.asarray(sample[name]) for sample in subject.samples]
        shapes = {array.shape for array in arrays}
        shape = "×".join(map(str, arrays[0].shape)) or "one number"
        text = f"Input '{name}': {arrays[0].dtype.name}, {shape}"
        if len(shapes) > 1:
            text += f" and {count(len(shapes) - 1, 'other shape')}"
        if arrays[0].dtype.kind not in "fiu" or not all(a.size for a in arrays):
            yield Sign(severity="info", text=f"{text}.")
            continue
        low = min(float(np.min(a)) for a in arrays)
        high = max(float(np.max(a)) for a in arrays)
        yield Sign(severity="info", text=f"{text}, from {number(low)} to {number(high)}.")
        bad = sum(int(np.count_nonzero(~np.isfinite(a))) for a in arrays)
        if bad:
            yield Sign(
                severity="error",
                text=f"Input '{name}' has {count(bad, 'element')} that are NaN or infinite.",
            )
