from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.engines.search import ddmin, split
from halfwise.records import NodeName

ORDER = tuple(NodeName(f"n{i}") for i in range(12))
sets = st.sets(st.sampled_from(ORDER)).map(frozenset)


@given(needed=sets, more=sets)
def test_what_is_left_is_what_is_needed(needed, more):
    found, minimal = ddmin(needed | more, ORDER, lambda keep, _: needed <= keep)
    assert (found, minimal) == (needed, True)


@given(start=sets, picks=st.randoms(use_true_random=False))
def test_what_is_left_passed_and_fails_without_any_one_node(start, picks):
    known = {start: True}

    def passes(keep, dropped):
        assert keep < start
        assert dropped > 0
        return known.setdefault(keep, picks.random() < 0.3)

    found, minimal = ddmin(start, ORDER, passes)
    assert known[found]
    assert minimal
    assert not any(known[found - {name}] for name in found)


@given(start=sets, asked=st.integers(0, 5))
def test_it_ends_when_it_is_told_to(start, asked):
    left = asked

    def passes(*_):
        nonlocal left
        left -= 1
        return None if left < 0 else False

    found, minimal = ddmin(start, ORDER, passes)
    assert found == start
    assert minimal is (left >= 0)


@given(st.integers(1, 12), st.integers(0, 12))
def test_parts_are_even_and_hold_everything(parts, count):
    found = split(ORDER[:count], parts)
    assert frozenset().union(*found) == set(ORDER[:count])
    assert sum(map(len, found)) == count
    assert len(found) == min(parts, count)
    sizes = [len(part) for part in found]
    assert not sizes or max(sizes) - min(sizes) <= 1
