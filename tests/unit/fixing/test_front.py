from math import inf

from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.front import excludes, front, next_open, spread
from tests.unit.records.curves import point

errors = st.one_of(st.floats(0, 1e9), st.just(inf))
drawn = st.lists(st.tuples(st.floats(1, 3), errors), min_size=1, max_size=40)


@given(drawn)
def test_nothing_beats_the_front_and_it_beats_the_rest(pairs):
    points = [point("", cost, error) for cost, error in pairs]
    best = [points[place] for place in front(points)]
    for one in points:
        beaten = [b for b in best if b.price <= one.price and b.error <= one.error]
        assert beaten
        if one in best:
            assert all((b.price, b.error) == (one.price, one.error) for b in beaten)


@given(drawn, st.integers(2, 8))
def test_few_are_shown_ends_and_what_is_wanted_among_them(pairs, most):
    points = [point("", cost, error) for cost, error in pairs]
    shown = spread(points, [0], most)
    whole = front(points)
    assert {whole[0], whole[-1], 0} <= set(shown)
    assert len(shown) == len(set(shown)) <= max(most, 3)
    assert [points[i].price for i in shown] == sorted(points[i].price for i in shown)


def test_no_points_have_no_front():
    assert front([]) == []
    assert spread([]) == []


bounds = st.lists(st.tuples(st.floats(1, 3), errors, st.booleans()), max_size=30)


@given(bounds)
def test_a_bound_is_no_error(triples):
    points = [point("", cost, error, is_bound=bound) for cost, error, bound in triples]
    known = [p for p in points if not p.is_bound]
    assert [points[i] for i in front(points)] == [known[i] for i in front(known)]


@given(bounds)
def test_when_all_that_is_left_open_was_measured_no_bound_could_be_on_the_front(triples):
    points = [point("", cost, error, is_bound=bound) for cost, error, bound in triples]
    while (place := next_open(points)) is not None:
        assert points[place].is_bound
        points[place] = points[place].model_copy(update={"is_bound": False})
    known = [p for p in points if not p.is_bound]
    assert all(any(excludes(k, p) for k in known) for p in points if p.is_bound)


def test_what_is_measured_next_is_far_from_what_is_known():
    points = [
        point("", 1.0, 9.0),
        point("0", 1.1, 2.0, is_bound=True),
        point("1", 1.5, 2.0, is_bound=True),
        point("2", 1.5, 1.0, is_bound=True),
        point("0-1", 1.6, 9.5, is_bound=True),
        point("0-2", 2.0, 0.0),
    ]
    assert next_open(points) == 3
