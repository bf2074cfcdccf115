"""How early a run with default options knows a plan that serves the task, and recommends it.

At the default tolerance of 1 % these models need hundreds of nodes in FP32; for their task none, or
one. Evaluations are counted, so the figures do not depend on the machine's speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from bench.figures import Figure, at_most, equal, reported
from bench.runs import Workbench

MODELS = ("ppocr_v3_det", "yolox_nano")
EARLY = 20
"""Evaluations within which the plan must have been tried."""
CHEAP = 1.10
"""Largest cost of that plan, relative to everything low."""


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return when the plan was tried, what it costs, and whether `choose` passes with it."""
    here = [name for name in MODELS if bench.real(name)]
    return [figure for name in here for figure in _of(bench, name)], bench.missing(MODELS)


def _of(bench: Workbench, name: str) -> Iterator[Figure]:
    subject = bench.real(name)
    assert subject is not None
    ran = bench.fix(replace(subject, name=f"{name}-by-default", options=(), judging=()))
    curve, passed = ran.run.curve, ran.run.verdict.passed
    assert curve is not None
    serving = [p for p in curve.points if p.serves and p.cost is not None and p.cost <= CHEAP]
    early = min((point.evaluation for point in serving), default=inf)
    yield at_most(f"{name}: evaluations until a plan serves at most {CHEAP} ×", early, EARLY)
    offered = curve.offered(passed=passed)
    if offered is None or offered.cost is None:
        yield equal(f"{name}: plan recommended", "none", "one")
        return
    scores = ", ".join(f"{score.metric} {score.value:.4f}" for score in offered.scores)
    told = f"keeps {offered.count} of {len(curve.nodes)}, {scores}"
    yield at_most(f"{name}: cost of the recommended plan", offered.cost, CHEAP, told)
    yield equal(f"{name}: exit code of choose", bench.choose(ran).code, 0)
    plan = None if curve.plan is None else curve.points[curve.plan]
    beside = "none" if plan is None else f"keeps {plan.count} at {plan.price:.3g} ×"
    yield reported(
        f"{name}: evaluations of the run", ran.run.cost.evaluations, f"its plan {beside}"
    )
