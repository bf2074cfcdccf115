"""What engines show of the cause, where errors, predictions and proofs are given."""

from halfwise.fixing.engines.candidates import Candidate
from halfwise.fixing.engines.causes import causes, idle
from halfwise.fixing.engines.localise import Departure
from halfwise.records import EngineRound, NodeName, NodePrecision, Precision, TensorName
from tests.unit.reporting.engine_runs import build, proof

A, B = NodeName("a"), NodeName("b")
NOTHING: frozenset[NodeName] = frozenset()


def tried(
    number: int, excess: float | None, *keep: NodeName, shown: Precision = "fp32"
) -> Candidate:
    """Return a build whose inspector shows what is kept as `shown`."""
    nodes = tuple(NodePrecision(node=n, precision=shown, asked="fp32") for n in keep)
    return Candidate(frozenset(keep), "", build(number, ""), excess, proof=proof(nodes=nodes))


def kinds(*candidates: Candidate, predicted: dict[int, float], **more):
    """Return the kinds of causes; the first candidate keeps nothing."""
    rounds = [
        EngineRound(step="", build=c.build.number, keep=tuple(c.keep), predicted=p, passed=c.passed)
        for c in candidates
        if (p := predicted.get(c.build.number)) is not None
    ]
    departures = more.pop("departures", {})
    passed = more.pop("passed", False)
    found = causes(candidates, candidates[0], rounds, departures, passed=passed, **more)
    return {cause.kind: cause for cause in found}


def test_a_kernel_is_blamed_where_the_engine_computes_what_was_asked():
    plain, kept = tried(1, 90.0), tried(2, 30.0, A)
    where = {2: Departure((B,), TensorName("t"), 0.5, 1e-4, 2)}
    found = kinds(plain, kept, predicted={1: 90.0, 2: 0.5}, departures=where)
    assert found.keys() == {"kernel"}
    assert (found["kernel"].builds, found["kernel"].nodes) == ((2,), (B,))
    assert (found["kernel"].excess, found["kernel"].other) == (30.0, 0.5)


def test_no_kernel_is_blamed_where_the_inspector_hides_what_is_kept():
    for shown in ("unknown", "mixed", "tf32"):
        kept = tried(2, 30.0, A, shown=shown)
        assert kinds(tried(1, 90.0), kept, predicted={1: 90.0, 2: 0.5}).keys() == {"unknown"}
    blind = Candidate(frozenset((A,)), "", build(2, ""), 30.0)
    assert kinds(tried(1, 90.0), blind, predicted={1: 90.0, 2: 0.5}).keys() == {"unknown"}


def test_no_kernel_is_blamed_for_rounding_in_other_places():
    # The emulation has it within the limit, and the engine is off by less than four times that.
    assert kinds(tried(1, 1.43), predicted={1: 0.6}).keys() == {"unknown"}
    assert kinds(tried(1, 1.43), predicted={1: 0.2}).keys() == {"kernel"}


def test_no_kernel_is_blamed_where_the_emulation_fails_too():
    found = kinds(tried(1, 90.0), tried(2, 30.0, A), predicted={1: 90.0, 2: 2.0})
    assert found.keys() == {"unknown"}


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
    assert (found["no-effect"].excess, found["no-effect"].other) == (89.0, 90.0)


def test_no_effect_is_told_only_where_one_was_predicted():
    plain, kept = tried(1, 90.0), tried(2, 89.0, A, shown="unknown")
    assert "no-effect" not in kinds(plain, kept, predicted={1: 90.0, 2: 60.0})
    assert idle(kept, plain)
    assert not idle(plain, plain)
    assert not idle(tried(3, 10.0, A), plain)
    assert not idle(tried(3, None, A), plain)


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
    first = tried(3, 30.0, A)
    predicted = {1: 90.0, 2: 0.5, 3: 0.5}
    assert kinds(plain, kept, first, predicted=predicted, passed=True).keys() == {"kernel"}
