"""The bench of scales: one model whose groups change the plan."""

import numpy as np

from bench import scales
from tests.end_to_end.test_outputs import detector


def test_a_model_whose_scores_hide_behind_boxes():
    walks = np.random.default_rng(0).standard_normal((8, 1, 4, 60)).cumsum(-1)
    each = (walks / np.abs(walks).max()).astype(np.float32)
    found = scales.look("detector", detector(), [{"boxes": a, "features": a} for a in each])
    assert [group[:2] for group in found.groups["joined_out"]] == [(1, 4), (1, 4)]
    assert found.kept is not None
    now, before = found.kept
    assert {"up", "down"} <= set(now)
    assert before == []
    assert found.inner > 0
