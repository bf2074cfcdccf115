"""Numbers of our own choice: each decides otherwise just beside it.

A number with a source is checked where its source is; these have none, so they are to be moved on
purpose only.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from halfwise.fixing.engines.run import causes
from halfwise.fixing.following import born
from halfwise.fixing.plan.search import gains, stretches
from halfwise.fixing.repair.moves import _Move
from halfwise.inputs.samples import Rows
from halfwise.options.loading import _reading
from halfwise.records import Growth, NodeName
from halfwise.tools.diagnose.harness import _try
from halfwise.tools.preprocessing.changes import Hypothesis
from halfwise.tools.transplants import allowed_seconds

A, B, C = (frozenset({NodeName(name)}) for name in "abc")
PRICES = {A: 1.5, C: 2.0}


def explained(measured: float) -> bool:
    outcome: Any = SimpleNamespace(plan=A, excess=measured, passed=False, ignored=(), number=1)
    expected: Any = {A: 1.1}
    (cause,) = causes([outcome], expected, relative=True)
    return cause.kind == "precision"


def step(inherited: float) -> Growth:
    return Growth(node=NodeName("a"), error=1.0, inherited=inherited)


def shown(before: float, after: float) -> int:
    """Return how many samples of one show a change that leaves an error."""
    target: Any = SimpleNamespace(error=lambda *_: after, row=lambda _: np.zeros(1))
    session = SimpleNamespace(run=lambda _: None)
    subject: Any = SimpleNamespace(session=session, samples=[{"x": np.ones(4)}])
    return _try(subject, target, [before], Hypothesis((), {})).shown


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # A plan that passes gains if it saves half of what everything low saves,
        (gains(1.5, 1.0, 2.0), gains(1.51, 1.0, 2.0)),
        # or a quarter of what FP32 costs.
        (gains(3.0, 1.0, 4.0), gains(3.01, 1.0, 4.0)),
        # An engine's error is explained up to twice what is predicted.
        (explained(2.2), explained(2.21)),
        # An error may originate where inputs have up to a fifth of it.
        (bool(born([step(0.2)])), bool(born([step(0.21)]))),
        # A change of the inputs is shown by errors that fall to less than a tenth.
        (shown(5.1e-3, 5e-4), shown(4.9e-3, 5e-4)),
    ],
)
def test_it_decides_otherwise_just_beside_the_number(one, other):
    assert one
    assert not other


def test_three_samples_run_alone_and_together():
    ran: list[int] = []

    def run(sample: Any) -> dict[str, None]:
        ran.append(len(sample["x"]))
        return {"y": None}

    session: Any = SimpleNamespace(run=run)
    samples: Any = [{"x": np.zeros((1, 2))}] * 5
    _reading(session, samples, Rows(first=0, count=5, files=1))
    assert ran == [1, 1, 1, 3]


def test_contributions_of_eight_groups_are_measured_first():
    nodes = [NodeName(f"n{i}") for i in range(32)]
    assert len(stretches(nodes)) == 8


@pytest.mark.parametrize(("count", "alone"), [(1, 0), (2, 2), (4, 4), (5, 0)])
def test_up_to_four_repairs_are_undone_one_by_one(monkeypatch, count, alone):
    some: Any = tuple(range(count))
    tried: list[Any] = []
    monkeypatch.setattr(_Move, "_variant", lambda _, fewer: tried.append(fewer))
    nothing: Any = None
    assert _Move(nothing, nothing)._fewest(some, nothing)[0] == some
    assert len(tried) == alone


@pytest.mark.parametrize(("plain", "limit"), [(11.0, 60.0), (13.0, 65.0), (100.0, 300.0)])
def test_a_part_is_built_in_five_times_as_long_as_the_engine_at_least_a_minute(plain, limit):
    assert allowed_seconds(plain, 300.0) == limit
