"""Rung 1: do the inputs fit the model, and are they real?

With a second pipeline: how does it change the inputs? With the framework's outputs: would other
inputs explain them?
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Literal

import numpy as np

from halfwise.case import Column, Samples
from halfwise.emulation.budget import Budget, OutOfTime
from halfwise.emulation.runner import OTHER_KERNELS
from halfwise.errors import CaseError, RunFailed
from halfwise.formats import ALIKE_IN_FP32, ROUNDINGS, ROUNDINGS_OF_MODEL
from halfwise.judging.reference import frozen_size
from halfwise.metrics import Outputs
from halfwise.metrics.difference import RelativeError, compare, is_discrete
from halfwise.records import (
    FrozenSize,
    InputComparison,
    InputTrials,
    Rung,
    Sign,
    Step,
    TriedInputs,
    said,
)
from halfwise.reporting.remarks import clause, frozen_advice, frozen_cause, not_real
from halfwise.tools.diagnose.subject import Subject
from halfwise.tools.preprocessing.changes import Hypothesis, code_of, hypotheses, transformation
from halfwise.tools.preprocessing.comparing import compare_arrays
from halfwise.wording import capital, count, number, percent, stopped, verb

PIPELINES_CODE, CODE_FILE = "a_to_b.py", "framework_inputs.py"
MAKE_ALIKE = (
    "First make both pipelines do the same (channel order, scale, mean, resize, padding): no "
    "precision can repair a difference here."
)
_CLEARLY = 10.0
"""Factor by which a sample's error must fall to count as evidence."""
_FEWEST = 3
"""Samples that must become right. One of 200 changes brings one number to within 1e-3 of its size
by chance in up to 4 of 10 cases, two in 1 of 1,000, three in 1 of 600,000; of the numbers of a
sample, all may follow one, such as the brightness."""


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
        error = _difference(a, b)
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
        signs += _named(comparison, text, error.value, _difference(a, b, comparison.code).value)
    advice = [MAKE_ALIKE]
    if any(codes.values()):
        (subject.folder / PIPELINES_CODE).write_text(code_of(codes), encoding="utf-8")
        what = "turns A into B, with A of --inputs and B of --inputs-b, as far as it is known."
        advice.append(f"{PIPELINES_CODE} in the run folder {what}")
    return signs, said(*advice)


def _difference(a: Column, b: Column, code: str = "") -> RelativeError:
    """Return how much B differs from A, changed by code if there is some."""
    change, error = transformation(code) if code else np.asarray, RelativeError()
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        error.add(change(x).astype(y.dtype), y, i)
    return error


def _named(comparison: InputComparison, text: str, before: float, after: float) -> Iterator[Sign]:
    """Yield what differs, and how much of relative RMS difference `before` its code leaves."""
    what = " ".join(d.sentence for d in comparison.differences)
    yield Sign(severity="error", text=f"{text} With A of --inputs and B of --inputs-b: {what}")
    for each in comparison.differences:
        sides = f"A {each.a}, B {each.b}" if each.a or each.b else ""
        detail = "; ".join(filter(None, (sides, each.evidence))) or "not taken apart"
        yield Sign(severity=each.severity, text=f"'{comparison.name}', {each.kind}: {detail}.")
    if comparison.code and not comparison.exact and isfinite(after):
        still = f"With A changed like this, '{comparison.name}' still differs by {percent(after)} "
        still += f"(relative RMS; {percent(before)} before)."
        yield Sign(severity="warning", text=still)


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


def changed_inputs(subject: Subject) -> InputTrials | None:
    """Return the effect of input changes on outputs that differ from the framework's.

    Each is tried on the worst sample, then, while outputs match, on all others. One is accepted if
    all outputs of all samples match, and enough samples did not before to rule out chance. Of
    several, the simplest with about the smallest error wins. Its Python is written into the run
    folder.

    Returns:
        None if nothing was tried: the outputs match, or none holds floats.
    """
    verdict = subject.against_framework
    if verdict is None or verdict.passed:
        return None
    target = _Target.of(subject)
    before = [target.error(i, outputs) for i, outputs in enumerate(subject.references)]
    if max(before) <= OTHER_KERNELS or not target.rms:
        return None
    planned = hypotheses(subject.samples)
    tried = list(_tried(subject, target, before, planned))
    matching = [each for each in tried if each.error <= OTHER_KERNELS and each.shown]
    least = min((each.error for each in matching or tried), default=inf)
    close = (each for each in matching or tried if each.error <= ALIKE_IN_FP32 * least + ROUNDINGS)
    best = next(close, None) if least < inf else None
    matches = bool(matching) and best is not None and best.shown >= _FEWEST
    if best is not None and matches:
        text = code_of(best.hypothesis.code)
        (subject.folder / CODE_FILE).write_text(text, encoding="utf-8")
    return InputTrials(
        planned=len(planned),
        tried=len(tried),
        kinds=tuple(dict.fromkeys(d.kind for t in tried for d in t.hypothesis.differences)),
        limit=OTHER_KERNELS,
        before=max(before),
        best=TriedInputs(differences=best.hypothesis.differences, error=best.error)
        if best
        else None,
        matches=matches,
        also=max(0, len(matching) - 1),
        shown_by=best.shown if best else 0,
    )


@dataclass(frozen=True)
class _Target:
    """The framework's outputs.

    Attributes:
        given: For each sample.
        rms: RMS of each output that holds floats, over all samples.
        unequal: Share of the elements of other outputs that may differ.
    """

    given: Sequence[Outputs]
    rms: Mapping[str, float]
    unequal: float

    @classmethod
    def of(cls, subject: Subject) -> "_Target":
        """Return the target of a diagnosis."""
        expected = subject.given
        floats = [name for name, array in expected[0].items() if not is_discrete(array.dtype)]
        energy = {
            n: sum(compare(e[n], e[n], cosine=True).reference_energy for e in expected)
            for n in floats
        }
        size = {n: max(1, sum(each[n].size for each in expected)) for n in floats}
        rms = {n: sqrt(energy[n] / size[n]) for n in floats}
        return cls(expected, rms, 1 - subject.same_function.agreement)

    def error(self, index: int, outputs: Outputs) -> float:
        """Return the largest error of an output of one sample; inf if something does not match.

        For floats, the RMS error over the output's RMS over all samples. Others match if as many
        elements are equal as the criterion requires.
        """
        worst = 0.0
        for name, wanted in self.given[index].items():
            seen = compare(wanted, outputs[name], cosine=False)
            if name in self.rms:
                rms, off = self.rms[name] * sqrt(wanted.size), sqrt(seen.noise)
                worst = max(worst, 0.0 if not off else off / rms if rms else inf)
            elif seen.misshapen or seen.mismatched > self.unequal * seen.elements:
                return inf
        return worst


@dataclass(frozen=True)
class _Try:
    """A tried change.

    Attributes:
        hypothesis: The change.
        error: The largest error with it, over the samples up to the first that does not match.
        shown: How many samples were wrong and became right; 0 if one does not match.
    """

    hypothesis: Hypothesis
    error: float
    shown: int = 0


def _tried(
    subject: Subject, target: _Target, before: Sequence[float], planned: Sequence[Hypothesis]
) -> Iterator[_Try]:
    """Yield the changes that fit the time, up to one that nothing can surpass."""
    settings, unit = subject.settings, len(subject.samples)
    budget = Budget(settings.time_budget, work=settings.budget * unit)
    with suppress(OutOfTime):
        for hypothesis in planned:
            with budget.bounding():
                budget.spend("trial", unit)
                trial = _try(subject, target, before, hypothesis)
            yield trial
            if trial.error <= ROUNDINGS_OF_MODEL and trial.shown >= _FEWEST:
                return


def _try(
    subject: Subject, target: _Target, before: Sequence[float], hypothesis: Hypothesis
) -> _Try:
    """Try a change on the samples, worst first, up to the first whose outputs do not match."""
    worst, shown = 0.0, 0
    order = sorted(range(len(before)), key=lambda index: -before[index])
    for index in order:
        error = inf
        # The model may not run on changed shapes.
        with suppress(RunFailed):
            error = target.error(index, subject.session.run(hypothesis(subject.samples[index])))
        if error > OTHER_KERNELS:
            return _Try(hypothesis, error)
        worst = max(worst, error)
        shown += before[index] > max(OTHER_KERNELS, _CLEARLY * error)
    return _Try(hypothesis, worst, shown)


def change_cause(trials: InputTrials, samples: int) -> str:
    """Describe the framework's inputs, with the evidence.

    Args:
        trials: Trials with a change that matches.
        samples: How many samples there are.
    """
    assert trials.best is not None
    what = " ".join(each.sentence for each in trials.best.differences)
    return (
        f"The framework had other inputs. With A from --inputs and B from the framework: {what} "
        f"With A changed like this, ONNX Runtime reproduces the framework's outputs on "
        f"{count(samples, 'sample')}: the error is {number(trials.best.error)}, and "
        f"{number(trials.before)} without the change."
    )


def change_signs(trials: InputTrials, samples: int) -> list[Sign]:
    """Return the evidence for a matching change, and what weakens it."""
    assert trials.best is not None
    signs = [
        Sign(
            severity=d.severity,
            text=f"{d.kind}: A {d.a}, B {d.b}{f'; {d.evidence}' * bool(d.evidence)}.",
        )
        for d in trials.best.differences
    ]
    signs.append(
        Sign(
            severity="info",
            text=f"{count(trials.tried, 'change')} "
            f"{verb(trials.tried, 'was', 'were')} tried; wrong outputs became right on "
            f"{trials.shown_by} of {count(samples, 'sample')}. Errors are relative RMS.",
        )
    )
    if trials.also:
        signs.append(
            Sign(
                severity="warning",
                text=f"{count(trials.also, 'other input change')} would work as well: these "
                "outputs do not tell them apart.",
            )
        )
    return signs


def no_change(trials: InputTrials) -> str:
    """Say that no input change explains the outputs, and how close the best came."""
    changes = (
        f"{trials.tried} of {count(trials.planned, 'input change')} ({', '.join(trials.kinds)})"
    )
    text = f"{changes} were tried; none shows that the framework had other inputs"
    if trials.best is None:
        return f"{text}."
    what = " ".join(each.sentence for each in trials.best.differences)
    chance = ""
    if trials.best.error <= trials.limit:
        right = count(trials.shown_by, "sample")
        chance = f" Only {right} became right, perhaps by chance: give at least {_FEWEST}."
    return (
        f"{text}. The closest leaves an error of {number(trials.best.error)} "
        f"({number(trials.before)} without it, {number(trials.limit)} allowed): {what}{chance}"
    )
