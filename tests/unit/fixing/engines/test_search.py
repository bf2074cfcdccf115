"""The search in a world where a rule says which engines exist, pass and are fast."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from halfwise.fixing.engines.attempts import USUAL, Assignment, Candidate, Chosen, Plan, Step, Terms
from halfwise.fixing.engines.moves import Proposal
from halfwise.fixing.engines.prediction import Prediction
from halfwise.fixing.engines.proposals import Budget, Proposals
from halfwise.fixing.engines.search import EngineSearch, Units
from halfwise.records import BuildOutcome, NodeName, ProvenEngine
from tests.unit.reporting.engine_runs import build, latency

ORDER = tuple(NodeName(f"n{i}") for i in range(8))
NOTHING: Assignment = frozenset()
Added = tuple[str, Assignment]


def names(*numbers: int) -> Assignment:
    return frozenset(ORDER[i] for i in numbers)


def always(needed: Assignment) -> Callable[[Assignment, int], bool]:
    return lambda keep, _: needed <= keep


@dataclass
class World:
    """Engines by rule.

    Attributes:
        passes: Whether build `number` of a plan passes.
        builds: Whether a plan can be built.
        speed: Milliseconds of a plan.
        culprits: What is proposed for plans that fail.
        others: What they propose instead of plans that cannot be built.
        islands: Wider islands.
        tf32: Factor of TF32 on the milliseconds.
        products: Whether TF32 makes what is kept faster.
    """

    passes: Callable[[Assignment, int], bool]
    can_be_built: Callable[[Assignment], bool] = lambda _: True
    speed: Callable[[Assignment], float] = lambda _: 1.0
    added: tuple[Assignment, ...] = ()
    others: tuple[Assignment, ...] = ()
    islands: tuple[Assignment, ...] = ()
    tf32: float = 1.0
    products: bool = False
    attempts: Counter[Assignment] = field(default_factory=Counter)
    steps: list[str] = field(default_factory=list)

    def attempt(self, keep: Assignment, step: Step, terms: Terms = USUAL) -> Candidate:
        self.attempts[keep] += 1
        self.steps.append(str(step))
        made = build(self.attempts.total(), str(step))
        if not self.can_be_built(keep):
            return Candidate(keep, step, made.model_copy(update={"engine": None}), terms=terms)
        excess = 0.5 if self.passes(keep, self.attempts[keep]) else 20.0
        speed = self.speed(keep) * (self.tf32 if terms.tf32 else 1.0)
        return Candidate(keep, step, made, excess, latency(speed), terms=terms)

    def lose(self, keep: Assignment, step: Step, terms: Terms = USUAL) -> Candidate:
        return replace(self.attempt(keep, step, terms), excess=None, lost=True)

    def search(
        self, *, left: int = 6, builds: int = 3, ruled: Assignment = NOTHING
    ) -> EngineSearch:
        return EngineSearch(self.attempt, Proposed(self), ORDER, Budget(left), builds, ruled=ruled)


class Proposed(Proposals):
    """What a world proposes."""

    def __init__(self, world: World) -> None:
        self.world = world

    def culprits(self, failed: Candidate) -> Iterator[Added]:  # noqa: ARG002
        yield from (("add", nodes) for nodes in self.world.added)

    def unbuildable(self, failed: Candidate) -> Iterator[Proposal]:
        yield from (Proposal("instead", nodes, failed.terms) for nodes in self.world.others)

    def hear(self, candidate: Candidate) -> None:
        pass

    def refused(self, plan: Plan) -> bool:  # noqa: ARG002
        return False

    def is_elsewhere(self, refused: Candidate) -> bool:  # noqa: ARG002
        return False

    def gains_from_tf32(self, keep: Assignment) -> bool:  # noqa: ARG002
        return self.world.products

    def wider(self, keep: Assignment) -> list[Added]:
        return [("island", keep | nodes) for nodes in self.world.islands]


def run(world: World, start: Assignment, left: int = 6) -> Chosen:
    return world.search(left=left).run(start)


def best(chosen: Chosen) -> Candidate:
    assert chosen.best is not None
    return chosen.best


sets = st.sets(st.sampled_from(ORDER)).map(frozenset)


@given(
    needed=sets,
    start=sets,
    added=st.lists(sets, max_size=4),
    stuck=st.lists(sets, max_size=3),
    left=st.integers(1, 8),
    builds=st.integers(1, 4),
    ruled=sets,
    luck=st.randoms(use_true_random=False),
    lucky=st.booleans(),
)
def test_what_is_delivered_passed_and_the_budget_holds(
    needed, start, added, stuck, left, builds, ruled, luck, lucky
):
    draws: dict[tuple[Assignment, int], bool] = {}

    def passes(keep: Assignment, number: int) -> bool:
        if needed <= keep:
            return True
        return draws.setdefault((keep, number), lucky and luck.random() < 0.3)

    world = World(
        passes,
        lambda keep: keep not in stuck,
        added=tuple(added),
        others=tuple(keep | ruled for keep in added),
    )
    search = world.search(left=left, builds=builds, ruled=ruled)
    start |= ruled
    chosen = search.run(start)
    plans = [keep for keep in world.attempts if keep]
    assert len(plans) + (start == NOTHING) <= left
    assert max(world.attempts.values()) <= builds or builds == 1
    assert sum(world.attempts.values()) == sum(map(len, search.tried.values()))
    if chosen.best is None:
        assert chosen.excesses == ()
        return
    assert chosen.best.passed
    assert chosen.best.keep >= ruled
    known = search.tried[chosen.best.plan]
    assert chosen.best in known
    passed = sum(c.passed for c in known)
    assert passed > len(known) / 2
    if passed == len(known):
        assert len(known) == builds
    assert chosen.excesses == tuple(c.excess for c in known if c.excess is not None)


@given(needed=sets, more=sets)
def test_with_builds_enough_the_plan_is_the_smallest(needed, more):
    assume(needed)
    chosen = run(World(always(needed)), needed | more, left=100)
    assert best(chosen).keep == needed
    assert chosen.minimal
    assert len(chosen.excesses) == 3


def test_a_plan_that_keeps_nothing_is_minimal():
    world = World(always(NOTHING))
    chosen = run(world, NOTHING)
    assert (best(chosen).keep, chosen.minimal) == (NOTHING, True)
    assert world.attempts == {NOTHING: 3}


def test_plain_low_precision_that_is_enough_is_delivered_in_place_of_the_plan():
    world = World(always(NOTHING))
    chosen = run(world, names(1, 2))
    assert (best(chosen).keep, chosen.minimal) == (NOTHING, True)
    assert world.attempts == {names(1, 2): 1, NOTHING: 3}


def test_what_passes_by_luck_in_one_build_of_three_is_not_delivered():
    def passes(keep: Assignment, number: int) -> bool:
        return names(3) <= keep or (keep == NOTHING and number == 1)

    chosen = run(World(passes), names(3))
    assert best(chosen).keep == names(3)
    chosen = run(World(passes, added=(names(3),)), NOTHING)
    assert best(chosen).keep == names(3)
    assert any("keeping 0 nodes passed in only 1 of 2 builds" in note for note in chosen.notes)
    assert run(World(passes), NOTHING).best is None


def test_a_smaller_plan_that_is_not_confirmed_falls_back_to_the_larger_one():
    def passes(keep: Assignment, number: int) -> bool:
        return names(0, 1) <= keep or (keep == names(0) and number < 3)

    chosen = run(World(passes), names(0, 1))
    assert best(chosen).keep == names(0, 1)
    assert not chosen.minimal
    assert "keeping 1 node passed in only 2 of 3 builds" in chosen.notes


def test_mostly_right_is_delivered_with_its_spread_where_nothing_better_is_left():
    chosen = run(World(lambda keep, number: keep != NOTHING and number != 3), names(0), left=1)
    assert best(chosen).passed
    assert chosen.excesses == (0.5, 0.5, 20.0)


def test_a_failing_plan_takes_what_is_proposed_until_one_passes():
    world = World(always(names(0, 4)), added=(names(0), names(4), names(5)))
    chosen = run(world, names(0), left=2)
    assert best(chosen).keep == names(0, 4)
    steps = ["the plan of the emulation", "plain low precision", "add"]
    assert world.steps[:3] == steps


def test_others_are_steady_plans_that_follow_the_rules_fastest_first():
    world = World(
        lambda keep, number: number == 1 or keep >= names(0), speed=lambda k: 1.0 + len(k)
    )
    search = world.search(builds=2)
    for keep in (names(0, 1, 2), names(0, 1), names(3), NOTHING):
        for _ in range(2):
            search._attempt(keep, "")
    assert [len(c.keep) for c in search.others(None)] == [2, 3]
    best = search.others(None)[0]
    assert [len(c.keep) for c in search.others(best)] == [3]
    search.ruled = names(2)
    assert [len(c.keep) for c in search.others(None)] == [3]


def test_what_cannot_be_built_is_replaced():
    world = World(
        always(names(2)),
        lambda keep: keep != names(2),
        others=(names(1, 2, 3), NOTHING),
    )
    chosen = run(world, names(2), left=2)
    assert best(chosen).keep == names(1, 2, 3)


def test_nothing_is_left_to_try():
    world = World(always(names(7)), added=(NOTHING,))
    search = world.search()
    chosen = search.run(names(1))
    assert chosen.plain is not None
    assert (chosen.best, chosen.plain.keep) == (None, NOTHING)
    assert world.attempts == {names(1): 1, NOTHING: 1}
    closest = search.closest()
    assert closest is not None
    assert closest.excess == 20.0
    assert len(closest.keep) == max(len(keep) for keep, _ in search.tried)


def test_where_no_engine_runs_none_is_closest():
    search = World(always(NOTHING), lambda _: False).search()
    assert search.run(names(1)).best is None
    assert search.closest() is None


@pytest.mark.parametrize(("slow", "kept"), [(2.0, names(3)), (1.0, names(2, 3, 4))])
def test_a_unit_is_kept_whole_and_in_part_where_that_is_faster(slow, kept):
    world = World(always(names(3)), speed=lambda keep: slow if names(2) <= keep else 1.0)
    units = Units((names(2, 3, 4), names(5, 6)), names(3))
    chosen = replace(world.search(left=8), units=units).run(names(3, 7))
    assert chosen.best is not None
    assert chosen.best.keep == kept
    assert next(iter(world.attempts)) == names(2, 3, 4, 7)
    assert ("attention cores in part" in world.steps) == (slow > 1)
    assert chosen.minimal == (slow == 1)


def test_wider_islands_where_mixed_is_slow():
    def speed(keep: Assignment) -> float:
        return {0: 1.0, 1: 2.0, 2: 1.5}.get(len(keep), 1.05)

    world = World(always(names(0)), speed=speed, islands=(names(1), names(1, 2), names(1, 2, 3)))
    chosen = run(world, names(0))
    assert best(chosen).keep == names(0, 1, 2)
    assert not chosen.minimal
    assert names(0, 1, 2, 3) not in world.attempts
    slow = run(World(always(names(0)), speed=speed, islands=(names(1),)), names(0), left=1)
    assert best(slow).keep == names(0)


def test_wider_islands_have_to_be_confirmed():
    def passes(keep: Assignment, number: int) -> bool:
        return keep == names(0) or (keep == names(0, 1) and number == 1)

    speeds = {NOTHING: 1.0, names(0): 2.0, names(0, 1): 1.0}
    chosen = run(World(passes, speed=speeds.__getitem__, islands=(names(1),)), names(0))
    assert best(chosen).keep == names(0)
    assert "a faster engine of another plan did not pass in every build" in chosen.notes


def test_the_fastest_build_of_the_plan_is_delivered():
    world = World(always(names(0)))
    world.speed = lambda keep: 10.0 / (1 + world.attempts[keep])
    chosen = run(world, names(0))
    assert best(chosen).latency == latency(2.5)


def test_after_samples_have_joined_the_smallest_known_plan_that_passes_is_taken():
    world = World(always(names(0)))
    search = world.search(left=6)
    first = search.run(names(0, 1, 2, 3))
    assert best(first).keep == names(0)
    before = dict(world.attempts)

    def again(candidate: Candidate) -> Candidate:
        needed = names(0, 1)
        excess = 0.5 if needed <= candidate.keep else 20.0
        return Candidate(candidate.keep, candidate.step, candidate.build, excess, candidate.latency)

    world.passes = always(names(0, 1))
    second = search.again(best(first).keep, again)
    assert best(second).passed
    assert names(0, 1) <= best(second).keep
    assert sum(world.attempts.values()) <= sum(before.values()) + 3
    assert len([keep for keep in world.attempts if keep]) <= 6


def test_nothing_known_passes_and_no_build_is_left():
    world = World(always(names(0)))
    search = world.search(left=1)
    first = search.run(names(0))
    gone = search.again(
        best(first).keep, lambda c: Candidate(c.keep, c.step, c.build, 20.0, c.latency)
    )
    assert gone.best is None


def test_tf32_is_allowed_where_what_is_kept_is_slow_without():
    kept = names(1, 2)
    world = World(always(kept), speed=lambda keep: 3.0 if keep else 1.0, tf32=0.35, products=True)
    chosen = run(world, kept)
    assert best(chosen).terms.tf32
    assert best(chosen).keep == kept
    assert any("TF32 is allowed" in note for note in chosen.notes)
    assert len(chosen.excesses) == 3  # confirmed like any other plan


def test_tf32_is_left_alone_where_the_plan_is_fast_enough():
    kept = names(1, 2)
    chosen = run(World(always(kept), tf32=0.1, products=True), kept)
    assert not best(chosen).terms.tf32


def test_shrinking_a_slow_plan_leaves_builds_for_making_it_faster():
    kept = names(*range(8))
    world = World(always(kept), speed=lambda keep: 3.0 if keep else 1.0, products=True, tf32=0.3)
    assert best(run(world, kept, left=4)).terms.tf32


class Foretold(Prediction):
    """Emulation by rule; each prediction is an error, 1 being the limit."""

    def __init__(
        self, with_fusion: Callable[[Assignment], float], storage: Callable[[Assignment], float]
    ) -> None:
        self.with_fusion, self.storage = with_fusion, storage
        self.learnt: list[int] = []

    def learn(self, plain: BuildOutcome) -> None:
        self.learnt.append(plain.number)

    def enough(self, keep: Assignment) -> bool:
        return self.with_fusion(keep) <= 1

    def beyond(self, keep: Assignment) -> bool:
        return self.error(keep) > 2

    def error(self, keep: Assignment) -> float:
        return min(self.with_fusion(keep), self.storage(keep))

    def excess(self, keep: Assignment) -> float:
        return self.with_fusion(keep)


def needs(needed: Assignment, error: float = 20.0) -> Callable[[Assignment], float]:
    return lambda keep: 0.5 if needed <= keep else error


def foretelling(world: World, prediction: Foretold, *, left: int = 6) -> EngineSearch:
    return replace(world.search(left=left), prediction=prediction)


def test_what_emulation_rules_out_is_not_built():
    needed = names(0, 1, 2, 3, 4, 5, 6, 7)
    world = World(always(needed))
    chosen = foretelling(world, Foretold(needs(needed), needs(needed))).run(needed)
    assert world.attempts == {needed: 3, NOTHING: 1}
    assert (best(chosen).keep, chosen.minimal, chosen.predicted) == (needed, True, needed)
    assert chosen.notes == (
        "emulation, with fusion and without, puts 14 smaller sets of kept nodes beyond the limit "
        "by more than chance explains, so they were not built; only this prediction shows that 8 "
        "of 8 kept nodes are needed",
    )


def test_where_fusion_needs_nothing_plain_is_built_first_and_is_enough():
    world = World(always(NOTHING))
    chosen = foretelling(world, Foretold(needs(NOTHING), needs(names(1)))).run(names(1))
    assert world.attempts == {NOTHING: 3}
    assert (best(chosen).keep, chosen.minimal, chosen.predicted) == (NOTHING, True, NOTHING)


def test_where_fusion_is_wrong_about_nothing_the_plan_is_built_after_all():
    world = World(always(names(1)))
    chosen = foretelling(world, Foretold(needs(NOTHING), needs(names(1)))).run(names(1))
    assert world.attempts == {NOTHING: 1, names(1): 3}
    assert (best(chosen).keep, chosen.minimal) == (names(1), True)


def test_what_is_enough_with_fusion_is_built_at_once():
    world = World(always(names(2, 5)))
    prediction = Foretold(needs(names(2, 5)), needs(frozenset(ORDER)))
    chosen = foretelling(world, prediction).run(frozenset(ORDER))
    assert world.attempts == {frozenset(ORDER): 1, NOTHING: 1, names(2, 5): 3}
    assert (best(chosen).keep, chosen.minimal) == (names(2, 5), True)
    assert chosen.predicted == names(2, 5)
    assert prediction.learnt == [2]


def test_a_proposal_that_fails_leaves_the_search_as_it_was():
    world = World(always(names(2, 5)))
    prediction = Foretold(needs(names(2), 2.0), needs(names(2, 5)))
    chosen = foretelling(world, prediction, left=100).run(frozenset(ORDER))
    assert world.attempts[names(2)] == 1
    assert best(chosen).keep == names(2, 5)
    assert chosen.minimal


def test_an_engine_much_better_than_predicted_refutes_the_emulation():
    needed = names(0, 1)
    start = names(0, 1, 2, 3)
    world = World(always(needed))  # plain fails by 20
    doomed = Foretold(needs(start, 35.0), needs(start, 35.0))
    assert best(foretelling(world, doomed).run(start)).keep == start
    refuted = Foretold(needs(start, 70.0), needs(start, 80.0))
    chosen = foretelling(World(always(needed)), refuted).run(start)
    assert best(chosen).keep == needed
    assert (chosen.minimal, chosen.predicted, chosen.notes) == (True, NOTHING, ())


@given(needed=sets, more=sets, fused=sets, stored=sets, left=st.integers(1, 12))
def test_whatever_is_foretold_only_what_passed_is_delivered(needed, more, fused, stored, left):
    world = World(always(needed))
    prediction = Foretold(needs(fused), needs(stored))
    start = needed | more
    chosen = foretelling(world, prediction, left=left).run(start)
    assert best(chosen).passed
    assert needed <= best(chosen).keep <= start
    assert chosen.predicted <= best(chosen).keep
    if chosen.minimal:
        shown = [k for k in world.attempts if not needed <= k]
        for name in best(chosen).keep - chosen.predicted:
            assert best(chosen).keep - {name} in shown


def test_a_minimal_plan_with_wider_islands_tells_nothing_of_their_nodes():
    def speed(keep: Assignment) -> float:
        return {0: 1.0, 1: 2.0}.get(len(keep), 1.05)

    world = World(always(names(0)), speed=speed, islands=(names(1),))
    prediction = Foretold(needs(names(0)), needs(names(0)))
    chosen = foretelling(world, prediction).run(names(0))
    assert best(chosen).keep == names(0, 1)
    assert not chosen.minimal


def test_after_a_wider_plan_with_tf32_fails_on_further_samples_the_search_goes_on():
    def speed(keep: Assignment) -> float:
        return {0: 1.0, 1: 9.0, 2: 2.0}[len(keep)]

    world = World(always(names(0)), speed=speed, islands=(names(1),), tf32=0.9, products=True)
    search = world.search(builds=1)
    first = best(search.run(names(0)))
    assert first.terms.tf32
    assert first.keep == names(0, 1)
    gone = search.again(first.keep, lambda c: replace(c, excess=20.0))
    assert gone.best is None


def test_others_hold_plans_with_tf32_and_the_same_without():
    world = World(always(names(0)), speed=lambda k: 1.0 + 8 * len(k), tf32=0.5, products=True)
    search = world.search(builds=1)
    chosen = best(search.run(names(0)))
    assert chosen.terms.tf32
    assert [(c.keep, c.terms.tf32) for c in search.others(chosen)] == [(names(0), False)]
    assert [c.terms.tf32 for c in search.others(None)] == [True, False]


def test_where_every_build_was_lost_the_search_ends():
    world = World(always(names(0)), others=(names(1), names(2)))
    search = world.search()
    search.attempt = world.lose
    assert search.run(names(0)).best is None
    assert world.attempts.total() == 2


def test_a_plan_that_was_lost_is_not_said_to_lack_a_kernel():
    world = World(always(names(1)), others=(names(1),))
    search = world.search()
    search.attempt = lambda keep, *how: (
        world.lose(keep, *how) if keep == names(0) else world.attempt(keep, *how)
    )
    best = search.run(names(0)).best
    assert best is not None
    assert (best.keep, best.step) == (names(1), "instead of a plan that was lost")


def test_after_ctrl_c_nothing_is_built_where_an_engine_is_proven():
    over = iter((False, False, True))
    world = World(always(names(0)))
    search = world.search()
    search.budget.over = lambda: next(over, True)
    chosen = search.run(names(0, 1))
    assert world.steps == ["the plan of the emulation", "plain low precision"]
    assert best(chosen).keep == names(0, 1)
    assert not chosen.minimal
    untouched = World(always(NOTHING))
    search = untouched.search()
    search.budget.over = lambda: True
    nothing = search.run(names(0))
    assert (nothing.best, nothing.plain, untouched.steps) == (None, None, [])


def test_a_build_that_ctrl_c_ended_tells_nothing():
    def interrupted(keep: Assignment, step: Step, terms: Terms) -> Candidate:  # noqa: ARG001
        made = build(3, str(step), status="interrupted", engine=None)
        search.budget.over = lambda: True
        return Candidate(keep, step, made)

    search = World(always(NOTHING)).search()
    search.attempt = interrupted
    chosen = search.run(names(0))
    assert (chosen.best, chosen.plain, search.tried) == (None, None, {})


def test_no_plan_is_looked_for_that_gains_no_speed():
    world = World(always(names(0)), speed=lambda keep: 1.0 + len(keep))
    search = world.search()
    search.full = ProvenEngine(build=2, seconds=1.0, median_ms=0.5)
    chosen = search.run(names(0, 1))
    freest = "plain low precision with TF32"
    assert world.steps == ["the plan of the emulation", "plain low precision", freest]
    assert chosen.best is None
    assert [spared.kind for spared in search.spared] == ["slower"]
    assert [c.keep for c in search.others(None)] == [names(0, 1)]


def test_a_plan_with_tf32_is_looked_for_that_may_be_the_fastest():
    world = World(always(names(0)), speed=lambda keep: 1.0 + len(keep) / 8, tf32=0.25)
    search = world.search(builds=1)
    search.full = ProvenEngine(build=2, seconds=1.0, median_ms=0.5)
    chosen = search.run(names(0, 1))
    assert (best(chosen).keep, best(chosen).terms.tf32) == (names(0), True)
    assert search.spared == []
