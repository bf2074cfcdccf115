"""Report a comparison of two preprocessing pipelines; word the input changes tried on one."""

from collections.abc import Iterator, Mapping

from halfwise.records import (
    InputComparison,
    InputDifference,
    InputTrials,
    OutputError,
    PreprocessingReport,
    Sign,
)
from halfwise.reporting.parts import Column, Lines, Report, Table
from halfwise.wording import count, dimensions, fixed, number, sentence, shorten, verb

_WIDEST = 60


def compared(report: PreprocessingReport) -> Report:
    """Return the report: differences by input, residual, code, the model's outputs."""
    parts: list[Lines | Table] = []
    for each in report.inputs:
        parts.append(Lines(_heading(each), tuple(_lines(each))))
        if each.code:
            title = f"Python that turns A's {shorten(each.name, 24)} into B's"
            parts.append(Lines(title, tuple(each.code.rstrip().splitlines()), whole=True))
    if report.outputs is not None:
        parts.append(_effect(report.outputs, report.outputs_mapped))
    if report.notes:
        parts.append(Lines("Notes", tuple(sentence(note) for note in report.notes)))
    about = f"A: {sentence(report.a)} · B: {sentence(report.b)}"
    return Report(_title(report), report.same, about, tuple(parts))


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


def _title(report: PreprocessingReport) -> str:
    found = [d for each in report.inputs for d in each.differences]
    if not found:
        return "Both pipelines give the same inputs"
    kinds = ", ".join(dict.fromkeys(d.kind for d in found))
    if report.same:
        return f"Both pipelines give the same inputs, stored differently: {kinds}"
    return f"{count(len(found), 'difference')}: {kinds}"


def _heading(each: InputComparison) -> str:
    names = shorten(each.name, 24)
    if each.name_b != each.name:
        names += f" (in B {shorten(each.name_b, 24)})"
    shapes = f"{dimensions(each.shape_a)} {each.dtype_a}"
    other = f"{dimensions(each.shape_b)} {each.dtype_b}"
    if other != shapes:
        shapes += f" and {other}"
    return f"Input {names}: {count(each.samples, 'sample')} of {shapes}"


def _lines(each: InputComparison) -> Iterator[str]:
    for difference in each.differences:
        yield from _difference(difference)
    if each.pipeline_a is not None and each.pipeline_b is not None:
        yield f"A: {each.pipeline_a}"
        yield f"B: {each.pipeline_b}"
    if not each.differences:
        most = f"at most {number(each.residual_max)}" if each.residual_max else "nothing"
        yield f"No difference: {most} between the values."
        return
    left = "After the code below, "
    if each.residual_max:
        left += (
            f"at most {number(each.residual_max)} is left ({number(each.residual_rms)} root mean "
            f"square; one of 255 levels is {number(each.level)})"
        )
    else:
        left += "nothing is left"
    yield f"{left}: this explains all of it." if each.exact else f"{left}."


def _difference(difference: InputDifference) -> Iterator[str]:
    yield f"{difference.severity}: {sentence(difference.sentence)}"
    if difference.a or difference.b:
        yield f"  → A: {_cut(difference.a)}; B: {_cut(difference.b)}"
    if difference.evidence:
        yield f"  → {sentence(difference.evidence)}"


def _cut(text: str) -> str:
    return sentence(text if len(text) <= 2 * _WIDEST else f"{text[: 2 * _WIDEST]}…")


def _effect(outputs: Mapping[str, OutputError], mapped: Mapping[str, OutputError] | None) -> Table:
    columns = [
        Column("output"),
        Column("max error", "right"),
        Column("of largest", "right"),
        Column("SNR dB", "right"),
        Column("cosine", "right"),
    ]
    if mapped is not None:
        columns.append(Column("max error, A transformed by the code", "right"))
    rows = []
    for name, error in outputs.items():
        row = [
            shorten(name, 28),
            number(error.max_abs),
            number(error.rel_max),
            number(error.snr_db),
            fixed(error.cosine, 4),
        ]
        if mapped is not None:
            row.append(number(mapped[name].max_abs))
        rows.append(tuple(row))
    return Table("Effect on the model's outputs, B against A", tuple(columns), tuple(rows))
