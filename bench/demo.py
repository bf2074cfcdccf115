"""The command of `make demo`: what it keeps, what the plan is worth, how long it takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx

from bench.figures import Figure, at_most, equal
from bench.runs import ROOT, Workbench, digits

PER_NORM = 4
SECONDS = 20.0
HELDOUT = Path("examples") / "digits" / "heldout.npz"


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures; nothing is ever skipped."""
    subject = digits()
    fixed = bench.fix(subject)
    assert fixed.run.plan is not None
    kept = [k.node for k in fixed.run.plan.keep]
    norms = layer_norms(ROOT / subject.model)
    per_norm = Counter(node.rpartition("/")[0] for node in kept)
    verified = bench.verify(subject, HELDOUT, subject.judging)
    metric = verified.run.verdict.metric
    assert metric is not None
    images = len(verified.run.verdict.samples)
    return [
        at_most("kept nodes", len(kept), PER_NORM * len(norms), f"{len(norms)} LayerNorms"),
        at_most("kept nodes in one LayerNorm", max(per_norm.values(), default=0), PER_NORM),
        equal(
            "kept nodes outside LayerNorms", sum(k.rpartition("/")[0] not in norms for k in kept), 0
        ),
        equal("plan is minimal", fixed.run.plan.minimal, wanted=True),
        equal("verdict passed", fixed.run.verdict.passed and fixed.code == 0, wanted=True),
        equal(
            f"top-1 on the {images} held-out images, as in FP32",
            metric.candidate,
            metric.reference,
            f"{round(metric.candidate * images)} of {images} right",
        ),
        at_most("whole run (s)", fixed.seconds, SECONDS, "wall time of the process"),
    ], None


def layer_norms(model: Path) -> set[str]:
    """Return the paths of the written-out LayerNorms, such as /blocks.0/norm1."""
    graph = onnx.load(model).graph
    return {node.name.rpartition("/")[0] for node in graph.node if node.op_type == "Sqrt"}
