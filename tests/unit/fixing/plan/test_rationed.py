"""The search with a ration of evaluations, against oracles whose answer is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fixing.plan.test_search import Oracle, names, needs, priced


def rationed(costs, excess, ration, **more):
    """A search over nodes with costs, what it asked, and the price of a plan."""
    oracle = Oracle(excess)
    plain, price = priced(len(costs), costs, oracle, safe=True, **more)
    plain.ration, plain.used = ration, lambda: len(oracle.asked)
    return plain, oracle, price


def quadrature(errors):
    each = dict(zip(sorted(names(*range(len(errors)))), errors, strict=True))
    return lambda kept: sum(e * e for n, e in each.items() if n not in kept) ** 0.5


@given(st.data())
def test_no_more_is_evaluated_than_allowed_and_the_plan_passes(data):
    count = data.draw(st.integers(2, 60))
    drawn = lambda low, high: st.lists(st.floats(low, high), min_size=count, max_size=count)  # noqa: E731
    costs, errors = data.draw(drawn(0.1, 9)), data.draw(drawn(0.01, 2))
    ration = max(4, count // 2)
    excess = quadrature(errors)
    searching, oracle, price = rationed(costs, excess, ration)
    found = searching.run()
    assert len(oracle.asked) <= ration + 1
    assert found.passed
    assert excess(found.kept) <= 1
    assert price(found.kept) <= price(names(*range(count)))


def test_few_evaluations_find_what_is_nearly_the_cheapest():
    """50 nodes of equal error, of which 12 may be low: those that save most."""
    costs = [1.0 + (7 * i) % 50 for i in range(50)]
    excess = quadrature([1 / 12**0.5] * 50)
    searching, oracle, price = rationed(costs, excess, 25)
    found = searching.run()
    best = names(*sorted(range(50), key=lambda i: -costs[i])[12:])
    assert len(oracle.asked) <= 26
    assert price(found.kept) - 1 <= 1.1 * (price(best) - 1)


def test_minimal_is_said_only_of_what_was_proven():
    searching, oracle, _ = rationed([1.0] * 6, needs(names(1, 4)), 20)
    found = searching.run()
    assert (found.kept, found.minimal) == (names(1, 4), True)
    assert found.excess_without.keys() == names(1, 4)
    assert all(found.kept - {n} in oracle.asked for n in found.kept)
    searching, _, _ = rationed([1.0] * 40, needs(names(*range(20))), 12)
    found = searching.run()
    assert found.passed
    assert not found.minimal
    (note,) = (step for step in found.steps if step.kind == "rationed")
    assert note.numbers["tried"] < note.numbers["kept"] == len(found.kept)
    assert note.numbers["most"] == 12


@pytest.mark.parametrize("bad", [(40,), (45,), (49,), (41, 47)])
def test_a_plan_that_fails_on_samples_that_joined_loses_the_nodes_that_fail_and_no_others(bad):
    """Ten nodes are low; the others and those that fail must not be."""
    kept = names(*range(40))
    searching, oracle, _ = rationed([1.0] * 50, needs(kept | names(*bad)), 24)
    found = searching.run(kept, certify=False)
    assert found.kept == kept | names(*bad)
    assert len(oracle.asked) <= 4 + 5 * len(bad)


def test_plans_that_passed_before_samples_joined_are_not_tried_again_with_nothing_left():
    searching, oracle, _ = rationed([1.0] * 50, needs(names(*range(41))), 4)
    searching.passing = [names(*range(20))]
    found = searching.run(names(*range(40)))
    assert found.passed
    assert not found.minimal
    assert names(*range(20)) not in oracle.asked


def used_up(excess):
    """A search over 50 nodes whose ration earlier calls have used."""
    searching, oracle, _ = rationed([1.0] * 50, excess, 4)
    searching.used = lambda: 4 + len(oracle.asked)
    return searching, oracle


def test_a_plan_that_still_passes_stays_where_nothing_is_left():
    searching, oracle = used_up(needs(names(*range(41))))
    found = searching.run(names(*range(46)))
    assert (found.passed, found.kept) == (True, names(*range(46)))
    assert len(oracle.asked) <= 2


def test_a_plan_is_mended_a_little_even_if_nothing_is_left():
    required = names(*range(40), 47, 49)
    searching, oracle = used_up(needs(required))
    found = searching.run(names(*range(40)))
    assert found.passed
    assert required <= found.kept < names(*range(50))
    assert len(oracle.asked) == 1 + 3


def test_mending_ends_at_the_cheapest_plan_that_passed():
    """With four more nodes low it costs least; each step after that adds conversions."""
    searching, oracle, _ = rationed([1.0] * 9, needs(names(0, 7)), 24)
    searching.price = lambda kept: {5: 1.0, 3: 3.0, 2: 4.0}.get(len(kept), 5.0)
    assert searching.run(names(0)).kept == names(0, 5, 6, 7, 8)
    assert names(0, 7) in oracle.asked


@given(st.data())
def test_nodes_that_fail_whatever_else_is_low_are_found_by_halving(data):
    """A few of 60 nodes fail alone: each takes as many evaluations as halving, and no more."""
    bad = names(*data.draw(st.sets(st.integers(0, 59), min_size=1, max_size=3)))
    searching, oracle, _ = rationed([1.0] * 60, needs(bad), 60, suspects=())
    found = searching.run()
    assert found.kept == bad
    assert len(oracle.asked) <= 12 + 12 * len(bad)


@pytest.mark.parametrize("ration", [1, 4])
def test_without_evaluations_everything_is_kept(ration):
    searching, oracle, _ = rationed([1.0] * 8, lambda kept: 9.0 - len(kept), ration)
    found = searching.run()
    assert found.passed
    assert len(found.kept) == 8
    assert len(oracle.asked) <= ration + 1


def test_a_plan_below_that_fails_itself_ends_the_search():
    searching, _, _ = rationed([1.0] * 6, lambda _: 2.0, 20)
    searching.safe = True
    assert not searching.run().passed
