"""What a run with default options asks of published models, keeps, and takes.

Each model runs through the command line with its own inputs, and plain inference over the same data
beside it. A plan is worth little if it saves less than half of the predicted cost that everything
in FP16 saves. Processor time counts, as it is valid on a busy machine too.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.figures import Figure, at_most, reported
from bench.published import MODELS, fetched
from bench.quick import inference, timed
from bench.runs import FINISHED, REAL_MODELS, Workbench

LITTLE = 0.5
MOST_LITTLE, MEDIAN, WORST = 1, 20.0, 60.0


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return what each model's default run keeps and takes, and the figures over all."""
    subjects = dict(_published(bench.folder))
    for name in REAL_MODELS:
        if (subject := bench.real(name)) is not None:
            subjects[name] = subject.model, subject.inputs
    rows = {name: _row(*of, bench.folder / f"{name}-run") for name, of in subjects.items()}
    figures = [
        reported(f"{name}: share of FP16's savings", row["saved"], row["note"])
        for name, row in rows.items()
    ]
    little = [n for n, row in rows.items() if row["passed"] and (row["saved"] or 0.0) < LITTLE]
    times = {name: row["times"] for name, row in rows.items()}
    slowest = max(times, key=lambda name: times[name])
    figures += [
        at_most("plans that save less than half", len(little), MOST_LITTLE, ", ".join(little)),
        at_most("CPU time over one inference, median", statistics.median(times.values()), MEDIAN),
        at_most("CPU time over one inference, worst", times[slowest], WORST, slowest),
    ]
    return figures, bench.missing()


def _published(folder: Path) -> Iterator[tuple[str, tuple[Path, Path]]]:
    models = fetched()
    for model in MODELS:
        inputs = _saved(folder / model.name, model.samples(models))
        yield model.name, (models / f"{model.name}.onnx", inputs)


def _saved(folder: Path, samples: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    for i, sample in enumerate(samples):
        np.savez(folder / f"{i:03}.npz", **sample)
    return folder


def _row(model: Path, inputs: Path, out: Path) -> dict[str, Any]:
    plain, _ = inference(model, inputs)
    words = ["fix", str(model), "--inputs", str(inputs), "-o", str(out)]
    _, took, code = timed([sys.executable, "-m", "halfwise", *words])
    times = took.cpu / plain.runs.cpu
    if code not in FINISHED:
        return {"saved": None, "passed": False, "times": times, "note": f"exit {code}"}
    run = json.loads((out / "run.json").read_text(encoding="utf-8"))
    curve, plan = run["curve"], run["plan"]
    point = curve["points"][curve["plan"]] if curve["plan"] is not None else {}
    fp32 = max((p["cost"] or 0.0 for p in curve["points"]), default=0.0)
    worth = run["worth"] or {}
    cost, most = point.get("cost"), worth.get("fp32") or fp32
    saved = None if cost is None or most <= 1 else (most - cost) / (most - 1)
    metrics = list(dict.fromkeys(one["metric"] for one in run["criterion"]["recognised"]))
    strict, excesses = run["verdict"]["strict"], run["verdict"]["excesses"]
    if strict is None:
        strict = max(excesses, default=0.0)
    note = (
        f"{', '.join(metrics) or '1 %'}; kept {len(plan['keep'])} of {plan['candidates']}, "
        f"{len(plan['repairs'])} repairs, {'passed' if run['verdict']['passed'] else 'failed'}, "
        f"strict {strict:.3g}; {took.cpu:.0f} s, {times:.0f} × inference, "
        f"{run['cost']['evaluations']} evaluations"
    )
    return {"saved": saved, "passed": run["verdict"]["passed"], "times": times, "note": note}
