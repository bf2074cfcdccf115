"""Words on where an error comes from."""

import pytest

from halfwise.records import Criterion, Decided
from halfwise.reporting.diagnosis import decided_advice, decided_part, decided_signs
from tests.unit.reporting.facts_planned import DECIDED, TASK

FOUND = Decided.model_validate(DECIDED)
ALONE = FOUND.model_copy(update={"nodes": ("choose",)})


def test_each_decision_and_what_leads_to_it():
    flip, before = decided_signs(FOUND)
    assert (flip.nodes, before.nodes) == (("choose",), ("/a",))
    assert len(decided_signs(ALONE)) == 1
    part = decided_part(FOUND, Criterion())
    assert (part.severity, part.nodes) == ("warning", ("choose",))


@pytest.mark.parametrize(
    ("found", "criterion", "kept", "metric"),
    [
        (FOUND, Criterion(), True, True),
        (ALONE, Criterion(), False, True),
        (FOUND, TASK, True, False),
    ],
)
def test_what_would_help_is_advised(found, criterion, kept, metric):
    """FP32 where something leads to a decision and may be low, a metric where there is none."""
    advice = " ".join(decided_advice(found, criterion, auto=False))
    assert ("/a" in advice, "--metric" in advice) == (kept, metric)
