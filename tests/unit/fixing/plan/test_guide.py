"""What the guide proposes."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.plan.cut import Terms
from halfwise.fixing.plan.guide import EARLY, TRIALS, Guide, aims, nearest
from halfwise.records import NodeName

NODES = [NodeName(f"n{i}") for i in range(6)]
SITES = [(n,) for n in NODES]


def guide(costs):
    return Guide(SITES, lambda: Terms(dict(zip(NODES, map(float, costs), strict=True))))


@given(
    st.lists(st.integers(1, 50), min_size=6, max_size=6),
    st.lists(st.floats(0.01, 5), min_size=6, max_size=6),
)
def test_plans_keep_more_and_more_of_what_adds_much_for_its_cost(costs, errors):
    made = guide(costs)
    made.fit({frozenset((n,)): e for n, e in zip(NODES, errors, strict=True)})
    always = frozenset(NODES[:1])
    plans = made.plans(frozenset(NODES), always)
    assert all(a < b for a, b in pairwise(plans))
    assert (plans[0], plans[-1]) == (always, frozenset(NODES))
    worth = {n: e * e / c for n, e, c in zip(NODES, errors, costs, strict=True)}
    for plan in plans[1:]:
        kept = [worth[n] for n in plan - always]
        left = [worth[n] for n in NODES if n not in plan]
        assert not left or min(kept) >= max(left) * 0.9


def test_merit_is_error_added_for_cost_saved():
    made = guide([1] * 6)
    made.fit({frozenset((n,)): 0.5 for n in NODES})
    low = frozenset(NODES[:2])
    assert made.merit(low, NODES[2], 0.5) == pytest.approx(0.5, rel=0.01)
    assert made.merit(low, NODES[2], 0.0) == math.inf


def test_r2_is_of_what_nothing_was_fitted_to():
    made = guide([1] * 6)
    made.fit({frozenset((n,)): 2.0**i for i, n in enumerate(NODES)})
    sets = [frozenset(NODES[: i + 1]) for i in range(5)]
    true = made.r2([(low, made.predicted(low)) for low in sets])
    assert true == made.explained == pytest.approx(1)
    unrelated = made.r2([(low, 8.0 - i) for i, low in enumerate(sets)])
    assert unrelated is not None
    assert unrelated < 0


def test_what_is_tried_lies_evenly_up_to_the_limit_and_between_both_ends_then():
    errors = list(np.geomspace(64, 1e-3, 40))
    wanted = list(aims(errors, first=True))
    assert len(wanted) == EARLY + TRIALS
    assert wanted[: EARLY + 1] == pytest.approx([16, 4, 1])
    assert next(aims(errors, first=False)) == 1
    at = nearest(errors, -1, len(errors), 4.0)
    assert errors[at] == pytest.approx(4, rel=0.2)
    assert nearest(errors, 10, 20, None) == 15
    assert nearest([3.0, 0.0], 0, 2, None) == 1
