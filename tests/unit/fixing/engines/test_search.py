"""The search in a world where a rule says which engines exist, pass and are fast."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from halfwise.fixing.engines.plan import EnginePlan, Outcome
from halfwise.fixing.engines.search import EngineSearch, cores_of
from halfwise.fixing.plan.plan import NONE, Nodes, Plan
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.records import NodeName, replace
from tests.unit.casing import names as named
from tests.unit.graph.sketch import Sketch
from tests.unit.reporting.engine_runs import build, failed, latency, measured

ORDER = tuple(NodeName(f"n{i}") for i in range(8))
START, PLAIN = "the plan of the emulation", "plain low precision"


def names(*numbers: int) -> Nodes:
    return frozenset(ORDER[i] for i in numbers)


def chain() -> Any:
    """Eight products in a row."""
    s = Sketch()
    y = s.input("x", [1, 4])
    for name in ORDER:
        y = s.op("MatMul", y, np.eye(4, dtype=np.float32), name=name)
    return network_from_proto(s.proto(y))


@dataclass(eq=False)
class Variant:
    """What the search asks of the network."""

    network: Any
    roles: Any
    forced: Any = None
    lowered: Nodes = NONE

    @property
    def case(self) -> Any:
        return SimpleNamespace(network=self.network)

    @property
    def computing(self) -> Nodes:
        computing: Nodes = self.roles.computing
        return computing

    @property
    def products(self) -> Nodes:
        return self.computing


CHAIN = chain()
ROLES = roles_of(CHAIN)


VARIANT: Any = Variant(CHAIN, ROLES)
OTHER: Any = Variant(CHAIN, ROLES)


def planned(keep: Nodes, of: Any = VARIANT, **terms: Any) -> EnginePlan:
    return EnginePlan(Plan(of, keep), "fp16", **terms)


def always(needed: Nodes) -> Callable[[Nodes, int], bool]:
    return lambda keep, _: needed <= keep


@dataclass
class World:
    """Engines by rule, as a bench shows them.

    Attributes:
        passes: Whether build `number` of a plan passes.
        can_be_built: Whether it can be built.
        speed: Its milliseconds, without TF32.
        tf32: Factor of TF32 on them.
        joins: Whether held-out samples join, asked once for each best plan.
        typing: The typing regime.
        budget: Builds that may be made of new plans.
        builds: Builds of a plan that confirm it.
        lost: Whether the connection is lost in every build.
        most: Builds after which Ctrl-C comes.
    """

    passes: Callable[[Nodes, int], bool]
    can_be_built: Callable[[EnginePlan], bool] = lambda _: True
    speed: Callable[[Nodes], float] = lambda _: 1.0
    tf32: float = 1.0
    joins: Callable[[EnginePlan], bool] = lambda _: False
    typing: str = "weak"
    budget: int = 6
    builds: int = 3
    lost: bool = False
    most: int = 1000
    tried: dict[EnginePlan, list[Outcome]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return len(self.steps) >= self.most

    @property
    def devices(self) -> Mapping[str, Any]:
        builds = SimpleNamespace(settings=SimpleNamespace(tf32=False, optimization_level=None))
        worker = SimpleNamespace(info=SimpleNamespace(tensorrt="8.6.1"))
        is_strong = self.typing == "strong"
        device = SimpleNamespace(builds=builds, worker=worker, is_strong=is_strong)
        return {"": device}

    @property
    def is_lost(self) -> bool:
        return any(group[-1].worst.shows_nothing for group in self.tried.values())

    def evaluate(self, plan: EnginePlan, step: str, *, extra: bool = False) -> Outcome:
        before = self.tried.get(plan, [])
        self.budget -= not (extra or before)
        self.steps.append(step)
        number = len(self.steps)
        if self.lost:
            part = measured(build(number, "", status="lost", engine=None), lost=True)
        elif not self.can_be_built(plan):
            part = measured(failed(number))
        else:
            time = self.speed(plan.keep) * (self.tf32 if plan.tf32 else 1.0)
            excess = 0.5 if self.passes(plan.keep, len(before) + 1) else 20.0
            part = measured(build(number, ""), excess, latency=latency(time))
        self.tried[plan] = [*before, Outcome(plan, {"": part})]
        return self.tried[plan][-1]

    def search(self, start: Nodes, *, ruled: Nodes = NONE, **more: Any) -> EngineSearch:
        VARIANT.forced = SimpleNamespace(kept=dict.fromkeys(ruled))
        bench: Any = self
        return EngineSearch(bench, Plan(VARIANT, start), "fp16", **more)

    @property
    def attempted(self) -> dict[Nodes, int]:
        """Number of builds of each plan on usual terms, by what it keeps."""
        usual = Counter[Nodes]()
        for plan, group in self.tried.items():
            usual[plan.keep] += len(group)
        return dict(usual)


def group_of(search: EngineSearch) -> list[Outcome]:
    assert search.best is not None
    return search.bench.tried[search.best]


def run(world: World, start: Nodes, **more: Any) -> EngineSearch:
    search = world.search(start, **more)
    search.run()
    return search


def keep(search: EngineSearch) -> Nodes:
    assert search.best is not None
    return search.best.keep


sets = st.sets(st.sampled_from(ORDER)).map(frozenset)


@given(
    needed=sets,
    start=sets,
    stuck=st.lists(sets, max_size=3),
    budget=st.integers(1, 8),
    builds=st.integers(1, 4),
    ruled=sets,
    luck=st.randoms(use_true_random=False),
    lucky=st.booleans(),
)
def test_what_is_found_passed_and_the_budget_holds(
    needed, start, stuck, budget, builds, ruled, luck, lucky
):
    draws: dict[tuple[Nodes, int], bool] = {}

    def passes(kept: Nodes, number: int) -> bool:
        if needed <= kept:
            return True
        return draws.setdefault((kept, number), lucky and luck.random() < 0.3)

    world = World(passes, lambda plan: plan.keep not in stuck, budget=budget, builds=builds)
    start |= ruled
    search = run(world, start, ruled=ruled)
    assert world.budget >= 0
    assert all(len(group) <= builds for group in world.tried.values())
    if search.best is None:
        return
    group = world.tried[search.best]
    passed = sum(o.passed for o in group)
    assert search.best.keep >= ruled
    assert passed > len(group) / 2
    if passed == len(group):
        assert len(group) == builds
    if search.is_minimal and not ruled:
        for name in search.best.keep:
            less = planned(search.best.keep - {name})
            assert not all(o.passed for o in world.tried[less])


@given(needed=sets, more=sets)
def test_with_builds_enough_the_plan_is_the_smallest(needed, more):
    assume(needed)
    search = run(World(always(needed), budget=100), needed | more)
    assert keep(search) == needed
    assert search.is_minimal
    assert len(group_of(search)) == 3


def test_plain_low_precision_that_is_enough_is_taken_in_place_of_the_plan():
    world = World(always(NONE))
    search = run(world, names(1, 2))
    assert (keep(search), search.is_minimal) == (NONE, True)
    assert world.attempted == {NONE: 3}


def test_what_passes_by_luck_in_one_build_of_three_is_not_taken():
    def passes(kept: Nodes, number: int) -> bool:
        return names(3) <= kept or (kept == NONE and number == 1)

    assert keep(run(World(passes), names(3))) == names(3)
    assert keep(run(World(passes, budget=20), NONE)) >= names(3)


def test_a_smaller_plan_that_is_not_confirmed_falls_back_to_the_larger_one():
    def passes(kept: Nodes, number: int) -> bool:
        return names(0, 1) <= kept or (kept == names(0) and number < 3)

    assert keep(run(World(passes), names(0, 1))) == names(0, 1)


def test_mostly_right_is_taken_where_nothing_better_is_left():
    world = World(lambda kept, number: kept != NONE and number != 3, budget=1)
    search = run(world, names(0))
    assert keep(search) == names(0)
    assert [o.passed for o in group_of(search)] == [True, True, False]
    assert not search.is_minimal


def test_a_failing_plan_gets_halves_of_the_low_nodes_until_one_passes():
    world = World(always(names(0, 6)), budget=20)
    search = run(world, names(0))
    assert (keep(search), search.is_minimal) == (names(0, 6), True)
    assert world.steps[:3] == [PLAIN, START, "whether 3 more nodes in FP32 mend it"]


def test_what_cannot_be_built_is_tried_at_another_level_and_then_replaced():
    world = World(always(names(2)), lambda plan: plan.keep != names(2) or plan.level == 1)
    # After a crash it is the lower one.
    assert run(world, names(2), ruled=names(2)).best == planned(names(2), level=1)
    world = World(always(names(2)), lambda plan: plan.keep != names(2), budget=30)
    assert keep(run(world, names(2))) > names(2)
    assert world.steps[2:4] == [
        "optimization level 1 instead of build 2",
        "whether 3 more nodes in FP32 mend it",
    ]


def test_where_every_build_was_lost_the_search_ends():
    world = World(always(names(0)), lost=True)
    assert run(world, names(0)).best is None
    assert world.steps == [PLAIN]


def test_tf32_is_allowed_where_what_is_kept_is_slow_without():
    kept = names(1, 2)
    speed = lambda k: 3.0 if k else 1.0  # noqa: E731
    world = World(always(kept), speed=speed, tf32=0.35)
    search = run(world, kept)
    assert search.best == planned(kept, tf32=True)
    assert len(world.tried[search.best]) == 3  # confirmed like any other plan
    fast = World(always(kept), tf32=0.1)
    assert run(fast, kept).best == planned(kept)


def test_after_samples_have_joined_the_search_goes_on_from_what_passes():
    bests: list[EnginePlan] = []

    def joins(plan: EnginePlan) -> bool:
        bests.append(plan)
        if len(bests) > 1:
            return False
        world.passes = always(names(0, 1))
        before, world.tried = world.tried, {}
        for one, group in before.items():
            for outcome in group:
                world.evaluate(one, outcome.worst.build.purpose, extra=True)
        return True

    world = World(always(names(0)), joins=joins, budget=20)
    search = run(world, names(0, 1, 2, 3))
    assert [plan.keep for plan in bests] == [names(0), names(0, 1)]
    assert (keep(search), search.is_minimal) == (names(0, 1), True)


def test_what_the_emulation_needs_is_not_built_without():
    needed = names(*range(8))
    world = World(always(needed))
    search = run(world, needed, needed=needed)
    assert world.attempted == {needed: 3, NONE: 1}
    assert (keep(search), search.is_minimal) == (needed, True)


def test_what_is_added_to_it_is_made_smaller():
    world = World(always(names(0, 1, 5)), budget=20)
    search = run(world, names(0, 1), needed=names(0, 1))
    assert (keep(search), search.is_minimal) == (names(0, 1, 5), True)


@given(needed=sets, more=sets, emulated=sets, budget=st.integers(1, 12))
def test_whatever_the_emulation_needs_only_what_passed_is_taken(needed, more, emulated, budget):
    start = needed | more
    world = World(always(needed), budget=budget)
    search = run(world, start, needed=emulated & start)
    assert needed <= keep(search) <= start


def test_after_ctrl_c_nothing_is_built():
    world = World(always(names(0)), most=2)
    search = run(world, names(0, 1))
    assert world.steps == [PLAIN, START]
    assert keep(search) == names(0, 1)
    untouched = World(always(NONE), most=0)
    assert run(untouched, names(0)).best is None
    assert untouched.steps == []


def test_the_plan_without_repairs_and_that_with_int8_use_none_of_the_budget():
    world = World(always(NONE), budget=1, builds=2)
    search = run(world, names(1), unrepaired=Plan(OTHER, names(0)), int8=Plan(VARIANT, names(2)))
    assert len(world.tried[planned(names(0), OTHER)]) == 2
    assert len(world.tried[EnginePlan(Plan(VARIANT, names(2)), "int8")]) == 2
    assert keep(search) == NONE
    # One that is slower is built once: it is a row of the table.
    slow = World(always(NONE), speed=lambda kept: 1.0 + len(kept), builds=2)
    run(slow, names(1), unrepaired=Plan(OTHER, names(0)))
    assert len(slow.tried[planned(names(0), OTHER)]) == 1


def test_where_int8_fails_with_constraints_it_is_built_without():
    def built(plan: EnginePlan) -> bool:
        return plan.unconstrained or plan.rung != "int8"

    world = World(always(NONE), built, builds=1)
    world.search(NONE)
    kept = replace(failed(9).config, keep=(ORDER[0],))
    search = world.search(NONE, int8=Plan(VARIANT, names(2)))
    evaluate = world.evaluate

    def constrained(plan: EnginePlan, step: str, *, extra: bool = False) -> Outcome:
        outcome = evaluate(plan, step, extra=extra)
        if outcome.excess is None:
            unbuilt = replace(outcome.worst.build, config=kept)
            outcome = Outcome(plan, {"": measured(unbuilt)})
            world.tried[plan] = [outcome]
        return outcome

    world.evaluate = constrained  # type: ignore[method-assign]
    search.run()
    assert EnginePlan(Plan(VARIANT, names(2)), "int8", unconstrained=True) in world.tried


def attention(parts: int = 1) -> Any:
    s = Sketch()
    y = s.input("x", [1, 4, 8])
    for i in range(parts):
        turned = s.op("Transpose", y, name=f"turn{i}", perm=[0, 2, 1])
        scores = s.op("MatMul", y, turned, name=f"scores{i}")
        softmax = s.op("Softmax", scores, name=f"softmax{i}", axis=-1)
        y = s.op("MatMul", softmax, y, name=f"mix{i}")
    return network_from_proto(s.proto(y))


def test_the_cores_of_attention_are_units():
    net = attention(2)
    cores = cores_of(net, roles_of(net), NONE)
    assert cores == tuple(named(f"scores{i}", f"softmax{i}", f"mix{i}") for i in range(2))
    lowered = cores_of(net, roles_of(net), named("softmax0"))
    assert lowered == (named("scores1", "softmax1", "mix1"),)
