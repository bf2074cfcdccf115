"""Runs the typed files of delivered plans in ONNX Runtime's CUDA provider, next to the engine.

    python -m bench.gpu.typed --work DIR [--results DIR] NAME …

`DIR/NAME` is the folder that `bench.gpu.figures` leaves for a job: the model, its inputs, the run
folder `run`. If ONNX Runtime has the provider, `bench.gpu.figures` reports the same for each job.

TensorRT 10 and 11 build engines from typed files, so this is real FP16 arithmetic on them if only
an older TensorRT is available: Casts, stored constants and ranges are those of the file; the
kernels are not TensorRT's. Needs `onnxruntime-gpu` for the host's CUDA; README.md says how to
install it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from bench.figures import Figure, Result, at_least, at_most, equal, reported, table
from bench.gpu.engines import samples_of
from bench.runs import ROOT
from halfwise import report
from halfwise.metrics import OutputMeasure, totals
from halfwise.records import Criterion, OutputError, TensorName

RESULTS = ROOT / "bench" / "results"
CUDA = "CUDAExecutionProvider"
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
"""What samples are read as; others as they are."""
BEYOND = 6.0
"""Decibels that the typed file may be worse than the engine that was proven: twice the error. A
convention: both round the same tensors, and sum in another order."""

Arrays = Mapping[str, np.ndarray]


def typed(
    name: str, folder: Path, samples: Sequence[Arrays], provider: str = CUDA
) -> tuple[list[Figure], dict[str, Any]]:
    """Compare the typed file of a run with its engine; return figures and each output's errors.

    Args:
        name: Name of the model.
        folder: A run folder of `fix --target tensorrt` that delivered a plan.
        samples: The held-out samples that the engine was judged on.
        provider: Execution provider of the typed file; FP32 runs on the CPU.
    """
    run = report(folder)
    references = _outputs(folder / "model.fp32.onnx", samples, "CPUExecutionProvider", fuse=True)[0]
    seen = {TensorName(o): error for o, error in run.verdict.outputs.items()}
    errors = {"engine": seen}
    placed: Counter[str] = Counter()
    for what, fuse in (("node by node", False), ("fused", True)):
        found, where = _outputs(folder / "model.onnx", samples, provider, fuse=fuse)
        errors[what] = _errors(run.criterion, references, found)
        placed = placed or where
    snr = {what: min(e.snr_db for e in found.values()) for what, found in errors.items()}
    note = ", ".join(f"{what} {value:.1f} dB" for what, value in snr.items())
    note += f"; {len(samples)} samples"
    figures = [
        reported(f"{name}: SNR of the typed file (dB)", snr["node by node"], note),
        # If its libraries do not load, everything runs on the CPU without a message.
        at_least(f"{name}: nodes that {provider} ran", placed[provider], 1, f"{dict(placed)}"),
    ]
    if run.engines is not None and run.engines.full:
        figures.append(reported(f"{name}: the engine is all in FP32", run.engines.rung or ""))
    else:
        figures.append(at_most(f"{name}: engine's SNR − its (dB)", _gap(snr), BEYOND, note))
    if run.criterion.metric is None:
        passed = all(e.passed for e in errors["node by node"].values())
        figures.append(equal(f"{name}: within the run's thresholds", passed, wanted=True))
    return figures, {what: {o: _told(e) for o, e in of.items()} for what, of in errors.items()}


def _told(error: OutputError) -> dict[str, float | str]:
    """Return the errors of one output; JSON has no infinity."""
    values = {name: getattr(error, name) for name in ("max_abs", "rel_max", "snr_db")}
    return {name: v if isfinite(v) else str(v) for name, v in values.items()}


def _gap(snr: Mapping[str, float]) -> float:
    """Return by how much the engine is better, in dB; 0 for equal outputs."""
    return 0.0 if snr["engine"] == snr["node by node"] else snr["engine"] - snr["node by node"]


def _outputs(
    model: Path, samples: Sequence[Arrays], provider: str, *, fuse: bool
) -> tuple[list[dict[str, np.ndarray]], Counter[str]]:
    """Return the outputs on all samples, and how many nodes ran on each provider."""
    options, levels = ort.SessionOptions(), ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if fuse else levels.ORT_DISABLE_ALL
    options.log_severity_level = 4
    # Otherwise sums differ from run to run.
    options.use_deterministic_compute = True
    options.enable_profiling = True
    options.profile_file_prefix = str(model.with_suffix(".profile"))
    providers: list[Any] = [(CUDA, {"use_tf32": "0"})] if provider == CUDA else []
    session = ort.InferenceSession(str(model), options, [*providers, "CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    types = {i.name: TYPES.get(i.type) for i in session.get_inputs()}
    feeds = ({n: np.asarray(s[n], types[n]) for n in types} for s in samples)
    found = [dict(zip(names, session.run(None, feed), strict=True)) for feed in feeds]
    profile = Path(session.end_profiling())
    events = json.loads(profile.read_text(encoding="utf-8"))
    profile.unlink()
    nodes = {e["name"]: e["args"]["provider"] for e in events if "provider" in e.get("args", {})}
    return found, Counter(nodes.values())


def _errors(
    criterion: Criterion, references: Sequence[Arrays], found: Sequence[Arrays]
) -> dict[TensorName, OutputError]:
    errors = {}
    for name, total in totals(references).items():
        measure = OutputMeasure(total)
        for place, (reference, candidate) in enumerate(zip(references, found, strict=True)):
            measure.update(reference[name], candidate[name], str(place))
        errors[TensorName(name)] = measure.result(criterion)
    return errors


def beside(name: str, folder: Path) -> list[Figure]:
    """Return the figures of a job; none without the provider or without an engine."""
    if CUDA not in ort.get_available_providers() or not _delivered(folder):
        return []
    ort.preload_dlls()
    try:
        return typed(name, folder / "run", held_out(folder))[0]
    except Exception as error:  # noqa: BLE001 - the engine's results must not be lost for it
        return [reported(f"{name}: the typed file does not run", str(error).partition("\n")[0])]


def _delivered(folder: Path) -> bool:
    """Return whether a job delivered an engine."""
    if not (folder / "run" / "run.json").exists():
        return False
    engines = report(folder / "run").engines
    return engines is not None and engines.delivered is not None


def held_out(folder: Path) -> list[dict[str, np.ndarray]]:
    """Return the samples that the engine of a job was judged on.

    Without a separate file, every fourth sample is held out.
    """
    held = folder / "heldout.npz"
    return samples_of(held) if held.exists() else samples_of(folder / "inputs.npz")[3::4]


def measure(names: Sequence[str], work: Path) -> Result:
    """Return the figures of finished jobs."""
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    missing = []
    for name in names:
        if not _delivered(work / name):
            missing.append(name)
            continue
        found, details[name] = typed(name, work / name / "run", held_out(work / name))
        figures += found
    lacking = f"no engine was delivered: {', '.join(missing)}" if missing else None
    command = "python -m bench.gpu.typed --work DIR " + " ".join(names)
    return Result("gpu_typed", command, figures, lacking, details=details)


def main() -> int:
    """Run the jobs that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument(
        "--work", type=Path, required=True, help="has the runs of bench.gpu.figures"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="takes gpu_typed.json")
    given = parser.parse_args()
    if CUDA not in ort.get_available_providers():
        print(f"ONNX Runtime {ort.__version__} here has no CUDA provider: see bench/gpu/README.md")
        return 1
    ort.preload_dlls()
    result = measure(given.names, given.work.resolve())
    result.save(given.results)
    print(table([result]), flush=True)
    return 0 if result.reached else 1


if __name__ == "__main__":
    sys.exit(main())
