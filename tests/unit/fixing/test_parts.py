"""The parts of the plans of small models."""

import pytest

from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import fix
from halfwise.fixing.parts import MOST, parts
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from tests import models

pytestmark = pytest.mark.usefixtures("unrepaired")


@pytest.fixture(scope="module")
def ruled() -> Fixed:
    """Four nodes are needed, and a rule keeps a fifth."""
    ill = models.layer_norm()
    request = understand(dict(ill.inputs), {"keep": ["divide"]})
    case = load_case(ill.proto, request.data, request.criterion)
    return fix(case, request.settings, Silent())


def test_rules_come_first_then_what_guards_name_then_operators(ruled):
    found = parts(ruled.planner, ruled.found.kept)
    kinds = [part.kind for part in found]
    assert kinds == sorted(kinds, key=["rule", "guard", "operator"].index)
    assert found[0].name == "--keep divide"
    assert found[0].nodes == {"divide"}
    guards = {guard.kind for guard in ruled.planner.guards}
    assert {part.name for part in found if part.kind == "guard"} <= guards
    assert {"guard", "operator"} <= set(kinds)


def test_no_part_is_told_twice_and_none_is_the_plan(ruled):
    found = [part.nodes for part in parts(ruled.planner, ruled.found.kept)]
    assert len(found) == len(set(found)) <= MOST
    assert ruled.found.kept not in found


def test_nothing_kept_has_no_parts(ruled):
    assert parts(ruled.planner, frozenset()) == []


def test_what_each_part_buys_is_measured_alone_and_on_top(ruled):
    curve, forced = ruled.curve, {"divide"}
    assert [row.name for row in curve.rows] == [
        part.name for part in parts(ruled.planner, ruled.found.kept)
    ]
    for part, row in zip(parts(ruled.planner, ruled.found.kept), curve.rows, strict=True):
        assert row.alone is not None
        assert curve.kept(curve.points[row.alone]) == part.nodes | forced
        if part.kind == "rule":
            assert row.without is None
        else:
            assert row.without is not None
            without = curve.points[row.without]
            assert curve.kept(without) == ruled.found.kept - part.nodes | forced
            assert without.error > curve.points[curve.plan or 0].error
