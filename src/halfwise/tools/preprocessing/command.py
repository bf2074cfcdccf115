"""Compare two preprocessing pipelines: raw samples, what each made of them, and the report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from halfwise.case import Column, Sample
from halfwise.errors import CaseError, UsageError
from halfwise.inputs import LoadedSamples
from halfwise.inputs.array_files import ARRAY_SUFFIXES, peek_arrays
from halfwise.inputs.fitting import InputSpec, as_arrays, demand_sources, split_sources
from halfwise.inputs.loading import IMAGES, data_files, load_samples, make_samples, paired_files
from halfwise.options.options import bounded
from halfwise.progress import Silent, Watcher
from halfwise.records import InputComparison, PreprocessingReport
from halfwise.reporting.parts import Lines, Report
from halfwise.reporting.remarks import note_text
from halfwise.store import new_file, refuse_existing_file
from halfwise.tools.preprocessing.changes import code_of, layout_of
from halfwise.tools.preprocessing.comparing import compare_arrays
from halfwise.user_code import load_function
from halfwise.wording import count, dimensions, number, quoted, sentence, shorten

Source = str | Path | Callable[[Any], Any] | Mapping[str, NDArray[Any]]

_RANK = 4
"""Most axes of a sample that is no larger than a batch of one image."""


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
        b: B, likewise, on the same samples in the same order.
        samples: Raw samples: an image or a `.npy` file, or a folder of either, passed to functions
            as paths; `name=path,name=path` for inputs with separate sources, passed as {input name:
            path} or as single paths.
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
    made = {name: load_made(source, raw) for name, source in (("A", a), ("B", b))}
    one, other = (loaded.samples for loaded in made.values())
    counts = [len(one), len(other), len(raw.named) if raw else len(one)]
    if len(set(counts)) > 1:
        raise CaseError(
            f"The numbers of samples differ: A {counts[0]}, B {counts[1]}"
            + (f", the raw samples {counts[2]}." if raw else "."),
            "Give both pipelines the same samples.",
        )
    watcher.stage("compare")
    inputs = [
        compare_arrays(
            Column(one, name, step=watcher.step),
            Column(other, name_b, step=watcher.step),
            name=name,
            name_b=name_b,
        )
        for name, name_b in _paired(one[0], other[0])
    ]
    if code is not None:
        with new_file(Path(code)) as file:
            file.write_text(code_of({each.name: each.code for each in inputs}), encoding="utf-8")
    notes = [n.model_copy(update={"of": who}) for who, each in made.items() for n in each.notes]
    return PreprocessingReport(
        a=_named(a, "A"),
        b=_named(b, "B"),
        inputs=tuple(inputs),
        notes=tuple(dict.fromkeys(map(note_text, notes))),
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


def _named(source: Source, name: str) -> str:
    return str(source) if isinstance(source, str | Path) else getattr(source, "__name__", name)


@dataclass(frozen=True)
class RawSamples:
    """Files of samples before any preprocessing.

    Attributes:
        named: An identifier of each sample, and the argument of functions: a path, or a path by
            input name.
    """

    named: Sequence[tuple[str, Path | Mapping[str, Path]]]


def load_raw(source: str | Path) -> RawSamples:
    """Find raw samples: an image, a `.npy` file, a folder of either, or `name=path,name=path`.

    Raises:
        CaseError: There is no such data.
    """
    if sources := split_sources(str(source)):
        demand_sources(sources)
        return RawSamples(paired_files(sources)[1])
    kind, files = data_files(Path(source))
    if files and kind in (IMAGES, ".npy"):
        return RawSamples([(file.name, file) for file in files])
    raise CaseError(
        f"Found no raw samples at {source}; expected images or .npy files.",
        "Give a folder with one file per sample; functions are called with its path.",
    )


def load_made(source: Source, raw: RawSamples | None) -> LoadedSamples:
    """Return the samples that a pipeline produced.

    Args:
        source: One of:

            * a `.npz` or `.npy` file, or a folder of them, or `name=path,name=path` for inputs with
              separate `.npy` files. The first axis counts samples in arrays of two axes, of three
              axes unless they look like an image, and of four or more;
            * `file.py:function`, or a function: called with each raw sample, it returns a
              dictionary {input name: array} or an array;
            * arrays in memory, read like a `.npz`.
        raw: Raw samples for functions.

    Raises:
        UsageError: A function without raw samples.
        CaseError: Nothing usable was found, or a value is NaN or infinite.
    """
    where = _named(source, "inputs")
    if ".py:" in Path(where).name:
        source = load_function(where)
    if callable(source):
        return _called(source, raw, where)
    return load_samples(source, _specs(_first(source), where))


def _called(source: Callable[[Any], Any], raw: RawSamples | None, where: str) -> LoadedSamples:
    if raw is None:
        raise UsageError(
            f"{where} is a function, but there are no raw samples to call it with.",
            "Add --samples with a folder of images or .npy files.",
        )
    result = source(raw.named[0][1])
    named = result if isinstance(result, Mapping) else {"input": result}
    specs = [replace(spec, shape=None) for spec in _specs(as_arrays(named, where), where)]
    loaded = make_samples(raw.named, specs, source, where)
    # A comparison needs each result several times.
    return LoadedSamples(loaded.samples.held(), ())


def _first(source: Any) -> Mapping[str, NDArray[Any]]:  # noqa: ANN401 - as of `load_made`
    """Return the arrays of the first file, without content for `.npz`."""
    if isinstance(source, Mapping):
        return as_arrays(source, "inputs")
    if sources := split_sources(str(source)):
        return {name: next(iter(_first(path).values())) for name, path in sources.items()}
    kind, files = data_files(Path(source))
    if kind not in ARRAY_SUFFIXES or not files:
        raise CaseError(
            f"{source}: found {kind if files else 'nothing'} to compare; expected "
            f"{' or '.join(ARRAY_SUFFIXES)} files, a folder of them, or file.py:function.",
            "Save the pipeline's results with np.savez(path, name=array), or give its function.",
        )
    return peek_arrays(files[0])


def _specs(arrays: Mapping[str, NDArray[Any]], where: str) -> list[InputSpec]:
    """Return what the arrays hold, of unknown sizes; see `load_made` for the axis of samples.

    Raises:
        CaseError: There are none, or one holds no numbers.
    """
    others = [name for name, x in arrays.items() if x.dtype.kind not in "biuf" or not x.size]
    if others or not arrays:
        held = f"no numbers as {quoted(others)}" if others else "no arrays"
        raise CaseError(
            f"{where} holds {held}; expected numbers for each input.", "Give the model's inputs."
        )
    specs = []
    for name, array in arrays.items():
        dynamic = (None,) * min(array.ndim, max(_RANK, array.ndim - 1))
        single = array.ndim == 1 or (array.ndim == 3 and layout_of(array))
        shape = (array.shape[0], *dynamic[1:]) if single else dynamic
        specs.append(InputSpec(name, array.dtype, shape))
    return specs


def compared(report: PreprocessingReport) -> Report:
    """Return the report: differences by input, residual, code."""
    parts = [Lines(_heading(each), tuple(_lines(each))) for each in report.inputs]
    parts += [
        Lines(
            f"Python that turns A's {shorten(each.name, 24)} into B's",
            tuple(each.code.rstrip().splitlines()),
            whole=True,
        )
        for each in report.inputs
        if each.code
    ]
    if report.notes:
        parts.append(Lines("Notes", tuple(map(sentence, report.notes))))
    kinds = [d.kind for each in report.inputs for d in each.differences]
    names = ", ".join(dict.fromkeys(kinds))
    title = f"{count(len(kinds), 'difference')}: {names}"
    if report.same:
        stored = f", stored differently: {names}" if names else ""
        title = f"Both pipelines give the same inputs{stored}"
    about = f"A: {sentence(report.a)} · B: {sentence(report.b)}"
    return Report(title, report.same, about, tuple(parts))


def _heading(each: InputComparison) -> str:
    names = dict.fromkeys(shorten(name, 24) for name in (each.name, each.name_b))
    shapes = (each.shape_a, each.dtype_a), (each.shape_b, each.dtype_b)
    arrays = dict.fromkeys(f"{dimensions(shape)} {dtype}" for shape, dtype in shapes)
    called, held = (", in B ".join(each) for each in (names, arrays))
    return f"Input {called}: {count(each.samples, 'sample')} of {held}"


def _lines(each: InputComparison) -> Iterator[str]:
    for difference in each.differences:
        yield f"{difference.severity}: {sentence(difference.sentence)}"
        if difference.evidence:
            yield f"  → {sentence(difference.evidence)}"
    when = "After the code below" if each.code else "As they are"
    end = ": this explains all." if each.exact and each.code else "."
    if isinf(each.residual_max):
        yield f"{when}, the shapes differ."
    else:
        level = f"one of 255 levels is {number(each.level)}"
        yield f"{when}, the values differ by at most {number(each.residual_max)}; {level}{end}"
