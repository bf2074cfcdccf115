"""Compare two preprocessing pipelines."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Column, Sample, Samples
from halfwise.errors import CaseError, UsageError
from halfwise.inputs import LoadedSamples
from halfwise.options.options import bounded
from halfwise.progress import Silent, Watcher
from halfwise.records import InputComparison, Note, PreprocessingReport
from halfwise.reporting.parts import Lines, Report
from halfwise.reporting.steps import note_text
from halfwise.store import refuse_existing_file
from halfwise.tools.preprocessing.changes import code_of
from halfwise.tools.preprocessing.comparing import compare_arrays
from halfwise.tools.preprocessing.pipelines import RawSamples, load_made, load_raw
from halfwise.wording import count, dimensions, number, sentence, shorten

Source = str | Path | Callable[[Any], Any] | Mapping[str, NDArray[Any]] | Samples


@bounded
def compare_inputs(
    a: Source,
    b: Source,
    *,
    samples: str | Path | None = None,
    code: str | Path | None = None,
    watcher: Watcher | None = None,
) -> PreprocessingReport:
    """Return how two preprocessing pipelines differ, and how to turn one into the other.

    Args:
        a: A's results: a `.npz` or `.npy` file, a folder of these, or arrays by input name; or A
            itself: `file.py:function` or a function, called with one raw sample.
        b: B, likewise, on the same samples.
        samples: Raw samples: an image or a folder of images, passed to functions as paths, or
            arrays; `name=path,name=path` for inputs with separate sources, passed as {input name:
            path} or as single paths. With them, and Pillow, resize kernels are named, even
            if A and B are arrays.
        code: File to write the Python from A to B to; must not exist.
        watcher: Receives progress.

    Raises:
        UsageError: the code file exists, or a function has no raw samples.
        CaseError: something cannot be read, the numbers of samples differ, or A and B share no
            input. A difference is not an error: see `PreprocessingReport.same`.
    """
    if code is not None:
        refuse_existing_file(Path(code))
    watcher = watcher or Silent()
    watcher.stage("load")
    raw = None if samples is None else load_raw(samples)
    loaded_a, loaded_b = load_made(a, raw), load_made(b, raw)
    notes = _notes(raw, loaded_a, loaded_b)
    made_a, made_b = loaded_a.samples, loaded_b.samples
    _demand_as_many(made_a, made_b, raw)
    watcher.stage("compare")
    raws, column = partial(_pixels, raw), partial(Column, step=watcher.step)
    compared = [
        compare_arrays(
            column(made_a, name), column(made_b, other), name=name, name_b=other, raws=raws(name)
        )
        for name, other in _paired(made_a[0], made_b[0])
    ]
    if code is not None:
        _write_code(Path(code), code_of({each.name: each.code for each in compared}))
    return PreprocessingReport(
        a=_named(a, "A"),
        b=_named(b, "B"),
        inputs=tuple(compared),
        notes=tuple(dict.fromkeys(map(note_text, notes))),
    )


def _pixels(raw: RawSamples | None, name: str) -> Column | None:
    """Return the raw images of an input, None if unknown or not decodable here."""
    pixels = None if raw is None else raw.sources.get(name, raw).pixels
    if raw is None or pixels is None or pixels(0) is None:
        return None

    def image(index: int) -> Sample:
        found = pixels(index)
        return {"": np.zeros(0) if found is None else found}

    return Column(Samples(raw.ids, image), "")


def _notes(raw: RawSamples | None, a: LoadedSamples, b: LoadedSamples) -> list[Note]:
    notes = [] if raw is None else list(raw.notes)
    sides = (("A", a), ("B", b))
    return notes + [n.model_copy(update={"of": who}) for who, each in sides for n in each.notes]


def _demand_as_many(a: Samples, b: Samples, raw: RawSamples | None) -> None:
    counts = {"A": len(a), "B": len(b)} | ({} if raw is None else {"the raw samples": len(raw.ids)})
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise CaseError(
            f"The numbers of samples differ ({listed}); expected the same samples in both.",
            "Give both pipelines the same samples.",
        )


def _paired(a: Sample, b: Sample) -> list[tuple[str, str]]:
    """Return pairs of input names: equal ones, or the only one of each."""
    if len(a) == len(b) == 1:
        return [(next(iter(a)), next(iter(b)))]
    if set(a) != set(b):
        raise CaseError(
            f"A has the inputs {', '.join(a)}, B has {', '.join(b)}; expected the same names.",
            "Rename the arrays of one of them.",
        )
    return [(name, name) for name in a]


def _write_code(path: Path, code: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(code)
    except OSError as error:
        raise UsageError(
            f"{path}, where the code should go, cannot be written: {error.strerror}.",
            "Give a path in a writable folder.",
        ) from error


def _named(source: Source, name: str) -> str:
    return str(source) if isinstance(source, str | Path) else getattr(source, "__name__", name)


def compared(report: PreprocessingReport) -> Report:
    """Return the report: differences by input, residual, code, the model's outputs."""
    parts: list[Lines] = []
    for each in report.inputs:
        parts.append(Lines(_heading(each), tuple(_lines(each))))
        if each.code:
            title = f"Python that turns A's {shorten(each.name, 24)} into B's"
            parts.append(Lines(title, tuple(each.code.rstrip().splitlines()), whole=True))
    if report.notes:
        parts.append(Lines("Notes", tuple(sentence(note) for note in report.notes)))
    about = f"A: {sentence(report.a)} · B: {sentence(report.b)}"
    return Report(_title(report), report.same, about, tuple(parts))


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
    return f"Input {names}: {count(each.samples, 'sample')} of {shapes}" + (
        f" and {other}" if other != shapes else ""
    )


def _lines(each: InputComparison) -> Iterator[str]:
    for difference in each.differences:
        yield f"{difference.severity}: {sentence(difference.sentence)}"
        if difference.a or difference.b:
            yield f"  → A: {sentence(difference.a)}; B: {sentence(difference.b)}"
        if difference.evidence:
            yield f"  → {sentence(difference.evidence)}"
    most = f"at most {number(each.residual_max)}" if each.residual_max else "nothing"
    if not each.differences:
        yield f"No difference: {most} between the values."
        return
    left = f" (one of 255 levels is {number(each.level)})" if each.residual_max else ""
    explained = ": this explains all of it" if each.exact else ""
    yield f"After the code below, {most} is left{left}{explained}."
