"""Held-out samples that join the search, and what stays of the verdict on them."""

import numpy as np

from halfwise import api
from tests.unit.graph.sketch import Sketch, f32

DRAW = np.random.default_rng(0)


def scores(right: int, ties: int = 0) -> np.ndarray:
    """Rows of which the second score wins clearly, or by less than FP16 tells."""
    first, apart = DRAW.uniform(1, 2, (right + ties, 1)), np.full((right + ties, 1), 1.3)
    apart[:ties] = 1 + 1e-5
    return f32(np.concatenate([first, first * apart], axis=1))[:, None]


def test_a_plan_that_failed_does_not_pass_among_the_samples_that_it_failed_on():
    s = Sketch()
    model = s.proto(s.op("Mul", s.input("x", [1, 2]), 1.0, name="scores"))
    unseen = {"x": scores(8, ties=2)}
    run = api.fix(model, {"x": scores(40)}, heldout=unseen, metric="top1", metric_drop=0.1).run
    # Of 42 searched samples 2 are wrong, which is within the drop; of 10 unseen ones it is not.
    assert run.plan is not None
    assert run.search is not None
    assert run.plan.keep == ()
    assert len(run.search.joined) == 2
    assert not run.verdict.passed
    assert len(run.verdict.samples) == 10
    bound = run.verdict.failure_bound
    assert bound is not None
    assert (bound.judged, bound.failing, bound.joined) == (10, 2, 0)
