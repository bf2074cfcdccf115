import pytest

from halfwise.records import Baseline, Change
from tests.unit.records.journey import any_of, assert_unchanged, drawn


@pytest.mark.parametrize("kind", [Baseline, Change])
@drawn
def test_goes_to_json_and_back(kind, data):
    assert_unchanged(data.draw(any_of(kind)))


def test_one_figure_that_got_worse_is_enough():
    fine = Change(kind="cost", before=1.0, now=1.0, limit=1.0, passed=True)
    found = Baseline(run="r", date="d", same_samples=True, changes=(fine,))
    assert found.passed
    worse = fine.model_copy(update={"passed": False})
    assert not found.model_copy(update={"changes": (fine, worse)}).passed
