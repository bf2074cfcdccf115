"""PyTorch modules exported by both exporters: is `export-torch` right about which are equal?

The modules are in `bench/exports/torch_modules.py`. Each export is judged a second time here,
independently of the command: ONNX Runtime with its optimisations, against outputs that PyTorch
wrote at other sizes of every dynamic axis. Two modules are traps, and one of them fails by design.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from bench.figures import Figure, at_most, equal, reported
from bench.modernize import EXPORTS
from bench.peers.environments import Environment, environment
from bench.runs import ROOT, CommandFailed, Workbench
from halfwise.errors import PASSED, VERDICT_FAILED, BuildFailed
from halfwise.tools.export_torch import TOLERANCE

SCRIPT = EXPORTS / "torch_modules.py"
EXPORTERS = ("dynamo", "torchscript")
SECONDS = 300
SHOWN = 160
"""Largest number of characters of a message."""


@dataclass(frozen=True)
class Outcome:
    """One module from one exporter.

    Attributes:
        name: Name of the module.
        exporter: The exporter.
        folding: Whether constants were folded.
        code: Exit code of `export-torch`.
        said: What it printed if it failed, or the sizes at which outputs differ.
        open: Whether every axis that should stay dynamic did.
        error: Largest error over the largest value at other sizes; inf if it does not run.
        warned: How many places were reported that tracing took for constant.
    """

    name: str
    exporter: str
    folding: bool
    code: int
    said: str
    open: bool = False
    error: float = float("inf")
    warned: int = 0

    def told(self) -> dict[str, object]:
        """Return all fields for JSON, which has no infinity."""
        return {**self.__dict__, "error": f"{self.error:.3g}"}


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Export every module both ways, with constants folded and without."""
    made = environment("torch", EXPORTS / "requirements-torch.txt")
    if made.missing is not None:
        return [], f"torch: {made.missing}"
    folder = bench.folder / "export_torch"
    folder.mkdir()
    lines = run_python(made, str(SCRIPT), str(folder)).stdout.splitlines()
    outcomes = []
    for line in lines:
        name, kind, *axes = line.split()
        for exporter in EXPORTERS:
            for folding in (True, False):
                outcomes.append((kind, _exported(made, folder, name, exporter, axes, folding)))
                print(f"  {outcomes[-1][1].told()}", flush=True)
    modules = [outcome for kind, outcome in outcomes if kind == "module"]
    traps = [outcome for kind, outcome in outcomes if kind == "trap"]
    bench.details["export_torch"] = [outcome.told() for _, outcome in outcomes]
    return [*_figures(modules), *_trapped(traps)], None


def _figures(outcomes: list[Outcome]) -> Iterator[Figure]:
    right = [o for o in outcomes if o.code == PASSED]
    for exporter in EXPORTERS:
        mine = [o for o in outcomes if o.exporter == exporter]
        failed = {f"{o.name}: {o.said}" for o in mine if o.code != PASSED}
        yield reported(
            f"{exporter}: exported, and equal at two sizes of every dynamic axis",
            f"{sum(o.code == PASSED for o in mine)} of {len(mine)}",
            "; ".join(sorted(failed)),
        )
    wrong = [f"{o.name} ({o.exporter})" for o in right if not o.error <= TOLERANCE]
    yield equal("said to be equal, and wrong at other sizes", len(wrong), 0, ", ".join(wrong))
    closed = [f"{o.name} ({o.exporter})" for o in right if not o.open]
    yield equal("said to be equal, with an axis that is not open", len(closed), 0, str(closed))
    unsaid = [
        o.name for o in outcomes if o.code not in (PASSED, VERDICT_FAILED, BuildFailed.exit_code)
    ]
    yield equal("ended without a verdict or a reason", len(unsaid), 0, ", ".join(unsaid))
    yield at_most("largest error at other sizes", max(o.error for o in right), TOLERANCE)


def _trapped(outcomes: list[Outcome]) -> Iterator[Figure]:
    passed = [f"{o.name} ({o.exporter})" for o in outcomes if o.code == PASSED]
    wrong = [o for o in outcomes if o.code == PASSED and not o.error <= TOLERANCE]
    told = f"of {len(outcomes)} exports; said to be equal: {', '.join(sorted(set(passed)))}"
    silent = [o for o in wrong if not o.warned]
    yield equal("wrong traps that nothing reports", len(silent), 0, told)
    yield reported("traps reported as traced for one branch", len(wrong) - len(silent))
    seen = sum(o.code == VERDICT_FAILED for o in outcomes)
    yield reported("traps noticed by comparing sizes", seen)
    refused = sum(o.code == BuildFailed.exit_code for o in outcomes)
    yield reported("traps that the exporter refuses", refused)


def _exported(
    made: Environment, folder: Path, name: str, exporter: str, axes: list[str], folding: bool
) -> Outcome:
    model = folder / f"{name}.{exporter}.{folding}.onnx"
    options = [argument for axis in axes for argument in ("--dynamic", axis)]
    options += ["--exporter", exporter, *([] if folding else ["--no-fold"]), "--json"]
    command = ("-m", "halfwise", "export-torch", f"{SCRIPT}:{name}", "-o", str(model), *options)
    done = run_python(made, *command, check=False)
    if not model.is_file():
        said = next(iter(done.stderr.strip().splitlines()[-2:]), "")[:SHOWN]
        return Outcome(name, exporter, folding, done.returncode, said)
    record = json.loads(done.stdout)
    checks = record["checks"]
    wrong = [c for c in checks if done.returncode and not float(c["error"]) <= TOLERANCE]
    said = ", ".join(f"{c['sizes']}: {c['problem'][:SHOWN] or c['error']}" for c in wrong)
    symbols = {d.dim_param for v in onnx.load(model).graph.input for d in _dims(v)} - {""}
    wanted = {axis.partition("=")[2] for axis in axes}
    error = _error(model, folder / f"{name}.npz")
    warned = len(record["traced"])
    return Outcome(name, exporter, folding, done.returncode, said, symbols == wanted, error, warned)


def _dims(value: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(value.type.tensor_type.shape.dim)


def _error(model: Path, recorded: Path) -> float:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(model), options)
    with np.load(recorded) as arrays:
        given = {v.name: arrays[v.name] for v in session.get_inputs()}
        expected = [arrays[name] for name in arrays.files if name.startswith("output ")]
    try:
        results = session.run(None, given)
    except Exception:  # noqa: BLE001 - ONNX Runtime's errors have no common base
        return float("inf")
    if [r.shape for r in results] != [e.shape for e in expected]:
        return float("inf")
    pairs = zip(results, expected, strict=True)
    return max(float(np.abs(r - e).max() / max(np.abs(e).max(), 1e-30)) for r, e in pairs)


def run_python(
    made: Environment, *arguments: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run the framework's Python; halfwise's own packages are those of this process."""
    path = [ROOT / "src", Path(sysconfig.get_path("purelib"))]
    inherited = os.environ.get("PYTHONPATH", "")
    done = subprocess.run(
        [made.python, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), inherited])},
    )
    if check and done.returncode:
        raise CommandFailed(f"{' '.join(arguments)}: {done.stderr.strip()[-300:]}")
    return done
