"""What a builder refused, by its log, and what is tried in its place."""

import pytest

from halfwise.fixing.engines.plan import EnginePlan
from halfwise.fixing.engines.refusals import instead, refusals
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.records import Refusal, RefusalKind
from tests import models
from tests.unit.casing import names
from tests.unit.reporting.engine_runs import build, failed

NORM = network_from_proto(models.layer_norm().proto)
ROLES = roles_of(NORM)
NAMED = ("square", "variance", "eps", "root")
SAID = "Could not find any implementation for node {ForeignNode[square...root]}."


def test_the_region_is_between_the_ends_that_the_builder_named():
    refused = failed(3, status="failed", signal=None, message=SAID)
    (found,) = refusals([build(1, ""), refused], NORM, ROLES)
    assert (found.kind, found.build, found.ends) == ("no-kernel", 3, ("square", "root"))
    assert found.nodes == NAMED
    assert SAID.rstrip(".") in found.said


@pytest.mark.parametrize(("status", "kind"), [("crashed", "crash"), ("timeout", "timeout")])
def test_what_named_no_layer_has_no_region(status, kind):
    (found,) = refusals([failed(2, status=status)], NORM, ROLES)
    assert (found.kind, found.ends, found.nodes) == (kind, (), ())


def test_what_is_lost_or_interrupted_was_not_refused():
    builds = [build(n, "", status=s, engine=None) for n, s in ((1, "lost"), (2, "interrupted"))]
    assert refusals(builds, NORM, ROLES) == ()


def tried(kept, kind: RefusalKind = "no-kernel", nodes=NAMED, *, level=True, **plan):
    """Return what is tried in place of a plan of twelve nodes, as kinds and sets."""
    computing = ROLES.computing | names(*(f"other{i}" for i in range(8)))
    own = EnginePlan(names(*kept), "fp16", **plan)
    refused = Refusal(kind=kind, build=3, ends=("square", "root"), nodes=nodes)
    found = [*instead(own, refused, 3, computing, level=level)]
    assert {move.refused for move, _ in found} == {3}
    return [(move.kind, plan.keep, plan.level) for move, plan in found]


def test_the_whole_region_then_levels_then_nothing_there():
    kept, whole = names("square", "other0"), names(*NAMED, "other0")
    assert tried(kept) == [
        ("region", whole, None),
        ("level", kept, 5),
        ("level", kept, 1),
        ("none", names("other0"), None),
    ]
    assert [level for kind, _, level in tried(kept, "crash") if kind == "level"] == [1, 5]
    assert [kind for kind, *_ in tried(kept, level=False)] == ["region", "none"]
    assert [kind for kind, *_ in tried(kept, level=True)][1:3] == ["level"] * 2


def test_without_kept_nodes_in_the_region_it_is_the_whole_model():
    """More than half in FP32 is hardly mixed, so that comes late."""
    found = tried(names("other0"))
    assert [kind for kind, *_ in found] == ["level", "level", "region", "none"]
    assert found[-1][1] == names()
    assert [kind for kind, *_ in tried(names("square"), nodes=())] == [
        *("level", "level", "region", "none")
    ]


def test_a_lost_plan_has_no_region():
    plan = EnginePlan(names("square"), "fp16")
    kinds = [move.kind for move, _ in instead(plan, None, 2, ROLES.computing, level=False)]
    assert kinds == ["region", "none"]
