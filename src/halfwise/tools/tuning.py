"""Raw files for `export --as tuning`: samples of one shape, and their references."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.declarations import Inputs
from halfwise.errors import CaseError
from halfwise.graph.model import Network
from halfwise.inputs import load_inputs
from halfwise.judging.reference import check
from halfwise.metrics import Outputs
from halfwise.metrics.difference import is_discrete
from halfwise.options.first_axis import load_settled
from halfwise.options.loading import input_specs
from halfwise.records import Recipe, Run, TensorName
from halfwise.tensorrt.profiles import check_covered
from halfwise.tensorrt.recipes.tuning import Handed, gate
from halfwise.tensorrt.trtexec.notation import Shape
from halfwise.wording import count, verb

FOLDER = "tuning"
"""Folder of the files, next to the recipe."""
MOST = 16
"""Samples handed over: every route runs all. A convention."""


def hand_over(
    run: Run,
    models: tuple[Network, Network],
    read: tuple[Inputs, str | None],
    recipe: Recipe,
    folder: Path,
) -> Handed:
    """Write samples and references into a new folder; return their entry in a recipe.

    Args:
        run: The run; its criterion applies.
        models: The FP32 model, for the references, and the model trtexec builds, whose input and
            output types the files have.
        read: Samples, as for `fix`, and `preprocess` as in `Options`. Takes at most 16, of the most
            frequent shapes.
        recipe: The recipe, whose profiles must hold the samples.
        folder: Parent of `FOLDER`.

    Raises:
        CaseError: inputs or model are unusable, no output is a float, or no limit is above 0.
    """
    fp32, built = models
    reading = partial(load_inputs, read[0], preprocess=read[1])
    loaded, _ = load_settled(fp32, input_specs(fp32), reading)
    chosen, shapes, notes = _alike(loaded.samples)
    check_covered(recipe.profiles, chosen)
    place = folder / FOLDER
    place.mkdir()
    session, pairs, references = check(fp32), [], []
    for number, sample in enumerate(chosen):
        outputs = session.run(sample)
        floats = {n: a for n, a in outputs.items() if not is_discrete(a.dtype)}
        references.append(floats)
        pairs.append(
            (
                _written(place, f"{number}-in", sample, built.graph.inputs),
                _written(place, f"{number}-out", floats, built.graph.outputs),
            )
        )
    if not references[0]:
        raise CaseError(
            "No output is a float, and trtexec compares only floats.",
            "Use --as python instead, and judge the engine with halfwise verify.",
        )
    if len(floats) < len(outputs):
        left = sorted(outputs.keys() - floats.keys())
        notes.append(f"Not compared by trtexec, which compares only floats: {', '.join(left)}.")
    if not loaded.real:
        notes.append("The inputs look synthetic, so passing on them proves little.")
    seen = {TensorName(name): error.max_abs for name, error in run.verdict.outputs.items()}
    return Handed(pairs, shapes, gate(run.criterion, references, seen), tuple(notes))


def _alike(samples: Samples) -> tuple[Samples, Mapping[TensorName, Shape], list[str]]:
    """Return samples of the most frequent shapes, these shapes, and notes on the rest."""
    shapes = [tuple((name, array.shape) for name, array in s.items()) for s in samples]
    usual = Counter(shapes).most_common(1)[0][0]
    alike = [place for place, shape in enumerate(shapes) if shape == usual]
    notes = []
    if len(alike) < len(shapes):
        others = len(shapes) - len(alike)
        notes.append(
            f"{count(others, 'sample')} {verb(others, 'has', 'have')} other shapes, but trtexec "
            "compares samples of one shape: judge these with halfwise verify."
        )
    if len(alike) > MOST:
        notes.append(f"trtexec gets the first {MOST} of {len(alike)} samples of these shapes.")
    return samples.select(alike[:MOST]), {TensorName(n): shape for n, shape in usual}, notes


def _written(
    place: Path, begin: str, arrays: Sample | Outputs, values: Sequence[ir.Value]
) -> dict[TensorName, str]:
    """Write arrays in the types of `values`, row by row; return paths by tensor name."""
    paths = {}
    for number, value in enumerate(values):
        name = TensorName(value.name or "")
        if name in arrays:
            path = place / f"{begin}-{number}.bin"
            path.write_bytes(_typed(arrays[name], value).tobytes())
            paths[name] = f"{FOLDER}/{path.name}"
    return paths


def _typed(array: NDArray[np.generic], value: ir.Value) -> NDArray[np.generic]:
    assert value.dtype is not None
    with np.errstate(over="ignore"):
        return array.astype(value.dtype.numpy())
