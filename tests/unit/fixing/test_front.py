from math import inf

from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.front import front, spread
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
