"""Rung 1: do the inputs fit the model, and are they real?

With a second pipeline: how does it change the inputs, and what do its changes leave unexplained?
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import numpy as np

from halfwise.case import Column, Sample, Samples
from halfwise.errors import CaseError, RunFailed
from halfwise.judging.reference import frozen_size
from halfwise.metrics.difference import RelativeError
from halfwise.records import FrozenSize, InputComparison, InputTrials, Rung, Sign, said
from halfwise.reporting.steps import clause, frozen_advice, frozen_cause, not_real
from halfwise.tools.diagnose.input_changes import (
    CODE_FILE,
    change_cause,
    change_signs,
    changed_inputs,
)
from halfwise.tools.diagnose.subject import Subject
from halfwise.tools.preprocessing.changes import code_of, transformation
from halfwise.tools.preprocessing.comparing import LOSSY, compare_arrays
from halfwise.wording import capital, count, number, percent, stopped

PIPELINES_CODE = "a_to_b.py"
_SAME = 1e-6
"""Relative RMS difference of inputs below which two pipelines agree: FP32 arithmetic in another
order differs by less."""
_NOTHING = 0.9
"""Share of a difference that must be left for its causes to explain nothing of it."""
MAKE_ALIKE = (
    "First make both pipelines do the same (channel order, scale, mean, resize, padding): no "
    "precision can repair a difference here."
)
_NAMES = "with A of --inputs and B of --inputs-b"


def pipelines(subject: Subject, others: Samples) -> tuple[list[Sign], tuple[str, ...]]:
    """Return how the inputs of two pipelines differ, and what to do.

    If NumPy can turn A into B, the Python for it is written into the run folder.
    """
    inputs, effects = _errors(subject, others)
    signs: list[Sign] = []
    named: dict[str, InputComparison] = {}
    for name, error in inputs.items():
        if error.value <= _SAME:
            signs.append(Sign(severity="info", text=f"The two pipelines agree on '{name}'."))
            continue
        worst = subject.samples.ids[error.worst_sample]
        text = (
            f"The two pipelines give different inputs: '{name}' differs by "
            f"{percent(error.value)} (relative RMS, most on {worst}), which changes the "
            f"FP32 outputs: {effects}."
        )
        try:
            found = compare_arrays(Column(subject.samples, name), Column(others, name), name=name)
        except CaseError as refused:
            signs.append(Sign(severity="error", text=f"{text} {refused.message}"))
            continue
        named[text] = found
    compared = list(named.values())
    left = _left(subject, others, compared, {n: e.value for n, e in inputs.items()})
    for text, found in named.items():
        signs += _difference_told(found, text, left.get(found.name))
    if any(each.code for each in compared):
        (subject.folder / PIPELINES_CODE).write_text(
            code_of({each.name: each.code for each in compared}), encoding="utf-8"
        )
    return signs, tuple(_advice(compared))


@dataclass(frozen=True)
class _Left:
    """What the Python leaves of an input's difference.

    Attributes:
        text: The rest, in a sentence.
        guessed: Whether the differences named explain none of it.
    """

    text: str
    guessed: bool


def _difference_told(found: InputComparison, text: str, left: _Left | None) -> Iterator[Sign]:
    guessed = left is not None and left.guessed
    what = " ".join(d.sentence for d in found.differences)
    what = f"{_NAMES[0].upper()}{_NAMES[1:]}: {what}"
    if guessed:
        what = "What differs is unknown: the differences that seem to fit explain none of it."
    yield Sign(severity="error", text=f"{text} {what}")
    for each in found.differences:
        more = f"; {each.evidence}" if each.evidence else ""
        told = f"'{found.name}', {each.kind}: A {each.a}, B {each.b}{more}."
        yield Sign(severity="info" if guessed else each.severity, text=told)
    if left is not None:
        yield Sign(severity="warning", text=left.text)


def _left(
    subject: Subject,
    others: Samples,
    named: Sequence[InputComparison],
    before: Mapping[str, float],
) -> dict[str, _Left]:
    """Return what the Python leaves of each input's relative RMS difference, unless it is exact."""
    code = {each.name: transformation(each.code) for each in named if each.code}
    if all(each.exact for each in named if each.code):
        return {}

    def changed(index: int) -> Sample:
        sample = subject.samples[index]
        return {n: code[n](a).astype(a.dtype) if n in code else a for n, a in sample.items()}

    try:
        inputs, effects = _errors(subject, others, Samples(others.ids, changed))
    except RunFailed:
        return {}
    found: dict[str, _Left] = {}
    for each in named:
        after, kinds = inputs[each.name].value, {d.kind for d in each.differences}
        if not each.code or each.exact or not isfinite(after):
            continue
        guessed = after > _NOTHING * before[each.name] and kinds.isdisjoint(
            ("kernel", "resampling")
        )
        why = (
            "something else differs as well"
            if kinds.isdisjoint(LOSSY)
            else "no code makes one resampling from another, so whether something else differs as "
            "well is unknown"
        )
        found[each.name] = _Left(
            f"With A changed like this, '{each.name}' still differs by {percent(after)} (relative "
            f"RMS; {percent(before[each.name])} before), and the FP32 outputs: {effects}"
            f"{'' if guessed else f'; {why}'}.",
            guessed,
        )
    return found


def _errors(
    subject: Subject, others: Samples, ours: Samples | None = None
) -> tuple[dict[str, RelativeError], str]:
    """Return by how much each input differs from `ours` (A), and the outputs in words."""
    inputs: dict[str, RelativeError] = {}
    outputs: dict[str, RelativeError] = {}
    for i, second in enumerate(others):
        first = (ours or subject.samples)[i]
        for name, array in first.items():
            inputs.setdefault(name, RelativeError()).add(array, second[name], i)
        given = subject.session.run(second)
        right = subject.references[i] if ours is None else subject.session.run(first)
        for name, array in right.items():
            outputs.setdefault(name, RelativeError()).add(array, given[name], i)
    told = (f"{name} by {percent(e.value)}" for name, e in outputs.items())
    return inputs, ", ".join(told)


def _advice(named: Sequence[InputComparison]) -> Iterator[str]:
    yield MAKE_ALIKE
    coded = [each for each in named if each.code]
    if coded:
        left = max(each.residual_max for each in coded)
        yield (
            f"{PIPELINES_CODE} in the run folder turns A into B, {_NAMES}; after that "
            f"{f'no value differs by more than {number(left)}' if left else 'both are equal'}."
        )
    yield "`halfwise inputs compare A B --samples RAW` also tells resize kernels apart."


_ADVICE = said(
    "Give inputs from real use, preprocessed as in production.",
    "--allow random continues without them.",
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
