"""A model of ViT-B/16's size with overflows planted in 12 LayerNorms: time, and kept nodes.

The search is measured without repairs, which would leave nothing to find. Takes a quarter of an
hour on two cores and 600 MB of disk.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter

import onnx

from bench.figures import Figure, at_most, equal, reported
from bench.inference import loaded
from bench.runs import ROOT, Subject, Workbench
from halfwise.emulation.ort import Session

SAMPLES, BATCH, PLANTED, PER_NORM = 100, 4, 12, 4
MINUTES = 15
"""Time budget of the search."""
WHOLE = 9.0
"""The whole run over inference over the data."""
NAME = "vit_b"


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures; nothing is ever skipped."""
    made = bench.folder / "vit_b_model"
    sizes = {"samples": SAMPLES, "batch": BATCH, "planted": PLANTED}
    options = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    subprocess.run(
        [sys.executable, str(ROOT / "bench" / "vit.py"), "--out", str(made), *options],
        check=True,
        capture_output=True,
    )
    asked = ("--budget", f"time={60 * MINUTES}", "--no-repair")
    subject = Subject(NAME, made / "model.onnx", made / "inputs", asked)
    fixed = bench.fix(subject)
    plain = _inference(subject)
    plan = fixed.run.plan
    assert plan is not None
    graph = onnx.load(made / "model.onnx", load_external_data=False).graph
    planted = {n.name.rpartition("/")[0] for n in graph.node if n.name.endswith("/plant")}
    per_norm = Counter(k.node.rpartition("/")[0] for k in plan.keep)
    stages = ", ".join(f"{s} {t:.0f} s" for s, t in fixed.run.cost.stage_seconds.items())
    return [
        at_most("whole run / inference over the data", fixed.seconds / plain, WHOLE, stages),
        reported("whole run (min)", fixed.seconds / 60),
        equal("plan is minimal", plan.minimal, wanted=True),
        equal("verdict passed", fixed.run.verdict.passed and fixed.code == 0, wanted=True),
        equal("LayerNorms with an overflow planted", len(planted), PLANTED),
        equal(
            "kept nodes outside them", sum(c for n, c in per_norm.items() if n not in planted), 0
        ),
        at_most("kept nodes", len(plan.keep), PER_NORM * PLANTED),
        at_most("kept nodes in one LayerNorm", max(per_norm.values(), default=0), PER_NORM),
        at_most(
            "evaluations / candidates",
            fixed.run.cost.evaluations / plan.candidates,
            0.5,
            f"{fixed.run.cost.evaluations} evaluations, {plan.candidates} candidates",
        ),
        reported("peak memory (GiB)", (fixed.run.cost.peak_rss_bytes or 0) / 2**30),
    ], None


def _inference(subject: Subject) -> float:
    """Return how long ONNX Runtime takes to run all samples, fully optimised, in seconds."""
    case = loaded(subject)
    started = time.perf_counter()
    session = Session(case.network.model, optimise=True)
    for sample in case.calibration:
        session.run(sample)
    return time.perf_counter() - started
