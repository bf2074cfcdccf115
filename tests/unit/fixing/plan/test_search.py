"""The search, against oracles whose answer is known."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.emulation.budget import Budget
from halfwise.fixing.plan.plan import Nodes
from halfwise.fixing.plan.search import MOST_FAILURES, Search, rankings
from halfwise.records import NodeName, Remark
from halfwise.reporting.remarks import remark


def names(*indices):
    return frozenset(NodeName(f"n{i}") for i in indices)


@dataclass(frozen=True)
class Answer:
    passed: bool
    excess: float
    nonfinite: bool = False
    not_run: str = ""


@dataclass
class Oracle:
    """Counts distinct questions, as the real evaluation remembers its answers."""

    excess: Callable[[Nodes], float]
    asked: set[Nodes] = field(default_factory=set)

    def __call__(self, kept):
        self.asked.add(kept)
        excess = self.excess(kept)
        return Answer(excess <= 1, excess)


def search(count, oracle, suspects=(), *, forced=frozenset(), start=frozenset(), **more):
    """A search that starts from nothing, from `start`, and from that with all suspects."""
    nodes = [NodeName(f"n{i}") for i in range(count)]
    base = start & frozenset(nodes)
    every = base.union(*suspects)
    return Search(
        nodes=nodes,
        forced=forced,
        suspects=list(suspects),
        seeds=[seed | forced for seed in (names(), base, every)],
        evaluate=oracle,
        probe=oracle,
        contribution=lambda kept, _most: oracle(kept).excess,
        harmless=0.5,
        budget=Budget(more.pop("seconds", 1e18), more.pop("clock", lambda: 0.0)),
        **more,
    )


def needs(required):
    return lambda kept: 0.01 if required <= kept else 10.0


@given(st.data())
def test_finds_exactly_the_needed_nodes_whatever_the_guards_say(data):
    count = data.draw(st.integers(1, 60))
    some = st.frozensets(st.integers(0, count - 1), max_size=12)
    required = names(*data.draw(some))
    suspects = [names(*group) for group in data.draw(st.lists(some, max_size=5))]
    found = search(count, Oracle(needs(required)), suspects).run()
    assert found.passed
    assert found.minimal
    assert found.kept == required
    assert found.excess_without.keys() == required


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.data())
def test_result_is_one_minimal_where_errors_add_in_quadrature(errors, data):
    scale = data.draw(st.floats(0.2, 5))

    def excess(kept):
        low = (e for i, e in enumerate(errors) if NodeName(f"n{i}") not in kept)
        return scale * sum(e * e for e in low) ** 0.5

    found = search(len(errors), Oracle(excess)).run()
    assert excess(found.kept) <= 1
    assert all(excess(found.kept - {n}) > 1 for n in found.kept)


@given(st.integers(0, 2**32 - 1))
def test_certificate_holds_for_an_oracle_without_any_order(seed):
    def excess(kept):
        return 0.5 if len(kept) == 12 or hash((seed, kept)) % 3 == 0 else 2.0

    found = search(12, Oracle(excess)).run()
    assert excess(found.kept) <= 1
    assert all(excess(found.kept - {n}) > 1 for n in found.kept)


def test_trials_stay_below_half_of_the_candidates_when_guards_are_right():
    """13 LayerNorms of 4 needed nodes among 269, as in the measured vision transformer."""
    required = names(*(20 * layer + k for layer in range(13) for k in range(4)))
    groups = [names(20 * i + k, 20 * i + k + 1) for i in range(13) for k in range(3)]
    oracle = Oracle(needs(required))
    found = search(269, oracle, groups).run()
    assert found.kept == required
    assert len(oracle.asked) <= 269 / 2


def test_trials_stay_below_half_of_the_candidates_without_any_guard():
    required = names(3, 50, 51, 120, 199)
    oracle = Oracle(needs(required))
    found = search(300, oracle).run()
    assert found.kept == required
    assert len(oracle.asked) <= 150


@pytest.mark.parametrize("right", [0, 15, 30])
def test_many_places_suspected_in_vain_cost_no_node(right):
    """Of 721 nodes 120 are suspected, and 30 needed; no plan that keeps all suspects gains."""
    suspects, others = range(0, 720, 6), range(3, 720, 24)
    required = names(*suspects[:right], *others[right:])
    oracle = Oracle(needs(required))
    run, _ = priced(721, [1] * 721, oracle, suspects=[names(i) for i in suspects], safe=True)
    assert run.run().kept == required
    assert len(oracle.asked) < 721 / 2


def test_harmless_suspicions_cost_no_node():
    decoys = [names(i, i + 1) for i in range(0, 40, 2)]
    found = search(100, Oracle(needs(names(7))), [*decoys, names(7)]).run()
    assert found.kept == names(7)


def test_forced_nodes_stay_and_do_not_count_against_minimality():
    found = search(20, Oracle(needs(names(3))), [names(3)], forced=names(8)).run()
    assert found.kept == names(3, 8)
    assert found.minimal
    assert found.excess_without.keys() == names(3)


def test_says_so_when_nothing_helps():
    found = search(5, Oracle(lambda _: 7.0)).run()
    assert not found.passed
    assert not found.minimal
    assert found.kept == names(*range(5))


@pytest.mark.parametrize("ticks", [1, 3, 10, 40, 100])
def test_budget_ends_with_the_best_passing_plan(ticks):
    time = iter(range(10_000))
    required = names(*range(0, 60, 2))
    oracle = Oracle(needs(required))
    found = search(60, oracle, seconds=ticks, clock=lambda: next(time)).run()
    assert found.exhausted
    assert not found.minimal
    assert required <= found.kept


def test_continues_from_a_previous_plan():
    first, more = names(1, 2, 3), names(1, 2, 3, 30)
    oracle = Oracle(needs(more))
    found = search(200, oracle, [first], start=first).run()
    assert found.kept == more
    assert len(oracle.asked) < 100


def test_what_is_sure_to_pass_is_not_tried():
    oracle = Oracle(needs(names(3)))
    found = search(20, oracle, [names(3)], safe=True).run()
    assert found.kept == names(3)
    assert names(*range(20)) not in oracle.asked


def test_what_passes_on_few_samples_only_is_gone_back_on():
    required, whole = names(3, 20), Oracle(needs(names(3, 20)))

    def probe(kept):
        is_asked = any(not required <= plan for plan in whole.asked if names(3) <= plan)
        return Oracle(needs(required if is_asked else names(3)))(kept)

    start = names(*range(40))
    searching = search(100, whole, start=start)
    searching.probe = probe
    found = searching.run()
    assert (found.passed, found.minimal, found.kept) == (True, True, required)
    assert found.excess_without.keys() == required
    assert len(whole.asked) < 12


@given(st.data())
def test_any_starting_plan_leads_to_the_needed_nodes(data):
    """Too large it is shrunk, too small it is extended, foreign nodes in it are passed over."""
    count = data.draw(st.integers(1, 40))
    some = st.frozensets(st.integers(0, count - 1), max_size=12)
    required, start = names(*data.draw(some)), names(*data.draw(some), count + 1)
    suspects = [names(*group) for group in data.draw(st.lists(some, max_size=3))]
    found = search(count, Oracle(needs(required)), suspects, start=start).run()
    assert found.kept == required
    assert found.minimal


def test_a_starting_plan_that_passes_spares_the_measuring():
    """No guard suspects the needed nodes: alone, the search has to measure them."""
    required = names(3, 50, 51, 120, 199)
    alone, helped = Oracle(needs(required)), Oracle(needs(required))
    search(300, alone).run()
    found = search(300, helped, start=required | names(7, 8)).run()
    assert found.kept == required
    assert "passes with 7 nodes in FP32" in map(remark, found.steps)
    assert len(helped.asked) < len(alone.asked) / 2


def test_without_time_a_starting_plan_that_passes_is_the_result():
    found = search(9, Oracle(needs(names(3))), start=names(3, 4), seconds=-1.0).run()
    assert (found.kept, found.passed, found.exhausted) == (names(3, 4), True, True)


def quadratic(count):
    """Every node contributes alike, and everything low is twice out of tolerance."""
    return lambda kept: 2 * ((count - len(kept)) / count) ** 0.5


def test_a_first_plan_comes_early_where_every_node_contributes():
    """A large model may have time for some twenty trials: start, 8 groups, halving over them."""
    evaluated = Oracle(quadratic(600))
    time = iter(range(10_000))
    found = search(600, evaluated, seconds=18, clock=lambda: next(time), safe=True).run()
    assert found.exhausted
    assert len(found.kept) < 600
    assert evaluated(found.kept).passed


def test_more_time_gives_no_larger_plan():
    sizes = []
    for ticks in (10, 20, 40, 80, 160, 320):
        time = iter(range(10_000))
        oracle = Oracle(quadratic(200))
        found = search(200, oracle, seconds=ticks, clock=lambda t=time: next(t)).run()
        sizes.append(len(found.kept))
    assert sizes == sorted(sizes, reverse=True)


def test_without_time_a_larger_plan_replaces_one_that_fails_on_samples_that_joined():
    """The sets that passed before the samples joined are what is left to choose from."""
    passing = [names(*range(size)) for size in (2, 4, 8, 16)]
    oracle = Oracle(needs(names(*range(7))))
    found = search(40, oracle, start=passing[0], seconds=-1.0, safe=True, earlier=passing).run()
    assert (found.kept, found.passed, found.exhausted) == (passing[2], True, True)


def test_without_time_few_of_the_plans_that_passed_are_tried():
    passing = [names(*range(size)) for size in range(1, 200)]
    oracle = Oracle(needs(names(*range(400))))
    late = search(500, oracle, start=passing[0], seconds=-1.0, safe=True, earlier=passing)
    assert late.run().kept == names(*range(500))
    assert len(oracle.asked) < 50


def test_a_larger_plan_that_passed_before_spares_the_measuring():
    """After a sample has joined, which the last plan fails on."""
    passing = [names(*range(size)) for size in (30, 20, 10)]
    oracle = Oracle(needs(names(*range(15))))
    again = search(300, oracle, start=passing[-1], earlier=passing)
    assert again.run().kept == names(*range(15))
    assert len(oracle.asked) < 60


def test_of_many_plans_that_passed_before_the_cheapest_that_still_passes_is_found_by_bisection():
    passing = [names(*range(size)) for size in range(299, 10, -1)]
    oracle = Oracle(needs(names(*range(100))))
    again = search(300, oracle, start=passing[-1], earlier=passing)
    assert again._seed() == names(*range(100))
    assert len(oracle.asked) < 12


def test_a_futile_search_is_not_repeated_on_more_samples():
    passing, steps = names(*range(150)), [Remark(kind="futile")]
    oracle = Oracle(needs(names(*range(0, 150, 2))))
    found = search(200, oracle, earlier=[passing], steps=steps).run()
    assert (found.kept, found.minimal) == (passing, False)
    assert len(oracle.asked) < 8


def test_without_time_what_is_held_since_is_part_of_the_result():
    """Plans that passed before something was found infinite inside lack what is held for it."""
    late = search(9, Oracle(needs(names(1))), forced=names(5), seconds=0, earlier=[names(1)])
    assert late.run().kept == names(1, 5)


def test_without_time_no_more_than_a_few_plans_are_confirmed():
    passing = [names(*range(size)) for size in range(1, 4000, 40)]
    oracle = Oracle(needs(names(*range(5000))))
    late = search(5000, oracle, seconds=0, safe=True, earlier=passing)
    assert late.run().kept == names(*range(5000))
    assert len(oracle.asked) <= MOST_FAILURES + 1


def test_what_ended_is_told():
    late = search(9, Oracle(needs(names(1))), seconds=0)
    assert late.run().exhausted
    assert late.budget.cut == ["search"]


COSTS = st.lists(st.integers(1, 9), min_size=4, max_size=14)
ERRORS = st.lists(st.floats(0.01, 2), min_size=14, max_size=14)


def priced(count, costs, oracle, **more):
    """A search in a world where nodes cost what they are said to, and nothing else does."""
    nodes = [NodeName(f"n{i}") for i in range(count)]
    each = dict(zip(nodes, map(float, costs), strict=False))
    price = lambda kept: 1 + math.fsum(each[n] for n in kept) / sum(each.values())  # noqa: E731
    return search(count, oracle, price=price, **more), price


def most(count):
    """Evaluations for measuring, the trials between, and a certificate that lowers a few."""
    return 2 * count + 20 * (2 + count.bit_length()) + count * (count + 1) // 2


@given(COSTS, ERRORS, st.booleans())
def test_where_errors_add_the_plan_passes_and_costs_no_more_than_the_start(costs, errors, starts):
    count = len(costs)

    def excess(kept):
        low = (e for i, e in enumerate(errors[:count]) if NodeName(f"n{i}") not in kept)
        return sum(e * e for e in low) ** 0.5

    everything = names(*range(count))
    start = names(*range(count - 1)) if starts else frozenset()
    oracle = Oracle(excess)
    searching, price = priced(count, costs, oracle, start=start)
    found = searching.run()
    assert found.passed
    assert excess(found.kept) <= 1
    assert price(found.kept) <= price(everything)
    if starts and excess(start) <= 1:
        assert price(found.kept) <= price(start)
    assert all(excess(found.kept - {n}) > 1 for n in found.kept)
    assert len(oracle.asked) <= most(count)


@given(COSTS, st.integers(0, 2**32 - 1))
def test_where_errors_follow_no_order_the_plan_passes_too(costs, seed):
    count = len(costs)

    def excess(kept):
        if len(kept) == count:
            return 0.5
        return 0.2 + 3 * random.Random(f"{seed} {sorted(kept)}").random()  # noqa: S311

    oracle = Oracle(excess)
    searching, price = priced(count, costs, oracle)
    found = searching.run()
    assert found.passed
    assert excess(found.kept) <= 1
    assert price(found.kept) <= 2
    assert all(excess(found.kept - {n}) > 1 for n in found.kept)
    assert len(oracle.asked) <= most(count)
    again, _ = priced(count, costs, Oracle(excess))
    assert again.run().kept == found.kept


def test_of_nodes_that_contribute_alike_the_dear_ones_are_lowered():
    costs = [1] * 20 + [20] * 20
    oracle = Oracle(lambda kept: 3 * ((40 - len(kept)) / 180) ** 0.5)
    searching, price = priced(40, costs, oracle)
    found = searching.run()
    assert len(found.kept) == 20
    assert price(found.kept) == pytest.approx(1 + 20 / 420)


def test_plans_are_compared_by_their_cost_and_everything_kept_is_none():
    searching, _ = priced(4, [1] * 4, Oracle(needs(names(1))))
    searching.price = lambda kept: {0: 1.0, 1: 3.0, 2: 2.5}.get(len(kept), 2.0)
    ranks = [searching.rank(names(*range(n))) for n in range(5)]
    assert sorted(range(5), key=lambda n: ranks[n]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("dearer", "kept"), [(1.005, names(1)), (1.2, names(1, 2))])
def test_one_node_fewer_is_not_delivered_where_it_costs_clearly_more(dearer, kept):
    searching, _ = priced(4, [1] * 4, Oracle(needs(names(1))), start=names(1, 2))
    searching.price = lambda kept: {names(1): dearer, names(1, 2): 1.0}.get(kept, 1.5)
    found = searching.run()
    assert found.passed
    assert found.kept == kept
    assert found.minimal is (kept == names(1))
    assert [s.kind for s in found.steps].count("dearer") == (not found.minimal)
    assert found.excess_without.keys() <= names(1)
    assert found.spare == found.kept - names(1)
    assert found.needed == names(1)
    searching, _ = priced(4, [1] * 4, Oracle(needs(names(1))), start=names(1, 2))
    searching.price = lambda kept: {names(1): dearer, names(1, 2): 1.0}.get(kept, 0.9)
    assert searching.run().kept == names(1)  # both gain nothing


def test_measuring_ends_where_fewer_nodes_are_left_than_groups_are_known():
    oracle, measured = Oracle(needs(names(7, 60))), []
    searching = search(400, oracle)
    known = searching.contribution

    def contribution(kept, _most):
        measured.append(kept)
        return known(kept, -math.inf) * (1 + len(kept))

    searching.contribution = contribution
    found = searching.run()
    assert found.kept == names(7, 60)
    assert len(measured) < 100


def test_a_few_needed_nodes_that_save_most_do_not_end_the_search():
    """They are tried first, while nothing is gained yet."""
    required = names(*range(20))
    everything = names(*range(200))
    costs = [2] * 20 + [1] * 180
    searching, _ = priced(200, costs, Oracle(needs(required)), suspects=[everything], safe=True)
    found = searching.run()
    assert found.kept == required
    assert found.minimal


def test_where_every_node_adds_error_and_no_plan_gains_the_search_ends_early():
    def excess(kept, allowed):
        return ((200 - len(kept)) / 200) ** 0.5 / allowed

    trials = []
    for allowed in (0.2, 0.8):
        oracle = Oracle(partial(excess, allowed=allowed))
        run, price = priced(200, [1.0] * 200, oracle, safe=True)
        found = run.run()
        assert found.passed
        assert oracle(found.kept).passed
        futile = any(step.kind == "futile" for step in found.steps)
        assert futile is (allowed == 0.2)
        assert found.minimal is not futile
        assert not found.exhausted
        assert (price(found.kept) > 1.75) is futile
        trials.append(len(oracle.asked))
    assert trials[0] < 250


def test_an_original_that_fails_itself_ends_the_search():
    """As with random operators: FP32 was thought to be certain to pass."""
    searching = search(6, Oracle(lambda _: 2.0), safe=True)
    found = searching.run()
    assert (found.passed, found.minimal) == (False, False)
    assert [s.kind for s in found.steps][-1] == "hopeless"


def named(count):
    return [NodeName(f"n{i}") for i in range(count)]


class Measured:
    """Root of the summed squares of what each node contributes; counts the questions."""

    def __init__(self, errors):
        self.errors = dict(zip(named(len(errors)), errors, strict=True))
        self.calls = 0

    def __call__(self, low):
        self.calls += 1
        return math.sqrt(sum(self.errors[n] ** 2 for n in low))


def ranked(groups, contribution, enough):
    """The finest of the rankings."""
    return list(rankings(groups, contribution, enough))[-1]


def groups_of(nodes, length):
    return [nodes[i : i + length] for i in range(0, len(nodes), length)]


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=60),
    st.integers(1, 20),
    st.floats(0.01, 5),
)
def test_the_groups_are_a_partition_with_their_contributions(errors, length, enough):
    measured = Measured(errors)
    nodes = named(len(errors))
    found = ranked(groups_of(nodes, length), measured, enough)
    assert sorted(n for group, _ in found for n in group) == sorted(nodes)
    for group, contribution in found:
        assert contribution == pytest.approx(measured(group))


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=60),
    st.integers(1, 20),
    st.floats(0.01, 5),
)
def test_what_stays_whole_contributes_little_and_singles_are_in_order(errors, length, enough):
    measured = Measured(errors)
    found = ranked(groups_of(named(len(errors)), length), measured, enough)
    whole = [c for group, c in found if len(group) > 1]
    singles = [c for group, c in found if len(group) == 1]
    assert math.sqrt(sum(c * c for c in whole)) <= enough * (1 + 1e-9)
    assert whole == sorted(whole)
    assert singles == sorted(singles)
    assert [len(group) > 1 for group, _ in found] == [True] * len(whole) + [False] * len(singles)


def test_few_nodes_that_matter_cost_few_measurements():
    """About 2 k log2(n/k) for k = 5 of n = 300, and far fewer than 300."""
    errors = [0.001] * 300
    for i in (3, 50, 51, 120, 199):
        errors[i] = 5.0
    measured = Measured(errors)
    found = ranked(groups_of(named(300), 17), measured, 0.5)
    assert {n for group, _ in found[-5:] for n in group} == {
        NodeName(f"n{i}") for i in (3, 50, 51, 120, 199)
    }
    assert measured.calls <= 18 + 2 * 5 * 5


def test_where_nothing_matters_groups_are_measured_once():
    measured = Measured([0.001] * 100)
    found = ranked(groups_of(named(100), 10), measured, 0.5)
    assert measured.calls == 10
    assert len(found) == 10


def test_infinite_and_undefined_contributions_come_last():
    values = {"n0": math.inf, "n1": math.nan, "n2": 0.25, "n3": 7.0}

    def contribution(low):
        return values[next(iter(low))] if len(low) == 1 else math.nan

    found = ranked([named(4)], contribution, 0.5)
    assert [c for _, c in found] == [0.25, 7.0, math.inf, math.inf]


def test_without_a_tolerance_a_tenth_of_everything_may_stay_whole():
    """A metric alone decides, so no error is known to be harmless."""
    errors = [1.0] * 4 + [0.01] * 16
    measured = Measured(errors)
    found = ranked(groups_of(named(20), 4), measured, None)
    singles = {n for group, _ in found if len(group) == 1 for n in group}
    assert singles == set(named(4))


def test_no_groups():
    assert list(rankings([], Measured([]), 0.5)) == [[]]
    assert list(rankings([[], []], Measured([]), None)) == [[]]


def test_a_ranking_comes_whenever_the_number_of_groups_has_doubled():
    """Whoever runs out of time has one of half the detail at least, and each is a partition."""
    measured = Measured([1.0] * 32)
    nodes = named(32)
    calls, sizes = [], []
    for ranking in rankings(groups_of(nodes, 8), measured, 0.01):
        calls.append(measured.calls)
        sizes.append(len(ranking))
        assert sorted(n for group, _ in ranking for n in group) == sorted(nodes)
    assert sizes == [4, 8, 16, 32]
    assert calls == [4, 12, 28, 60]


def test_the_last_ranking_is_the_finest_also_between_doublings():
    measured = Measured([5.0, 0.0, 0.0, 0.0])
    sizes = [len(ranking) for ranking in rankings([named(4)], measured, 0.5)]
    assert sizes == [1, 2, 3]


def singles(errors):
    return [(frozenset((n,)), e) for n, e in zip(named(len(errors)), errors, strict=True)]
