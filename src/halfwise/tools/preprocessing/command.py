"""Compare two preprocessing pipelines."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Column, Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, UsageError
from halfwise.graph.conversion import upcast
from halfwise.inputs import InputSpec, LoadedSamples, fit_to
from halfwise.metrics import OutputMeasure, totals
from halfwise.options.loading import input_specs, load_model
from halfwise.options.options import Model, bounded
from halfwise.progress import Silent, Watcher
from halfwise.records import (
    Criterion,
    Fact,
    InputComparison,
    Note,
    OutputError,
    PreprocessingReport,
)
from halfwise.reporting.steps import note_text
from halfwise.store import refuse_existing_file
from halfwise.tools.preprocessing import code_of, compare_arrays, transformation
from halfwise.tools.preprocessing.pipelines import RawSamples, load_made, load_raw

Source = str | Path | Callable[[Any], Any] | Mapping[str, NDArray[Any]] | Samples

_MOST_RUN = 16
"""Samples to run the model on."""


@bounded
def compare_inputs(
    a: Source,
    b: Source,
    *,
    samples: str | Path | None = None,
    model: Model | None = None,
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
            path} or as single paths. With them, resize kernels are fitted and named even if A and B
            are arrays.
        model: FP32 model to run on both, to show the effect on its outputs.
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
    outputs, mapped = None, None
    if model is not None:
        watcher.stage("model")
        outputs, mapped = _effect(model, made_a, made_b, compared, notes)
    if code is not None:
        _write_code(Path(code), compared)
    return PreprocessingReport(
        a=_named(a, "A"),
        b=_named(b, "B"),
        inputs=tuple(compared),
        notes=tuple(dict.fromkeys(map(note_text, notes))),
        outputs=outputs,
        outputs_mapped=mapped,
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


def _write_code(path: Path, compared: Sequence[InputComparison]) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(code_of({each.name: each.code for each in compared}))
    except OSError as error:
        raise UsageError(
            f"{path}, where the code should go, cannot be written: {error.strerror}.",
            "Give a path in a writable folder.",
        ) from error


def _named(source: Source, name: str) -> str:
    return str(source) if isinstance(source, str | Path) else getattr(source, "__name__", name)


def _effect(
    model: Model, a: Samples, b: Samples, compared: Sequence[InputComparison], notes: list[Note]
) -> tuple[dict[str, OutputError] | None, dict[str, OutputError] | None]:
    """Run the model on A, on B, and on A transformed by the code; add to the notes."""
    network, _ = upcast(load_model(model))
    specs = input_specs(network)
    session = Session(network.model)
    kept = [int(i) for i in np.linspace(0, len(a) - 1, min(len(a), _MOST_RUN))]
    made_a = _fitted([a[i] for i in kept], specs, "A", notes)
    made_b = _fitted([b[i] for i in kept], specs, "B", notes)
    ids = [b.ids[i] for i in kept]
    if made_b is None:
        return None, None
    on_b = [session.run(sample) for sample in made_b]
    outputs = None
    if made_a is not None:
        outputs = _errors([session.run(sample) for sample in made_a], on_b, ids)
    if not any(each.code for each in compared):
        return outputs, None
    mapped = [_mapped(a, i, compared) for i in kept]
    fitted = _fitted(mapped, specs, "A, transformed by the code", notes)
    if fitted is None:
        return outputs, None
    return outputs, _errors([session.run(sample) for sample in fitted], on_b, ids)


def _mapped(a: Samples, index: int, compared: Sequence[InputComparison]) -> Sample:
    found = {}
    for each in compared:
        array = a[each.order[index]][each.name]
        found[each.name_b] = transformation(each.code)(array) if each.code else array
    return found


def _fitted(
    samples: Sequence[Sample], specs: Sequence[InputSpec], who: str, notes: list[Note]
) -> list[Sample] | None:
    try:
        return [fit_to(sample, specs, who) for sample in samples]
    except CaseError as error:
        refused: dict[str, Fact] = {"whose": who, "error": error.message}
        notes.append(Note(kind="refused", facts=refused))
        return None


def _errors(
    references: Sequence[Mapping[str, NDArray[Any]]],
    candidates: Sequence[Mapping[str, NDArray[Any]]],
    ids: Sequence[str],
) -> dict[str, OutputError]:
    measures = {name: OutputMeasure(total) for name, total in totals(references).items()}
    for reference, candidate, identifier in zip(references, candidates, ids, strict=True):
        for name, measure in measures.items():
            measure.update(reference[name], candidate[name], identifier)
    return {name: measure.result(Criterion()) for name, measure in measures.items()}
