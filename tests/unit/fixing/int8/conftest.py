import pytest


@pytest.fixture(autouse=True)
def _evaluations(monkeypatch):
    """The models here have a handful of nodes; half as many evaluations would settle nothing."""
    monkeypatch.setattr("halfwise.fixing.space.FEWEST_EVALUATIONS", 99)
