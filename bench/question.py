"""What a run with default options asks of published models, keeps, and takes.

Each model runs through the command line with its own inputs, and plain inference over the same data
beside it. A plan is worth little if it saves less than half of the predicted cost that everything
in FP16 saves. Processor time counts, as it is valid on a busy machine too.

Each model has so many different samples that plain inference over them takes about a second of
processor time, as users bring hundreds of samples; else the start of Python would be measured, some
0.8 s. More than 400 samples are not made. The rows on processor time are on the detectors and
recognisers; `OUTSIDE` names the models that are neither, and those for which 400 samples are too
few to measure anything else than the start. Their figures are reported like those of all.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.figures import Figure, at_most, reported
from bench.published import IMAGENET, MODELS, cut, fed, fetched, files, written
from bench.quick import inference, timed
from bench.runs import FINISHED, REAL_MODELS, ROOT, Workbench

LITTLE = 0.5
MOST_LITTLE, MEDIAN, WORST = 1, 20.0, 60.0
OUTSIDE = (
    *("orinet", "dnsmos", "melspectrogram", "speech_embedding"),  # neither detect nor recognise
    *("silero_frame", "alexa", "hey_jarvis", "hey_mycroft"),  # 400 samples take 0.15 s
)
MORE: Mapping[str, Any] = {
    "magika": (files, 16),
    "ppocr_v3_det": (fed("x", lambda count: written(640, 640, 8, count), *IMAGENET), 8),
    "yolox_nano": (fed("images", lambda count: cut(416, 416, count), 0.0, 1 / 255), 28),
}
"""Samples that are judged with those of the models folder, which take too little: what makes them,
and how many."""


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return what each model's default run keeps and takes, and the figures over all."""
    subjects = dict(_published(bench.folder))
    for name in REAL_MODELS:
        if (subject := bench.real(name)) is not None:
            make, count = MORE[name]
            given = [*_samples(subject.inputs), *make(ROOT, count)]
            subjects[name] = subject.model, _saved(bench.folder / name, given)
    rows = {name: _row(*of, bench.folder / f"{name}-run") for name, of in subjects.items()}
    figures = [
        reported(f"{name}: share of FP16's savings", row["saved"], row["note"])
        for name, row in rows.items()
    ]
    little = [n for n, row in rows.items() if row["passed"] and (row["saved"] or 0.0) < LITTLE]
    times = {name: row["times"] for name, row in rows.items() if name not in OUTSIDE}
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
        inputs = _saved(folder / model.name, model.samples(models, model.many))
        yield model.name, (models / f"{model.name}.onnx", inputs)


def _samples(file: Path) -> list[dict[str, Any]]:
    """Return the samples of a file in which they are stacked."""
    with np.load(file) as stacked:
        arrays = dict(stacked)
    return [
        {name: a[i] for name, a in arrays.items()} for i in range(len(next(iter(arrays.values()))))
    ]


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
        f"strict {strict:.3g}; {took.cpu:.0f} s, {times:.0f} × inference of "
        f"{plain.runs.cpu:.2g} s over {len(list(inputs.iterdir()))} samples, "
        f"{run['cost']['evaluations']} evaluations"
    )
    return {"saved": saved, "passed": run["verdict"]["passed"], "times": times, "note": note}
