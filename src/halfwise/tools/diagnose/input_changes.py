"""Rung 1: how a second pipeline changes the inputs, and how a framework may have.

With the framework's outputs: would other inputs explain them?
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Sample
from halfwise.emulation.budget import Budget, OutOfTime
from halfwise.emulation.runner import OTHER_KERNELS
from halfwise.errors import RunFailed
from halfwise.metrics import Outputs
from halfwise.metrics.difference import energies, is_discrete
from halfwise.records import InputTrials, Sign, TriedInputs
from halfwise.tools.diagnose.subject import ROUNDING, Subject
from halfwise.tools.preprocessing.changes import Hypothesis, code_of, hypotheses
from halfwise.wording import count, number, verb

CODE_FILE = "framework_inputs.py"
_CLEARLY = 10.0
"""Factor by which a sample's error must fall to count as evidence."""
_FEWEST = 3
"""Independent numbers that must become right. One of 200 changes brings one number to within 1e-3
of its size by chance in up to 4 of 10 cases, two in 1 of 1,000, three in 1 of 600,000."""
_DIRECTIONS = 8
_NUDGE = 0.05
_CURVED = 0.2
"""Singular value of eight directions of length 1 that curvature and float rounding may explain:
with nudges of a twentieth, outputs that follow one number have a second value of at most 0.06."""
_FLOAT = 1e-6
_EXACT = 1e-5
"""Errors that rounding explains, in one operation and in a whole model in other kernels."""
_LONGEST = 4096
_ALIKE = 3.0
"""Factor over the smallest error up to which the simpler of two changes wins."""


def changed_inputs(subject: Subject) -> InputTrials | None:
    """Return the effect of input changes on outputs that differ from the framework's.

    Each is tried on the worst sample, then, while outputs match, on all others. One is accepted if
    all outputs of all samples match, and enough did not match before to rule out chance. Of
    several, the simplest with about the smallest error wins. Its Python is written into the run
    folder.

    Returns:
        None if nothing was tried: the outputs match, perhaps in another order of the samples, or
        none holds floats.
    """
    verdict = subject.against_framework
    if verdict is None or (verdict.passed and subject.foreign is None) or subject.order:
        return None
    told = _Expected(subject)
    if told.worst <= OTHER_KERNELS or not told.floats:
        return None
    planned = hypotheses(subject.samples)
    tried = list(_tried(subject, told, planned))
    common: dict[str, Any] = {
        "planned": len(planned),
        "tried": len(tried),
        "kinds": tuple(dict.fromkeys(d.kind for t in tried for d in t.hypothesis.differences)),
        "limit": OTHER_KERNELS,
        "before": told.worst,
        "beside_spread": subject.foreign is not None,
    }
    matching = [each for each in tried if each.matches]
    if not matching:
        closest = min(tried, key=lambda each: each.error, default=None)
        best = None
        if closest is not None and closest.error < inf:
            best = _record(closest)
        return InputTrials(**common, best=best, matches=False)
    least = min(each.error for each in matching)
    found = next(each for each in matching if each.error <= _ALIKE * least + _FLOAT)
    if found.numbers >= _FEWEST:
        text = code_of(found.hypothesis.code)
        (subject.folder / CODE_FILE).write_text(text, encoding="utf-8")
    return InputTrials(
        **common,
        best=_record(found),
        matches=found.numbers >= _FEWEST,
        also=len(matching) - 1,
        shown_by=found.shown,
        numbers=found.numbers,
    )


@dataclass(frozen=True)
class _Try:
    """A tried change.

    Attributes:
        hypothesis: The change.
        error: The largest error with it, over the samples up to the first that does not match.
        shown: How many samples were wrong and became right; 0 if one does not match.
        numbers: How many independent numbers these hold.
    """

    hypothesis: Hypothesis
    error: float
    shown: int = 0
    numbers: int = 0

    @property
    def matches(self) -> bool:
        """Whether all outputs of all samples match, and some did not before."""
        return self.error <= OTHER_KERNELS and self.shown > 0


def _record(tried: _Try) -> TriedInputs:
    return TriedInputs(differences=tried.hypothesis.differences, error=tried.error)


class _Expected:
    """The framework's outputs, and the distance of others from them.

    Attributes:
        before: The error of each sample without a change.
        floats: Names of the outputs that hold floats.
    """

    def __init__(self, subject: Subject) -> None:
        self._given, self._unequal = subject.given, 1 - subject.same_function.agreement
        self.floats = [n for n, a in self._given[0].items() if not is_discrete(a.dtype)]
        self._rms = {name: _rms([given[name] for given in self._given]) for name in self.floats}
        if subject.foreign is not None:
            # What all outputs share says nothing about the inputs. FP32 rounding still passes.
            self._rms |= {
                v.name: v.size * max(v.spread, ROUNDING / OTHER_KERNELS) for v in subject.variations
            }
        self.references = subject.references
        self.before = [self.error(i, outputs) for i, outputs in enumerate(self.references)]

    @property
    def worst(self) -> float:
        """The largest error without a change."""
        return max(self.before)

    def error(self, index: int, outputs: Outputs) -> float:
        """Return the largest error of an output of one sample; inf if something does not match.

        For floats, the RMS error over the output's RMS over all samples, or over its spread between
        them if only that separates it from the framework's. Others match if as many elements are
        equal as the criterion requires.
        """
        worst = 0.0
        for name, wanted in self._given[index].items():
            signal, noise = energies(wanted, outputs[name])
            if name in self._rms:
                rms = self._rms[name] * sqrt(wanted.size)
                worst = max(worst, 0.0 if not noise else sqrt(noise) / rms if rms else inf)
            elif noise > self._unequal * signal:
                return inf
        return worst

    def row(self, outputs: Outputs) -> NDArray[np.float64]:
        """Return the float outputs as one row over their RMS, subsampling long ones."""
        parts = [np.ravel(outputs[name]) for name in self.floats if self._rms[name]]
        rms = [self._rms[name] for name in self.floats if self._rms[name]]
        return np.concatenate(
            [
                p[:: -(-p.size // _LONGEST)].astype(np.float64) / r
                for p, r in zip(parts, rms, strict=True)
            ]
        )


def _rms(arrays: list[NDArray[Any]]) -> float:
    pairs = [(energies(array, array)[0], array.size) for array in arrays]
    count = sum(size for _, size in pairs)
    return sqrt(sum(energy for energy, _ in pairs) / count) if count else 0.0


def _tried(subject: Subject, told: _Expected, planned: list[Hypothesis]) -> Iterator[_Try]:
    """Yield the changes that fit the time, up to one that nothing can surpass."""
    settings, unit = subject.settings, len(subject.samples)
    budget = Budget(settings.time_budget, work=settings.budget * unit)
    order = sorted(range(len(subject.samples)), key=lambda index: -told.before[index])
    for hypothesis in planned:
        try:
            with budget.bounding():
                budget.spend("trial", unit)
                found = _try(subject, told, order, hypothesis)
        except OutOfTime:
            return
        yield found
        if found.matches and found.error <= _EXACT and found.numbers >= _FEWEST:
            return


def _try(subject: Subject, told: _Expected, order: list[int], hypothesis: Hypothesis) -> _Try:
    """Try a change on the samples in an order, up to the first whose outputs do not match."""
    worst, shown = 0.0, 0
    for index in order:
        error = _error(subject, told, index, hypothesis(subject.samples[index]))
        if error > OTHER_KERNELS:
            return _Try(hypothesis, error)
        worst = max(worst, error)
        shown += told.before[index] > max(OTHER_KERNELS, _CLEARLY * error)
    numbers = shown * _independent(subject, told, hypothesis(subject.samples[order[0]]))
    return _Try(hypothesis, worst, shown, numbers)


def _independent(subject: Subject, told: _Expected, sample: Sample) -> int:
    """Return in how many directions outputs move when parts of the inputs change a little.

    This is the sample's count of independent numbers: a map of a thousand elements that all follow
    the brightness is one number.
    """
    draw = np.random.default_rng(0)
    base = told.row(subject.session.run(sample))
    moved = []
    for _ in range(_DIRECTIONS):
        nudged = {name: _nudged(array, draw) for name, array in sample.items()}
        with suppress(RunFailed):
            row = told.row(subject.session.run(nudged))
            size = float(np.linalg.norm(row - base)) if row.shape == base.shape else 0.0
            if np.isfinite(size) and size > _FLOAT * sqrt(base.size):
                moved.append((row - base) / size)
    if not moved:
        return 0
    values = np.linalg.svd(np.stack(moved), compute_uv=False)
    return int(np.count_nonzero(values > _CURVED))


def _nudged(array: NDArray[Any], draw: np.random.Generator) -> NDArray[Any]:
    """Return the array with a random box changed: floats by a twentieth, others exchanged."""
    places = [np.sort(draw.integers(0, max(1, n), 2)) for n in array.shape]
    box = tuple(slice(first, last + 1) for first, last in places)
    changed = array.copy()
    if array.dtype.kind == "f":
        changed[box] += (_NUDGE * (float(array.std()) or 1.0)) * draw.choice((-1, 1))
    elif array.size:
        changed[box] = np.roll(changed[box], 1)
    return changed


def _error(subject: Subject, told: _Expected, index: int, sample: Sample) -> float:
    """Return the error on a changed sample; inf if the model does not run on it."""
    try:
        return told.error(index, subject.session.run(sample))
    except RunFailed:
        return inf


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
    over = "over the outputs' variation or a hundredth of their size"
    errors = f"Errors are RMS, {over}." if trials.beside_spread else "Errors are relative RMS."
    signs.append(
        Sign(
            severity="info",
            text=f"{count(trials.tried, 'change')} "
            f"{verb(trials.tried, 'was', 'were')} tried; wrong outputs became right on "
            f"{trials.shown_by} of {count(samples, 'sample')}, at least "
            f"{count(trials.numbers, 'independent number')}. {errors}",
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
    left = trials.planned - trials.tried
    if not trials.tried:
        return (
            f"Time ran out before any of the {count(left, 'input change')} that the framework "
            "may have made could be tried."
        )
    text = f"{count(trials.tried, 'input change')} ({', '.join(trials.kinds)}) "
    text += f"{verb(trials.tried, 'was', 'were')} tried"
    text += f"; time ran out before {left} more" if left else ""
    text += "; with none of these does ONNX Runtime reproduce the framework's outputs"
    if trials.best is None:
        return f"{text}."
    what = " ".join(each.sentence for each in trials.best.differences)
    if trials.best.error <= trials.limit:
        return (
            f"{count(trials.tried, 'input change')} {verb(trials.tried, 'was', 'were')} tried. "
            "With one of them ONNX Runtime reproduces the framework's outputs, but perhaps by "
            f"chance: only {count(trials.numbers, 'independent number')} became right. Give "
            f"more samples to be sure. {what}"
        )
    return (
        f"{text}. The closest leaves an error of {number(trials.best.error)} on one sample "
        f"({number(trials.before)} without the change, {number(trials.limit)} allowed): {what}"
    )
