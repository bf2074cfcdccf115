import pytest

from halfwise.emulation.paces import WORK, Paces


def test_work_takes_as_long_as_its_kind_did_or_as_stages_did_by_nodes():
    paces = Paces()
    assert paces.expected("observe", 100) == 0
    paces.add("loading", 10, 60.0)
    assert paces.expected("observe", 100) == 0
    paces.add("load", 100, 1.0)
    assert paces.expected("observe", 100) == pytest.approx(WORK["observe"])
    assert paces.expected("building", 1) == 0
    paces.add("reference", 100, 5.0)
    pace = (1.0 + 5.0) / (1 + WORK["reference"])
    assert paces.expected("observe", 100) == pytest.approx(pace * WORK["observe"])
    paces.add("observe", 100, 2.0)
    assert paces.expected("observe", 50) == pytest.approx(1)
    assert paces.expected("loading", 5) == pytest.approx(30)
