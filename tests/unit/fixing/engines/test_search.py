"""The search in a world where a rule says which engines exist, pass and are fast."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from halfwise.fixing.engines.plan import EnginePlan, Outcome
from halfwise.fixing.engines.search import (
    FUTILE,
    NEAR,
    SLOW,
    EngineSearch,
    cores_of,
    instead,
    near,
    refusals,
    split,
)
from halfwise.fixing.plan.plan import NONE, Nodes, Plan
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.records import NodeName, Refusal, RefusalKind
from tests import models
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
        suspected: What guards suspect.
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
    suspected: Nodes = NONE
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
    def space(self) -> Any:
        return SimpleNamespace(evidence=SimpleNamespace(suspected=self.suspected))

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
        self.tried[plan] = [*before, Outcome(plan, step, {"": part})]
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
    halves = [f"whether {n} more nodes in FP32 mend it" for n in (4, 3)]
    assert world.steps[:4] == [PLAIN, START, *halves]


def test_what_guards_suspect_comes_first():
    world = World(always(names(0, 5)), suspected=names(5))
    assert keep(run(world, names(0))) == names(0, 5)
    assert world.steps[2] == "everything that guards suspect"


def test_what_cannot_be_built_is_replaced():
    world = World(always(names(2)), lambda plan: plan.keep != names(2) or plan.level == 5)
    search = run(world, names(2), ruled=names(2))
    assert search.best == planned(names(2), level=5)
    moves = [step for step in world.steps if "level" in step]
    assert [move[-1] for move in moves] == ["1", "5"]  # after a crash the lower one comes first


def test_what_is_kept_in_a_refused_region_is_given_up_in_the_end():
    world = World(always(NONE), lambda plan: not plan.keep, budget=9)
    assert keep(run(world, names(1, 2))) == NONE


def test_where_every_build_was_lost_the_search_ends():
    world = World(always(names(0)), lost=True)
    assert run(world, names(0)).best is None
    assert len(world.steps) == 2


def test_tf32_is_allowed_where_what_is_kept_is_slow_without():
    kept = names(1, 2)
    speed = lambda k: 3.0 if k else 1.0  # noqa: E731
    world = World(always(kept), speed=speed, tf32=0.35)
    search = run(world, kept)
    assert search.best == planned(kept, tf32=True)
    assert len(world.tried[search.best]) == 3  # confirmed like any other plan
    fast = World(always(kept), tf32=0.1)
    assert run(fast, kept).best == planned(kept)


def test_shrinking_a_slow_plan_leaves_builds_for_making_it_faster():
    kept = names(*range(8))
    world = World(always(kept), speed=lambda k: 3.0 if k else 1.0, tf32=0.3, budget=4)
    best = run(world, kept).best
    assert best is not None
    assert best.tf32


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
                world.evaluate(one, outcome.step, extra=True)
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
    assert (keep(search), search.is_minimal, search.predicted) == (needed, True, needed)


def test_what_is_added_to_it_is_made_smaller():
    world = World(always(names(0, 1, 5)), suspected=names(4, 5), budget=20)
    search = run(world, names(0, 1), needed=names(0, 1))
    assert (keep(search), search.is_minimal) == (names(0, 1, 5), True)
    assert search.predicted == names(0, 1)


@given(needed=sets, more=sets, emulated=sets, budget=st.integers(1, 12))
def test_whatever_the_emulation_needs_only_what_passed_is_taken(needed, more, emulated, budget):
    start = needed | more
    world = World(always(needed), budget=budget)
    search = run(world, start, needed=emulated & start)
    assert needed <= keep(search) <= start
    assert search.predicted <= keep(search)


def test_after_ctrl_c_nothing_is_built():
    world = World(always(names(0)), most=2)
    search = run(world, names(0, 1))
    assert world.steps == [PLAIN, START]
    assert keep(search) == names(0, 1)
    assert [spared.kind for spared in search.spared] == ["interrupted"]
    untouched = World(always(NONE), most=0)
    assert run(untouched, names(0)).best is None
    assert untouched.steps == []


def test_no_plan_is_looked_for_that_gains_no_speed():
    world = World(always(names(0)), speed=lambda kept: 1.0 + len(kept))
    search = run(world, names(0, 1), full=(2, 0.5))
    assert world.steps == [PLAIN, START, "plain low precision with TF32"]
    assert [spared.kind for spared in search.spared] == ["slower"]
    strong = World(always(names(0)), speed=lambda kept: 1.0 + len(kept), typing="strong")
    assert not [*run(strong, names(0, 1), full=(2, 0.5)).spared]


def test_a_plan_with_tf32_is_looked_for_that_may_be_the_fastest():
    world = World(always(names(0)), speed=lambda k: 1.0 + len(k) / 8, tf32=0.25, builds=1)
    search = run(world, names(0, 1), full=(2, 0.5))
    assert search.best == planned(names(0), tf32=True)
    assert not [*search.spared]


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
    kept = failed(9).config.model_copy(update={"keep": (ORDER[0],)})
    search = world.search(NONE, int8=Plan(VARIANT, names(2)))
    evaluate = world.evaluate

    def constrained(plan: EnginePlan, step: str, *, extra: bool = False) -> Outcome:
        outcome = evaluate(plan, step, extra=extra)
        if outcome.excess is None:
            unbuilt = outcome.worst.build.model_copy(update={"config": kept})
            outcome = Outcome(plan, step, {"": measured(unbuilt)})
            world.tried[plan] = [outcome]
        return outcome

    world.evaluate = constrained  # type: ignore[method-assign]
    search.run()
    assert EnginePlan(Plan(VARIANT, names(2)), "int8", unconstrained=True) in world.tried


@pytest.mark.parametrize("parts", range(1, 10))
def test_runs_of_names_are_of_nearly_equal_length_and_hold_all(parts):
    singles = [frozenset((name,)) for name in ORDER]
    runs = [*split(singles, parts)]
    assert frozenset().union(*runs) == frozenset(ORDER)
    assert sum(map(len, runs)) == len(ORDER)
    assert max(map(len, runs)) - min(map(len, runs)) <= 1


def test_times_are_near_within_five_percent():
    assert near(NEAR * 0.999, 1.0)
    assert not near(NEAR * 1.001, 1.0)
    assert not near(1.0, float("inf"))
    assert (FUTILE, SLOW) == (1.07, 1.1)


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


# --- what a builder refused, and what is tried in its place --------------------------------------

NORM = network_from_proto(models.layer_norm().proto)
NORM_ROLES = roles_of(NORM)
NAMED = ("square", "variance", "eps", "root")
SAID = "Could not find any implementation for node {ForeignNode[square...root]}."


def test_the_region_is_between_the_ends_that_the_builder_named():
    refused = failed(3, status="failed", signal=None, message=SAID)
    (refusal,) = refusals([build(1, ""), refused], NORM)
    assert (refusal.kind, refusal.build, refusal.ends) == ("no-kernel", 3, ("square", "root"))
    assert refusal.nodes == NAMED
    assert SAID.rstrip(".") in refusal.said


@pytest.mark.parametrize(("status", "kind"), [("crashed", "crash"), ("timeout", "timeout")])
def test_what_named_no_layer_has_no_region(status, kind):
    (refusal,) = refusals([failed(2, status=status)], NORM)
    assert (refusal.kind, refusal.ends, refusal.nodes) == (kind, (), ())


def test_what_is_lost_or_interrupted_was_not_refused():
    builds = [build(n, "", status=s, engine=None) for n, s in ((1, "lost"), (2, "interrupted"))]
    assert refusals(builds, NORM) == ()


def forms(kept, kind: RefusalKind = "no-kernel", nodes=NAMED, *, level=True, **plan):
    """Return what is tried in place of a plan of twelve nodes, as kinds and sets."""
    computing = NORM_ROLES.computing | named(*(f"other{i}" for i in range(8)))
    refused_plan = planned(named(*kept), **plan)
    refused = Refusal(kind=kind, build=3, ends=("square", "root"), nodes=nodes)
    moves = [*instead(refused_plan, refused, 3, computing, level=level)]
    assert all(step.startswith("instead of build 3: ") for step, _ in moves)
    return [(form(step), plan.keep, plan.level) for step, plan in moves]


def form(step):
    """Return what a step changes."""
    return next(kind for kind in ("region", "level", "nothing") if kind in step)


def test_the_whole_region_then_levels_then_nothing_there():
    kept, whole = named("square", "other0"), named(*NAMED, "other0")
    assert forms(kept) == [
        ("region", whole, None),
        ("level", kept, 5),
        ("level", kept, 1),
        ("nothing", named("other0"), None),
    ]
    assert [level for kind, _, level in forms(kept, "crash") if kind == "level"] == [1, 5]
    assert [kind for kind, *_ in forms(kept, level=False)] == ["region", "nothing"]
    assert [kind for kind, *_ in forms(kept, level=True)][1:3] == ["level"] * 2


def test_without_kept_nodes_in_the_region_it_is_the_whole_model():
    """More than half in FP32 is hardly mixed, so that comes late."""
    moves = forms(named("other0"))
    assert [kind for kind, *_ in moves] == ["level", "level", "region", "nothing"]
    assert moves[-1][1] == named()
    assert [kind for kind, *_ in forms(named("square"), nodes=())] == [
        *("level", "level", "region", "nothing")
    ]


def test_a_lost_plan_has_no_region():
    plan = planned(named("square"))
    kinds = [form(step) for step, _ in instead(plan, None, 2, NORM_ROLES.computing, level=False)]
    assert kinds == ["region", "nothing"]
