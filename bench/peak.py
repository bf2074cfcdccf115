"""Peak memory of `fix` over that of plain inference, on small models with large activations.

Each runs in a separate process (VmHWM). Plain inference is a process with ONNX Runtime and NumPy
alone that runs the same samples without graph optimisation (`plain_memory.py`).

python bench/peak.py NAME … measures some of the models, for development.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import onnx

from bench.figures import Figure, Result, at_most, reported, table
from bench.large import watched
from bench.peak_models import DRAWN, SIDE, images
from bench.runs import ROOT, Workbench, models_folder

PEAK = 2.5
"""Peak memory of `fix` over that of plain inference."""
SAMPLES = 4
SECONDS = 30
"""Time budget of `fix`: every stage is reached; the memory kept per trial adds little."""
PUBLISHED = ("ppocr_v3_det", "yolox_nano")


@dataclass(frozen=True)
class _Measured:
    """A model and its samples, in files."""

    name: str
    model: Path
    inputs: Path


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures of all available models, and which are missing."""
    return costs(bench, (*DRAWN, *PUBLISHED)), bench.missing(PUBLISHED)


def costs(bench: Workbench, names: Sequence[str]) -> list[Figure]:
    """Return the figures of the models with these names."""
    return [figure for one in _made(bench, names) for figure in _cost(one, bench.folder)]


def _made(bench: Workbench, names: Sequence[str]) -> Iterator[_Measured]:
    for name in names:
        model, inputs = (bench.folder / f"{name}{end}" for end in (".onnx", ".npz"))
        if name in DRAWN:
            onnx.save(DRAWN[name](), model)
            np.savez(inputs, x=images(SAMPLES))
        elif subject := bench.real(name):
            onnx.save(_at_side(onnx.load(subject.model)), model)
            with np.load(subject.inputs) as file:
                resized: dict[str, Any] = {n: _resized(file[n]) for n in file}
            np.savez(inputs, **resized)
        else:
            continue
        yield _Measured(name, model, inputs)


def _at_side(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model for images of SIDE × SIDE, if it declares another size."""
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim[2:]:
            if dim.HasField("dim_value") and dim.dim_value != SIDE:
                dim.dim_value = SIDE
                del model.graph.value_info[:]
                for output in model.graph.output:
                    for axis, size in enumerate(output.type.tensor_type.shape.dim):
                        size.dim_param = f"{output.name}_{axis}"
    return model


def _resized(array: np.ndarray) -> np.ndarray:
    """Return images [..., rows, columns], each pixel the nearest of the given ones."""
    rows, columns = (np.arange(SIDE) * size // SIDE for size in array.shape[-2:])
    return array[..., rows, :][..., columns]


def _cost(one: _Measured, folder: Path) -> list[Figure]:
    before, peak = _plain(one)
    _, bare = _plain(one, "bare")
    fixing = watched(
        [
            *("fix", str(one.model), "--inputs", str(one.inputs), "-o", str(folder / one.name)),
            *("--allow", "random", "--budget", f"time={SECONDS}"),
        ]
    )
    floor = _floor()
    beyond = (fixing.resident - floor) / (peak - before)
    note = (
        f"{fixing.resident / 2**20:.0f} MiB, {peak / 2**20:.0f} MiB; before anything is read, "
        f"{floor / 2**20:.0f} and {before / 2**20:.0f} MiB"
    )
    what = f"{one.name}: peak memory of fix / of plain inference"
    return [
        at_most(what, fixing.resident / peak, PEAK, note),
        reported(f"{what}, each without interpreter and libraries", beyond),
        reported(f"{what} without a pattern of memory", fixing.resident / bare),
    ]


def _plain(one: _Measured, *how: str) -> list[int]:
    """Return the memory of plain inference's libraries, and its peak, in bytes."""
    command = [sys.executable, "bench/plain_memory.py", str(one.model), str(one.inputs), *how]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return [*map(int, done.stdout.split())]


def _floor() -> int:
    """Return the memory of a process that has imported `fix`, in bytes."""
    imports = "import halfwise.fixing.command; from bench.plain_memory import status"
    code = f"{imports}; print(status('VmRSS'))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return int(done.stdout)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="halfwise-bench-") as temporary:
        workbench = Workbench(Path(temporary), models_folder())
        found = costs(workbench, sys.argv[1:])
    print(table([Result("peak", "", found, workbench.missing(PUBLISHED))]))
    print(*(f"{f.what}: {f.note}" for f in found if f.note), sep="\n")
