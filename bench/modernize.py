"""Spellings of norms and GELUs, real exports too: recognised or left alone, never changed.

Each framework exports in an environment of its own (`bench/exports`), made once from the package
index. Whether the function stayed is measured here, apart from what `halfwise modernize` proves: on
other data, at three batch sizes.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from bench.figures import Figure, at_least, at_most, equal, reported
from bench.peers.environments import Environment, environment
from bench.runs import ROOT, Workbench
from halfwise import api
from halfwise.errors import CaseError
from tests import spellings

EXPORTS = Path(__file__).resolve().parent / "exports"
FRAMEWORKS = ("torch", "tensorflow", "jax")
SECONDS_TO_EXPORT = 1200
TOLERANCE = 1e-5
BATCHES = (1, 2, 5)
TARGETS = ("8.6", "10.0", "11")
ONNXSCRIPT_OPSET = 23
"""The first with RMSNormalization."""

_OPERATORS = {
    "layer_norm": "LayerNormalization",
    "rms_norm": "RMSNormalization",
    "gelu": "Gelu",
}
_ARE_NONE = ("by_deviation", "quick_gelu", "nearly", "channels_first")
"""Parts of names of what no operator of ONNX computes."""


@dataclass(frozen=True)
class Outcome:
    """One model for one target.

    Attributes:
        name: Of the model.
        wanted: The operator that it is, None for none.
        present: Whether the new model has that operator.
        reasons: Why something was left alone.
        error: Largest error over the largest value, over all batch sizes.
    """

    name: str
    wanted: str | None
    present: bool
    reasons: tuple[str, ...]
    error: float


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Measure the committed spellings, then each framework's exports."""
    folder = bench.folder / "modernize"
    folder.mkdir()
    committed = folder / "committed"
    committed.mkdir()
    for name in spellings.EXPECTED:
        onnx.save(spellings.proto(name), committed / f"{name}.onnx")
    figures = list(_figures("committed spellings", committed, bench))
    skipped, packages = [], {}
    for framework in FRAMEWORKS:
        made = environment(framework, EXPORTS / f"requirements-{framework}.txt")
        if made.missing is not None:
            skipped.append(f"{framework}: {made.missing}")
            continue
        exports = folder / framework
        exports.mkdir()
        packages[framework] = _exported(made, framework, exports)
        figures += _figures(framework, exports, bench)
        if framework == "torch":
            figures += _onnxscript(made, exports)
    figures += _known(bench, folder)
    bench.details.setdefault("modernize", {})["exports_failed"] = packages
    return figures, "; ".join(skipped) or None


def _exported(made: Environment, framework: str, folder: Path) -> list[str]:
    """Run the framework's script; return what it could not export."""
    script = EXPORTS / f"from_{framework}.py"
    done = subprocess.run(
        [made.python, str(script), str(folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS_TO_EXPORT,
    )
    return [line for line in done.stdout.splitlines() if "Error" in line]


def _figures(what: str, folder: Path, bench: Workbench) -> Iterator[Figure]:
    outcomes, refused = [], []
    for path in sorted(folder.glob("*.onnx")):
        for target in TARGETS:
            try:
                outcomes.append(_outcome(path, target))
            except CaseError as error:
                refused.append(f"{path.stem}: {error.message.splitlines()[0].split(': ')[-1]}")
                break
    latest = [o for o in outcomes[len(TARGETS) - 1 :: len(TARGETS)] if o.wanted]
    missed = [o.name for o in latest if not o.present]
    note = f"left alone: {', '.join(missed)}" if missed else ""
    wrong = [o.name for o in outcomes if o.error > TOLERANCE]
    total = f"{len(outcomes) // len(TARGETS)} models for TensorRT {', '.join(TARGETS)}"
    yield equal(f"{what}: changed in function", len(wrong), 0, f"{total} {wrong or ''}".strip())
    worst = max((o.error for o in outcomes), default=0.0)
    yield at_most(f"{what}: largest error", worst, TOLERANCE)
    layer_norms = [o for o in latest if o.wanted == "LayerNormalization"]
    for kind, some in (("LayerNorms", layer_norms), ("all patterns", latest)):
        done = sum(o.present for o in some)
        yield reported(f"{what}: {kind} as one node", f"{done} of {len(some)}", note)
    details = bench.details.setdefault("modernize", {})
    details[what] = {
        "refused": refused,
        "left_alone": dict(Counter(r for o in outcomes for r in o.reasons)),
    }


def _outcome(path: Path, target: str) -> Outcome:
    new = path.with_name(f"{path.stem}.{target}.new")
    inputs = _arrays(path, 1, seed=7)
    record = api.modernize(path, new, {n: a[None] for n, a in inputs.items()}, trt_version=target)
    error = max(_error(path, new, batch) for batch in BATCHES)
    wanted = _wanted(path.stem)
    operators = {node.op_type for node in onnx.load(new).graph.node}
    return Outcome(
        name=path.stem,
        wanted=wanted,
        present=wanted in operators,
        reasons=tuple(f"{left.op}: {left.reason}" for left in record.left),
        error=error,
    )


def _wanted(name: str) -> str | None:
    if name in spellings.EXPECTED and spellings.EXPECTED[name] is not None:
        return spellings.EXPECTED[name]
    if any(part in name for part in _ARE_NONE):
        return None
    return next((op for part, op in _OPERATORS.items() if part in name), None)


def _arrays(path: Path, batch: int, seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    arrays = {}
    for value in onnx.load(path).graph.input:
        sizes = [d.dim_value or batch for d in value.type.tensor_type.shape.dim]
        array = generator.standard_normal(sizes) * 2 + 0.7
        arrays[value.name] = array.astype(np.float32)
    return arrays


def _error(before: Path, after: Path, batch: int) -> float:
    arrays = _arrays(before, batch, seed=batch)
    one, two = (_session(path).run(None, arrays) for path in (before, after))
    if [a.shape for a in one] != [a.shape for a in two]:
        return float("inf")
    worst = [
        np.abs(a - b).max() / max(np.abs(a).max(), 1e-30) for a, b in zip(one, two, strict=True)
    ]
    return float(max(worst))


def _session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options)


def _onnxscript(made: Environment, folder: Path) -> Iterator[Figure]:
    """Tell what onnxscript's rules fuse of the same exports, and what halfwise does."""
    script = EXPORTS / "with_onnxscript.py"
    done = subprocess.run(
        [made.python, str(script), str(folder), str(ONNXSCRIPT_OPSET)],
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS_TO_EXPORT,
    )
    found: Mapping[str, Mapping[str, Any]] = json.loads(done.stdout)
    norms = [n for n in found if _wanted(n) in ("LayerNormalization", "RMSNormalization")]
    fused = sum(_wanted(name) in found[name] for name in norms)
    yield reported(
        "torch: LayerNorms and RMSNorms as one node by onnxscript's rules",
        f"{fused} of {len(norms)}",
        "native ones included",
    )


def _known(bench: Workbench, folder: Path) -> Iterator[Figure]:
    """The demo, and Magika where it is."""
    digits = ROOT / "examples" / "digits"
    cases = [("digits", digits / "model.onnx", digits / "inputs.npz")]
    magika = bench.real("magika")
    if magika is not None:
        cases.append(("magika", magika.model, magika.inputs))
    for name, model, inputs in cases:
        record = api.modernize(model, folder / f"{name}.onnx", inputs, trt_version="11")
        yield at_most(f"{name}: error of outputs in FP32", record.error, TOLERANCE)
        kinds = Counter(r.op for r in record.rewritings)
        yield at_least(f"{name}: patterns rewritten", sum(kinds.values()), 1, str(dict(kinds)))
