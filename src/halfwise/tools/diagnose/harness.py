"""Rung 1: do the inputs fit the model, and are they real?

With a second pipeline: how does it change the inputs?
"""

from collections import defaultdict
from collections.abc import Iterator
from math import isfinite
from typing import Literal

import numpy as np

from halfwise.case import Column, Samples
from halfwise.errors import CaseError, RunFailed
from halfwise.formats import ROUNDINGS
from halfwise.judging.reference import frozen_size
from halfwise.metrics.difference import RelativeError
from halfwise.records import (
    FrozenSize,
    InputComparison,
    Rung,
    Sign,
    Step,
    said,
)
from halfwise.reporting.steps import clause, frozen_advice, frozen_cause, not_real
from halfwise.tools.diagnose.subject import Subject
from halfwise.tools.preprocessing.changes import code_of
from halfwise.tools.preprocessing.comparing import compare_arrays
from halfwise.wording import capital, count, number, percent, stopped

PIPELINES_CODE = "a_to_b.py"
MAKE_ALIKE = (
    "First make both pipelines do the same (channel order, scale, mean, resize, padding): no "
    "precision can repair a difference here."
)


def pipelines(subject: Subject, others: Samples) -> tuple[list[Sign], tuple[Step, ...]]:
    """Return how the inputs of two pipelines differ, and what to do.

    If NumPy can turn A into B, the Python for it is written into the run folder.
    """
    outputs: dict[str, RelativeError] = defaultdict(RelativeError)
    for i, (second, right) in enumerate(zip(others, subject.references, strict=True)):
        for name, array in subject.session.run(second).items():
            outputs[name].add(right[name], array, i)
    effects = ", ".join(f"{name} by {percent(e.value)}" for name, e in outputs.items())
    signs: list[Sign] = []
    codes: dict[str, str] = {}
    for name in subject.samples[0]:
        a, b = Column(subject.samples, name), Column(others, name)
        error = RelativeError()
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            error.add(x.astype(y.dtype), y, i)
        if error.value <= ROUNDINGS:
            signs.append(Sign(severity="info", text=f"The two pipelines agree on '{name}'."))
            continue
        text = (
            f"The two pipelines give different inputs: '{name}' differs by "
            f"{percent(error.value)} (relative RMS, most on "
            f"{subject.samples.ids[error.worst_sample]}), which changes the FP32 outputs: "
            f"{effects}."
        )
        try:
            comparison = compare_arrays(a, b, name=name)
        except CaseError as refused:
            signs.append(Sign(severity="error", text=f"{text} {refused.message}"))
            continue
        codes[name] = comparison.code
        signs += _named(comparison, text)
    advice = [MAKE_ALIKE]
    if any(codes.values()):
        (subject.folder / PIPELINES_CODE).write_text(code_of(codes), encoding="utf-8")
        what = "turns A into B, with A of --inputs and B of --inputs-b, as far as it is known."
        advice.append(f"{PIPELINES_CODE} in the run folder {what}")
    hint = "`halfwise inputs compare A B --samples RAW` also tells resize kernels apart."
    return signs, said(*advice, hint)


def _named(comparison: InputComparison, text: str) -> Iterator[Sign]:
    """Yield what differs, and whether the code makes A like B."""
    what = " ".join(d.sentence for d in comparison.differences)
    yield Sign(severity="error", text=f"{text} With A of --inputs and B of --inputs-b: {what}")
    for each in comparison.differences:
        sides = f"A {each.a}, B {each.b}" if each.a or each.b else ""
        detail = "; ".join(filter(None, (sides, each.evidence))) or "not taken apart"
        yield Sign(severity=each.severity, text=f"'{comparison.name}', {each.kind}: {detail}.")
    if comparison.code and not comparison.exact and isfinite(comparison.residual_max):
        levels = number(comparison.residual_max / comparison.level)
        still = f"With A changed like this, '{comparison.name}' still differs by up to {levels} "
        yield Sign(severity="warning", text=f"{still}of 255 levels.")


_ADVICE = said(
    "Give inputs from real use, preprocessed as in production.",
    "--allow random continues without them.",
)


def harness(subject: Subject) -> Rung:
    """Return whether the inputs look like the model's real ones.

    Names, types and shapes are known to fit: the inputs have been read.
    """
    signs, advice = [*_reading_signs(subject), *_ranges(subject)], _ADVICE
    frozen = _frozen(subject)
    if frozen is not None:
        return _insists(frozen, signs)
    if subject.others is not None:
        differing, changes = pipelines(subject, subject.others)
        signs, advice = [*signs, *differing], changes
    errors = [sign for sign in signs if sign.severity == "error"]
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


def _frozen(subject: Subject) -> FrozenSize | None:
    """Return the size the model requires, if it does not run on the samples.

    Raises:
        RunFailed: it does not run, for another reason.
    """
    try:
        _ = subject.references
    except RunFailed:
        settings = subject.settings
        size = frozen_size(
            subject.case.network,
            subject.samples,
            runtime=settings.runtime,
        )
        if size is None:
            raise
        return size
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


def _reading_signs(subject: Subject) -> Iterator[Sign]:
    """Yield how the inputs were read; made-up inputs are an error unless allowed."""
    severity: Literal["warning", "error"] = "warning" if subject.allow_random else "error"
    if not subject.case.real:
        yield Sign(severity=severity, text=stopped(capital(not_real(subject.case.made_up))))
    made_up = () if subject.case.real else subject.case.made_up
    for note in subject.case.notes:
        if note.made_up is not None and note.made_up in made_up:
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
