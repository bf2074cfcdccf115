"""What engines show of why nothing low passed."""

from math import inf

from halfwise.fixing.engines.attempts import Candidate, causes
from halfwise.records import Band, EngineRound, NodeName, NodePrecision, Precision, Refusal
from halfwise.reporting.rungs import cause_line
from tests.unit.fixing.engines.test_table import NOTHING
from tests.unit.reporting.engine_runs import build, failed, proof

A, B, C = NodeName("a"), NodeName("b"), NodeName("c")


def tried(
    number: int,
    excess: float | None,
    *keep: NodeName,
    shown: Precision = "fp32",
    explained: Band | None = None,
) -> Candidate:
    """Return a build whose inspector shows what is kept as `shown`."""
    nodes = tuple(NodePrecision(node=n, precision=shown, asked="fp32") for n in keep)
    return Candidate(
        frozenset(keep), "", build(number, ""), excess, proof=proof(nodes=nodes), band=explained
    )


def kinds(*candidates: Candidate, predicted: dict[int, float], **more):
    """Return the kinds of causes; the first candidate keeps nothing."""
    rounds = [
        EngineRound(
            step="",
            build=c.build.number,
            keep=tuple(sorted(c.keep)),
            predicted=predicted.get(c.build.number),
            passed=c.passed,
        )
        for c in candidates
    ]
    passed = more.pop("passed", False)
    found = causes(candidates, rounds, passed=passed, **more)
    return {cause.kind: cause for cause in found}


def band(most: float, **more: bool) -> Band:
    """Return a band that ends at `most`."""
    return Band(least=most / 2, most=most, **more)


def test_an_error_inside_its_band_is_one_of_precision():
    off, worse = tried(1, 1.4, explained=band(1.5)), tried(2, 9.0, A, explained=band(0.5))
    found = kinds(off, worse, predicted={1: 1.2, 2: 0.4})
    assert found.keys() == {"precision"}
    assert found["precision"].builds == (1,)
    assert (found["precision"].excess, found["precision"].band) == (1.4, band(1.5))
    # Better than expected is explained too: a builder may compute more in FP32 than it must.
    better = kinds(tried(1, 1.4, explained=band(90.0)), predicted={1: 90.0})
    assert better.keys() == {"precision"}


def without(number: int, *keep: NodeName) -> Candidate:
    """Return a build without an engine."""
    return Candidate(frozenset(keep), "", failed(number))


def test_where_all_that_is_predicted_to_pass_was_refused_plain_precision_is_no_cause():
    plain = tried(4, 99.0, explained=band(100.0))
    refused = [Refusal(kind="no-kernel", build=n, ends=("a", "b"), nodes=(A, B)) for n in (3, 5)]
    predicted = {3: 0.1, 4: 99.0, 5: 0.1}
    given = plain, without(3, A), without(5, A, B)
    (found,) = kinds(*given, predicted=predicted, refusals=refused).values()
    assert (found.kind, found.builds, found.nodes) == ("refused", (3, 5), (A, B))
    assert (found.excess, found.band) == (99.0, band(100.0))
    assert cause_line(found) == (
        "the builder refused every plan that the emulation predicts to pass, at 2 nodes from a to "
        "b (builds 3, 5); the nearest engine has 99 times what is allowed, where low precision "
        "explains 50 to 100"
    )
    # In several places none is told; of a build that was lost nothing is known.
    elsewhere = [refused[0], Refusal(kind="crash", build=5)]
    assert kinds(*given, predicted=predicted, refusals=elsewhere)["refused"].nodes == ()
    assert kinds(*given, predicted=predicted, refusals=refused[:1]).keys() == {"unknown"}
    # What is predicted to fail, and was refused, explains nothing; nor where another one ran.
    assert kinds(*given, predicted={4: 99.0, 3: 2.0}, refusals=refused).keys() == {"precision"}
    ran = plain, without(3, A), tried(5, 1.2, A, B, explained=band(1.3))
    assert kinds(*ran, predicted=predicted, refusals=refused[:1]).keys() == {"precision"}
    metric = kinds(*given, predicted=predicted, refusals=refused, relative=False)
    assert metric["refused"].excess is None


def test_an_error_outside_that_no_engine_locates_is_unknown():
    for explained in (None, band(1.3)):
        (found,) = kinds(tried(1, 1.4, explained=explained), predicted={1: 1.2}).values()
        assert (found.kind, found.band, found.other) == ("unknown", explained, 1.2)


def test_what_may_overflow_explains_infinities_and_nothing_else():
    overflow = band(0.5, may_overflow=True)
    assert kinds(tried(1, inf, explained=overflow), predicted={}).keys() == {"precision"}
    assert kinds(tried(1, 40.0, explained=overflow), predicted={}).keys() == {"unknown"}


def test_a_kernel_is_blamed_where_an_engine_without_it_is_right():
    plain = tried(1, 90.0, explained=band(99.0))
    wrong = tried(2, 30.0, A, explained=band(0.5))
    wide = tried(3, 0.3, A, B, C, explained=band(0.5))
    near = tried(4, 0.3, A, B, explained=band(0.5))
    predicted = {1: 90.0, 2: 0.5, 3: 0.4, 4: 0.4}
    found = kinds(plain, wrong, wide, near, predicted=predicted, passed=True)
    assert found.keys() == {"kernel"}
    assert (found["kernel"].builds, found["kernel"].nodes) == ((2, 4), (B,))
    assert (found["kernel"].excess, found["kernel"].band) == (30.0, band(0.5))
    # Right is also what is off by no more than precision explains.
    fails = tried(4, 1.2, A, B, explained=band(1.5))
    assert kinds(plain, wrong, fails, predicted=predicted)["kernel"].nodes == (B,)


def test_no_kernel_is_blamed_without_such_an_engine():
    plain, wrong = tried(1, 90.0, explained=band(99.0)), tried(2, 30.0, A, explained=band(0.5))
    other = tried(3, 0.3, B, explained=band(0.5))
    predicted = {1: 90.0, 2: 0.5, 3: 0.4}
    assert kinds(plain, wrong, predicted=predicted).keys() == {"unknown"}
    assert kinds(plain, wrong, other, predicted=predicted, passed=True) == {}


def test_no_kernel_is_blamed_where_the_inspector_hides_what_is_kept():
    near = tried(3, 0.3, A, B, explained=band(0.5))
    for shown in ("unknown", "mixed", "tf32"):
        wrong = tried(2, 30.0, A, shown=shown, explained=band(0.5))
        predicted = {2: 0.5, 3: 0.4}
        assert kinds(tried(1, 0.1), wrong, near, predicted=predicted, passed=True) == {}


def test_engines_within_the_tolerance_are_not_called_off():
    # What passed the search may fail on held-out samples: no cause is known of that.
    assert kinds(tried(1, 0.2), tried(2, 0.1, A), predicted={1: 0.2, 2: 0.1}) == {}
    (found,) = kinds(tried(1, 7.0), tried(2, 0.1, A), predicted={1: 8.0, 2: 0.1}).values()
    assert (found.kind, found.builds, found.excess) == ("unknown", (1,), 7.0)


def test_what_a_metric_falls_is_no_share_of_what_is_allowed():
    # 1 plus what it falls beyond its allowance: from 0.9 too much to 0.2 is an effect.
    plain, kept = tried(1, 1.9), tried(2, 1.2, A)
    found = kinds(plain, kept, predicted={1: 1.9, 2: -3.0}, relative=False)
    assert found.keys() == {"unknown"}
    assert found["unknown"].excess is None
    ignored = tried(2, 1.9, A, shown="fp16")
    assert kinds(plain, ignored, predicted={1: 1.9, 2: 0.9}, relative=False).keys() == {"ignored"}


def test_constraints_that_are_not_honoured_are_told():
    plain, kept = tried(1, 90.0), tried(2, 89.0, A, shown="fp16")
    found = kinds(plain, kept, predicted={1: 90.0, 2: 0.5})
    assert found["ignored"].nodes == (A,)
    assert "kernel" not in found


def test_engines_that_are_not_there_blame_nobody():
    none = [
        Candidate(NOTHING, "", build(n, "").model_copy(update={"engine": None})) for n in (1, 2)
    ]
    found = kinds(*none, predicted={})
    assert found.keys() == {"no-engine"}
    assert found["no-engine"].builds == (1, 2)
    assert kinds(tried(1, None), none[1], predicted={}).keys() == {"not-run"}


def test_engines_that_were_lost_show_nothing():
    unbuilt = build(1, "").model_copy(update={"engine": None, "status": "lost"})
    lost = [Candidate(NOTHING, "", unbuilt), Candidate(NOTHING, "", build(2, ""), lost=True)]
    assert kinds(*lost, predicted={})["lost"].builds == (1, 2)
    found = kinds(*lost, tried(3, None), predicted={})
    assert {kind: cause.builds for kind, cause in found.items()} == {"not-run": (3,)}


def test_where_a_plan_passed_only_what_was_seen_on_the_way_is_told():
    plain, kept = tried(1, 90.0), tried(2, 0.4, A)
    assert kinds(plain, kept, predicted={1: 90.0, 2: 0.5}, passed=True) == {}
