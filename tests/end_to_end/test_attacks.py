"""Broken candidates that must not pass, and hostile files: the quick attacks of three families."""

import pytest

from bench import attack

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", ["files", "lies", "unjudged"])
def test_halfwise_withstands(tmp_path, family):
    found = [*attack.tried([attack.module_of(family)], tmp_path, quick=True, servers=1)]
    assert found
    assert {t.attack.name: (t.faults, t.outcome.err) for t in found if t.faults} == {}
