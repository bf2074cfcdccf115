"""What is not asked for again."""

from dataclasses import replace

import pytest

from halfwise.fixing.engines.attempts import USUAL, Candidate, Terms
from halfwise.fixing.engines.moves import Refusals
from halfwise.graph.roles import roles_of
from tests.unit.casing import names
from tests.unit.fixing.engines.test_moves import REGION, moving
from tests.unit.reporting.engine_runs import build

LOG = (
    "10: Error Code 10: Internal Error (Could not find any implementation for node "
    "{ForeignNode[s0...t3]}.)",
)
ENDS = ("s0", "t3")
KEPT = names("s1", "s2", "m7")


def remembering(*, shown=True, status="failed", log=LOG):
    net = moving()
    roles = roles_of(net)
    refusals = Refusals(
        net,
        roles,
        lambda plan: frozenset(plan[1].constrained(net, roles, plan[0])),
        lambda: {ENDS: REGION} if shown else {},
    )
    unbuilt = {"engine": None, "status": status, "log": log, "message": "No engine."}
    made = Candidate(KEPT, "", build(2, "").model_copy(update=unbuilt))
    refusals.take(made.build, made.plan)
    return refusals, made


@pytest.mark.parametrize(
    ("keep", "terms", "expected"),
    [
        (KEPT, USUAL, True),
        (KEPT - names("m7"), USUAL, True),  # far from the region
        (KEPT | names("m0"), USUAL, False),  # next to it
        (KEPT | names("s3"), USUAL, False),
        (KEPT, Terms(level=5), False),
        (KEPT, Terms(tf32=True), False),
        (KEPT, Terms(border=REGION), True),  # which frees nothing there
        (KEPT | names("t1"), Terms(computing=REGION), True),  # the same constraints
        (KEPT | names("t1"), USUAL, False),
    ],
)
def test_the_same_in_the_region_and_next_to_it_is_refused_likewise(keep, terms, expected):
    refusals, _ = remembering()
    assert refusals.expected((keep, terms)) == expected
    (told,) = refusals.records()
    assert told.avoided == (expected and (keep, terms) != (KEPT, USUAL))


@pytest.mark.parametrize("before", [False, True])
def test_an_engine_that_is_the_same_there_shows_that_it_can_be_built(before):
    refusals, made = remembering()
    built = Candidate(KEPT - names("m7"), "", build(3, ""))
    if before:
        refusals.found.clear()
    refusals.take(built.build, built.plan)
    if before:
        refusals.take(made.build, made.plan)
    assert not refusals.expected((KEPT - names("m7"), USUAL))
    assert not refusals.expected((KEPT, USUAL))
    (told,) = refusals.records()
    assert (told.build, told.avoided) == (2, 0)


def test_an_engine_that_differs_there_shows_nothing_of_it():
    refusals, _ = remembering()
    refusals.take(build(3, ""), (KEPT | names("s3"), USUAL))
    assert refusals.expected((KEPT - names("m7"), USUAL))


def test_of_a_region_that_no_engine_shows_only_the_same_constraints_are_alike():
    refusals, _ = remembering(shown=False)
    assert refusals.expected((KEPT, USUAL))
    assert not refusals.expected((KEPT - names("m7"), USUAL))
    (told,) = refusals.records()
    assert (told.ends, told.shown, told.avoided) == (ENDS, False, 0)


@pytest.mark.parametrize(
    ("status", "kind"), [("failed", "no-kernel"), ("crashed", "crash"), ("timeout", "timeout")]
)
def test_what_is_told_of_a_refusal(status, kind):
    refusals, made = remembering(status=status)
    for _ in range(2):
        refusals.expected((KEPT - names("m7"), USUAL))
    (told,) = refusals.records()
    assert (told.kind, told.build, told.ends, told.shown) == (kind, 2, ENDS, True)
    assert told.nodes == ("s0", "t0", "s1", "t1", "s2", "t2", "s3", "t3")
    assert told.avoided == 1  # each plan counts once
    assert refusals.of(made).kind == kind


@pytest.mark.parametrize("status", ["lost", "skipped", "built"])
def test_what_was_not_refused_is_nothing_to_remember(status):
    refusals, made = remembering(status=status)
    assert refusals.records() == ()
    assert not refusals.expected(made.plan)
    assert refusals.of(made).region.nodes == frozenset(refusals.roles)
    assert not refusals.is_elsewhere(made)


def test_another_region_is_told_from_the_same():
    refusals, made = remembering()
    assert refusals.is_elsewhere(made)
    again = replace(made, build=made.build.model_copy(update={"number": 3}))
    refusals.take(again.build, again.plan)
    assert not refusals.is_elsewhere(again)
    log = (LOG[0].replace("t3", "m1"),)
    other = replace(made, build=made.build.model_copy(update={"number": 4, "log": log}))
    refusals.take(other.build, other.plan)
    assert refusals.is_elsewhere(other)
