"""Rung 1: are the inputs real, and does the model run on them?

With a second pipeline: how does it change the inputs? With the framework's outputs: would other
inputs explain them?
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf, isfinite, sqrt
from typing import Literal

import numpy as np
from msgspec import Struct

from halfwise.case import Column, Samples
from halfwise.emulation.budget import Budget, OutOfTime
from halfwise.emulation.runner import OTHER_KERNELS
from halfwise.errors import CaseError, RunFailed
from halfwise.formats import ALIKE_IN_FP32, ROUNDINGS, ROUNDINGS_OF_MODEL
from halfwise.metrics import Outputs
from halfwise.metrics.difference import RelativeError, compare, is_discrete
from halfwise.records import (
    Rung,
    Sign,
    Step,
    said,
)
from halfwise.reporting.remarks import clause, not_real
from halfwise.tools.diagnose.subject import Subject
from halfwise.tools.preprocessing.changes import (
    Hypothesis,
    code_of,
    hypotheses,
    told,
    transformation,
)
from halfwise.tools.preprocessing.comparing import compare_arrays
from halfwise.wording import capital, count, number, percent, stopped, verb

PIPELINES_CODE, CODE_FILE = "a_to_b.py", "framework_inputs.py"
MAKE_ALIKE = (
    "First make both pipelines do the same (channel order, scale, mean, resize, padding): no "
    "precision can repair a difference here."
)
_CHANGED = said(
    MAKE_ALIKE,
    f"{CODE_FILE} in the run folder turns A into B. Training decides which of the two is right.",
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
            found = compare_arrays(a, b)
        except CaseError as refused:
            signs.append(Sign(severity="error", text=f"{text} {refused.message}"))
            continue
        codes[name] = found.code
        what = f"{text} With A of --inputs and B of --inputs-b: {told(found.differences)}"
        signs.append(Sign(severity="error", text=what))
        after = _difference(a, b, found.code).value
        if found.code and not found.exact and isfinite(after):
            still = (
                f"With A changed like this, '{name}' still differs by {percent(after)} "
                f"(relative RMS; {percent(error.value)} before)."
            )
            signs.append(Sign(severity="warning", text=still))
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


_ADVICE = said(
    "Give inputs from real use, preprocessed as in production.",
    "--allow random continues without them.",
)


def harness(subject: Subject) -> Rung:
    """Return whether the inputs look like the model's real ones.

    Names, types and shapes are known to fit: the inputs have been read.
    """
    signs, advice, cause = list(_reading_signs(subject)), _ADVICE, ""
    if subject.others is not None:
        differing, advice = pipelines(subject, subject.others)
        signs += differing
    cause = cause or next((sign.text for sign in signs if sign.severity == "error"), "")
    trials = None if cause else changed_inputs(subject)
    if trials is not None and trials.best is not None and trials.matches:
        signs = [*change_signs(trials), *signs]
        cause, advice = change_cause(trials, trials.best), _CHANGED
    elif trials is not None and trials.planned:
        subject.tried = no_change(trials)
    return Rung(
        rung=1,
        name="harness",
        passed=not cause,
        how="measured",
        cause=cause or f"{count(len(subject.references), 'sample')} fit the model.",
        evidence=tuple(signs),
        advice=advice if cause else (),
    )


def _reading_signs(subject: Subject) -> Iterator[Sign]:
    """Yield how the inputs were read; made-up inputs are an error unless allowed."""
    allowed = subject.settings.allow_random
    severity: Literal["warning", "error"] = "warning" if allowed else "error"
    if not subject.case.real:
        yield Sign(severity=severity, text=stopped(capital(not_real(subject.case.made_up))))
    made_up = () if subject.case.real else subject.case.made_up
    for note in subject.case.notes:
        if note.made_up is not None and note.made_up in made_up:
            continue
        yield Sign(severity=note.severity, text=stopped(capital(clause(note))))


class Try(Struct, frozen=True):
    """A change of the inputs that was tried.

    Attributes:
        hypothesis: The change.
        error: The largest error with it, over the samples up to the first that does not match: RMS
            error of an output on a sample, relative to the RMS of that output over all samples.
        shown: How many samples were wrong and became right; 0 if one does not match.
    """

    hypothesis: Hypothesis
    error: float
    shown: int = 0


class Trials(Struct, frozen=True):
    """Changes of the inputs that were tried because the outputs differ from the framework's.

    Attributes:
        planned: Number of changes planned.
        tried: Those that were run: fewer if time ran out.
        before: The error without a change, as in `Try`.
        samples: Number of samples.
    """

    planned: int
    tried: Sequence[Try]
    before: float
    samples: int

    @property
    def matching(self) -> list[Try]:
        """The changes with which all outputs of all samples match."""
        return [each for each in self.tried if each.shown]

    @property
    def best(self) -> Try | None:
        """The simplest change with about the smallest error, of those that match if any does."""
        some = self.matching or self.tried
        least = min((each.error for each in some), default=inf)
        close = (each for each in some if each.error <= ALIKE_IN_FP32 * least + ROUNDINGS)
        return next(close, None) if least < inf else None

    @property
    def matches(self) -> bool:
        """Whether everything matches with `best`, on enough samples to rule out chance."""
        return self.best is not None and self.best.shown >= _FEWEST


def changed_inputs(subject: Subject) -> Trials | None:
    """Return the effect of input changes on outputs that differ from the framework's.

    Each is tried on the worst sample, then, while outputs match, on all others. The Python of one
    that matches is written into the run folder.

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
    tried = tuple(_tried(subject, target, before, planned))
    trials = Trials(len(planned), tried, max(before), len(before))
    if trials.best is not None and trials.matches:
        text = code_of(trials.best.hypothesis.code)
        (subject.folder / CODE_FILE).write_text(text, encoding="utf-8")
    return trials


class _Target(Struct, frozen=True):
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


def _tried(
    subject: Subject, target: _Target, before: Sequence[float], planned: Sequence[Hypothesis]
) -> Iterator[Try]:
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


def _try(subject: Subject, target: _Target, before: Sequence[float], hypothesis: Hypothesis) -> Try:
    """Try a change on the samples, worst first, up to the first whose outputs do not match."""
    worst, shown = 0.0, 0
    order = sorted(range(len(before)), key=lambda index: -before[index])
    for index in order:
        error = inf
        # The model may not run on changed shapes.
        with suppress(RunFailed):
            error = target.error(index, subject.session.run(hypothesis(subject.samples[index])))
        if error > OTHER_KERNELS:
            return Try(hypothesis, error)
        worst = max(worst, error)
        shown += before[index] > max(OTHER_KERNELS, _CLEARLY * error)
    return Try(hypothesis, worst, shown)


def change_cause(trials: Trials, best: Try) -> str:
    """Describe the framework's inputs, with the evidence; `best` is the change that matches."""
    return (
        "The framework had other inputs. With A from --inputs and B from the framework: "
        f"{told(best.hypothesis.differences)} With A changed like this, ONNX Runtime reproduces "
        f"the framework's outputs on {count(trials.samples, 'sample')}: the error is "
        f"{number(best.error)}, and {number(trials.before)} without the change."
    )


def change_signs(trials: Trials) -> list[Sign]:
    """Return what was tried until a change matched, and what weakens that."""
    tried, shown = len(trials.tried), 0 if trials.best is None else trials.best.shown
    text = (
        f"{count(tried, 'change')} {verb(tried, 'was', 'were')} tried; wrong outputs became right "
        f"on {shown} of {count(trials.samples, 'sample')}. Errors are relative RMS."
    )
    signs = [Sign(severity="info", text=text)]
    if also := len(trials.matching) - 1:
        text = (
            f"{count(also, 'other input change')} would work as well: these outputs do not tell "
            "them apart."
        )
        signs.append(Sign(severity="warning", text=text))
    return signs


def no_change(trials: Trials) -> str:
    """Say that no input change explains the outputs, and how close the best came."""
    kinds = dict.fromkeys(d.kind for one in trials.tried for d in one.hypothesis.differences)
    text = (
        f"{len(trials.tried)} of {count(trials.planned, 'input change')} ({', '.join(kinds)}) were "
        "tried; none shows that the framework had other inputs."
    )
    if (best := trials.best) is None:
        return text
    chance = ""
    if best.error <= OTHER_KERNELS:
        right = count(best.shown, "sample")
        chance = f" Only {right} became right, perhaps by chance: give at least {_FEWEST}."
    return (
        f"{text} The closest leaves an error of {number(best.error)} ({number(trials.before)} "
        f"without it, {number(OTHER_KERNELS)} allowed): {told(best.hypothesis.differences)}{chance}"
    )
