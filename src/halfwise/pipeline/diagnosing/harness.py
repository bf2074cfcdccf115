"""Rung 1: do the inputs fit the model, and are they real?"""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from halfwise.metrics.relative import RelativeError
from halfwise.pipeline.diagnosing.subject import Subject
from halfwise.records import Rung, Sign
from halfwise.render.wording import count, number

_WARNING = "warning: "
_SAME = 1e-6
"""Relative RMS difference of inputs below which two pipelines agree: FP32 arithmetic in another
order comes to less."""


def harness(subject: Subject) -> Rung:
    """Return whether the inputs are what the model gets in use, as far as they show it.

    That they have the names, types and shapes of the model is known here: they have been read.
    """
    signs = [*_told(subject), *_ranges(subject), *_compared(subject)]
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
        advice=_advice(subject) if errors else (),
    )


def _told(subject: Subject) -> Iterator[Sign]:
    """Yield how the inputs were read; what looks made up is an error unless it is allowed."""
    severity: Literal["warning", "error"] = "warning" if subject.allow_random else "error"
    if not subject.case.real:
        yield Sign(severity=severity, text="The inputs are random: they say nothing of real data.")
    for note in subject.case.notes:
        if not note.startswith(_WARNING):
            yield Sign(severity="info", text=f"{note[0].upper()}{note[1:]}.")
            continue
        text = note.removeprefix(_WARNING)
        looks = " looks " in text
        told = f"{text[0].upper()}{text[1:]}."
        yield Sign(severity=severity if looks else "warning", text=told)


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
                text=f"Input '{name}' holds {count(bad, 'element')} that are NaN or infinite.",
            )


def _compared(subject: Subject) -> Iterator[Sign]:
    """Yield what differs between the inputs of two pipelines, and what that does to the outputs."""
    if subject.others is None:
        return
    inputs: dict[str, RelativeError] = {}
    outputs: dict[str, RelativeError] = {}
    for i, (first, second) in enumerate(zip(subject.samples, subject.others, strict=True)):
        for name, array in first.items():
            inputs.setdefault(name, RelativeError()).add(array, second[name], i)
        given = subject.session.run(second)
        for name, array in subject.references[i].items():
            outputs.setdefault(name, RelativeError()).add(array, given[name], i)
    effects = ", ".join(f"{name} by {number(100 * e.value)} %" for name, e in outputs.items())
    for name, error in inputs.items():
        if error.value > _SAME:
            worst = subject.samples.ids[error.worst_sample]
            yield Sign(
                severity="error",
                text=f"The two pipelines give different inputs: '{name}' differs by "
                f"{number(100 * error.value)} % (relative RMS, most on {worst}), which changes "
                f"the FP32 outputs: {effects}.",
            )
        else:
            yield Sign(severity="info", text=f"The two pipelines agree on '{name}'.")


def _advice(subject: Subject) -> tuple[str, ...]:
    if subject.others is not None:
        return (
            "Find what the pipelines do differently (channel order, scale, mean, resize, padding) "
            "before anything else: no precision repairs it.",
        )
    return (
        "Give the inputs that the model gets in use, preprocessed as there.",
        "--allow-random goes on without.",
    )
