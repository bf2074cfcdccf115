import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.engines.search import Units, units_of
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.records import NodeName
from tests.unit.graph.sketch import Sketch, f32

ORDER = tuple(NodeName(f"n{i}") for i in range(8))
CORE = {"scores", "scale", "add", "softmax", "mix"}


def names(*numbers):
    return frozenset(ORDER[i] for i in numbers)


def attention(blocks=1):
    """Attention with a bias, its queries, keys and values projected, and what follows it."""
    s, rng = Sketch(), np.random.default_rng(0)
    x, bias = s.input("x", [1, 4, 4]), s.input("bias", [1, 4, 4])
    for i in range(blocks):
        end = "" if i == 0 else str(i)
        q, k, v, o = (f32(rng.normal(size=(4, 4))) for _ in range(4))
        query, value = s.op("MatMul", x, q, name=f"q{end}"), s.op("MatMul", x, v, name=f"v{end}")
        key = s.op("Transpose", s.op("MatMul", x, k, name=f"k{end}"), perm=[0, 2, 1])
        scores = s.op("MatMul", query, key, name=f"scores{end}")
        scaled = s.op("Mul", scores, f32(0.5), name=f"scale{end}")
        added = s.op("Add", scaled, bias, name=f"add{end}")
        weights = s.op("Softmax", added, name=f"softmax{end}", axis=-1)
        mixed = s.op("MatMul", weights, value, name=f"mix{end}")
        x = s.op("MatMul", mixed, o, name=f"out{end}")
    network = network_from_proto(s.proto(x))
    return network, roles_of(network)


def found(start, lowered=(), blocks=1):
    network, roles = attention(blocks)
    return network, units_of(network, roles, frozenset(start), frozenset(lowered))


def test_a_core_is_kept_whole_where_a_node_of_it_is_kept():
    _, units = found({"softmax", "out"}, blocks=2)
    assert units.whole(units.start) == CORE | {"out"}
    assert units.whole(frozenset({"q"})) == {"q"}
    assert units.apart(CORE | {"out", "q"}) == {"softmax", "out", "q"}
    assert units.apart(CORE | {"mix1", "add1"}) == {"softmax", "mix1", "add1"}


def test_what_the_user_wants_low_is_no_part_of_a_unit():
    assert found({"softmax"}, lowered={"mix"})[1].all == ()


@given(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)))
def test_units_are_dropped_whole_and_those_with_a_ruled_node_stay(needed, ruled, kept):
    units = Units((names(0, 1, 2), names(5, 6)))
    needed, ruled = names(*needed), names(*ruled)
    keep = units.whole(names(*kept) | needed | ruled)
    asked = []

    def passes(smaller):
        asked.append(smaller)
        return needed <= smaller

    smallest, minimal = units.smallest(keep, ORDER, ruled, passes)
    assert smallest == units.whole(needed | ruled)
    assert minimal
    assert all(units.whole(each) == each and ruled <= each <= keep for each in asked)
