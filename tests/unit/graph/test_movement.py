from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.emulation.switched import SWITCH_INPUT, emulate_switched
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, node_name
from halfwise.graph.movement import Following, carried, fewest_casts
from halfwise.graph.roles import Role, Roles, float_io, is_float, roles_of
from halfwise.records import NodeName, TensorName
from tests import control
from tests.graphs import Drawn, graphs, low_ends, plans
from tests.unit.graph.sketch import Sketch

F32 = TensorProto.FLOAT
Names = frozenset[NodeName]


def node(op_type, inputs, outputs, name, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def network(nodes, outputs="y", constants=None) -> Network:
    infos = [helper.make_tensor_value_info(n, F32, [None, None]) for n in outputs.split()]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    inputs = [helper.make_tensor_value_info(n, F32, [2, 4]) for n in ("x", "z")]
    graph = helper.make_graph(nodes, "g", inputs, infos, tensors)
    imports = [helper.make_opsetid("", 17)]
    return network_from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def names(*values: str) -> Names:
    return frozenset(NodeName(v) for v in values)


def placed(net: Network, kept: Names, **options) -> tuple[Names, int]:
    """Return the assignment with the fewest Casts for the kept compute nodes, and their number."""
    roles = roles_of(net)
    fp32 = fewest_casts(net, roles, kept | carried(net, roles, kept), FP16, **options)
    return fp32, rewrite(net, roles, fp32, FP16, low_io=options.get("low_io", frozenset())).casts


# --- what must be carried in FP32 -------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ((), ()),
        (("exp",), ()),
        (("neg",), ()),
        (("exp", "neg"), ("t1", "t2")),
    ],
)
def test_movement_between_kept_nodes_is_carried(kept, expected):
    nodes = [
        node("Exp", "x", "a", "exp"),
        node("Transpose", "a", "b", "t1"),
        node("Transpose", "b", "c", "t2"),
        node("Neg", "c", "y", "neg"),
    ]
    net = network(nodes)
    assert carried(net, roles_of(net), names(*kept)) == names(*expected)


def test_inputs_constants_and_outputs_count_unless_they_are_low():
    nodes = [
        node("Transpose", "x", "a", "from_input"),
        node("Exp", "a", "b", "exp"),
        node("Transpose", "b", "c", "to_output"),
        node("Transpose", "w", "d", "from_constant"),
        node("Add", "c d", "y", "add"),
        node("Identity", "z", "through", "through"),
    ]
    net = network(nodes, "y c through", {"w": np.ones((2, 4), np.float32)})
    roles, kept = roles_of(net), names("exp", "add")
    moving = names("from_input", "to_output", "from_constant", "through")
    assert carried(net, roles, kept) == moving
    # Then only what lies between two kept nodes or a constant and one.
    assert carried(net, roles, kept, low_io=float_io(net)) == names("to_output", "from_constant")
    assert carried(net, roles, names(), low_io=float_io(net)) == names()
    one = frozenset({TensorName("c")})
    assert carried(net, roles, kept, low_io=one) == moving


def test_pinned_nodes_are_sources_and_consumers():
    nodes = [
        node("EyeLike", "x", "e", "eye"),
        node("Transpose", "e", "a", "t"),
        node("EyeLike", "a", "f", "eye2"),
        node("Neg", "f", "y", "neg"),
    ]
    net = network(nodes)
    assert carried(net, roles_of(net), names()) == names("t")


def test_a_constant_shape_is_no_fp32_source():
    nodes = [
        node("Exp", "x", "a", "exp"),
        node("Reshape", "a shape", "b", "reshape"),
        node("Neg", "b", "y", "neg"),
    ]
    net = network(nodes, "y", {"shape": np.array([4, 2])})
    assert carried(net, roles_of(net), names("neg")) == names()


def test_slots_that_are_always_fp32_are_consumers():
    nodes = [
        node("Unsqueeze", "x axes", "x4", "unsqueeze"),
        node("Identity", "scales", "moved", "identity"),
        helper.make_node("Resize", ["x4", "", "moved"], ["y4"], "resize", mode="nearest"),
        node("Squeeze", "y4 axes", "y", "squeeze"),
    ]
    constants = {"axes": np.array([0, 1]), "scales": np.array([1, 1, 2, 2.00001], np.float32)}
    net = network(nodes, "y", constants)
    assert carried(net, roles_of(net), names()) == names("identity")


def test_integers_become_fp32_for_a_kept_consumer():
    nodes = [
        node("ArgMax", "x", "best", "best"),
        node("Cast", "best", "f", "cast", to=F32),
        node("Neg", "f", "y", "neg"),
    ]
    net = network(nodes)
    assert carried(net, roles_of(net), names("neg")) == names("cast")
    assert carried(net, roles_of(net), names()) == names()


@pytest.mark.parametrize("reads", ["inside", "outside"])
def test_what_a_body_reads_is_carried_for_its_fp32_nodes(reads):
    nodes = [
        node("Transpose", "x", "t", "t"),
        helper.make_node("Constant", [], ["flag"], value=numpy_helper.from_array(np.array(True))),
        node("Shape", "t", "s", "shape"),
        node("Neg", "r", "y", "neg"),
    ]
    inner = [node("Neg", "t", "o", "inner")]
    if reads == "outside":
        inner = [node("EyeLike", "t", "e", "eye"), node("Neg", "e", "o", "inner")]
    body = control.graph("body", inner, (), [("o", control.MATRIX)])
    nodes.insert(3, node("If", "flag", "r", "if", then_branch=body, else_branch=body))
    net = network(nodes)
    expected = names("t") if reads == "outside" else names()
    assert carried(net, roles_of(net), names()) == expected
    assert carried(net, roles_of(net), names("inner")) == names("t")


# --- fewest casts -----------------------------------------------------------------------------


def test_movement_follows_its_consumers_if_that_saves_casts():
    # One kept Exp feeds a tree of movement with low readers: one Cast at its root.
    nodes = [
        node("Exp", "x", "a", "exp"),
        node("Identity", "a", "b", "i1"),
        node("Identity", "b", "c", "i2"),
        node("Identity", "b", "d", "i3"),
        node("Add", "c d", "y", "add"),
    ]
    assert placed(network(nodes), names("exp")) == (names("exp"), 2)
    # Two inputs joined: one Cast behind the joint instead of two before it.
    nodes = [
        node("Concat", "x z", "a", "concat", axis=0),
        node("Neg", "a", "y", "neg"),
    ]
    assert placed(network(nodes), names()) == (names("concat"), 2)


@pytest.mark.slow
def test_even_a_thousand_moving_nodes_cost_less_than_a_cast():
    nodes = [
        node("Identity", f"{i}{k}" if k else i, f"{i}{k + 1}", f"{i}_{k}")
        for i in "xz"
        for k in range(600)
    ]
    nodes += [node("Concat", "x600 z600", "a", "concat", axis=0), node("Neg", "a", "y", "neg")]
    assert placed(network(nodes), names())[1] == 2


def test_low_ends_need_no_cast():
    net = network([node("Transpose", "x", "y", "t")])
    assert placed(net, names(), low_io=float_io(net)) == (names(), 0)
    assert placed(net, names()) == (names("t"), 0)


def test_fixed_nodes_stay_where_they_are():
    nodes = [node("Concat", "x z", "a", "concat", axis=0), node("Neg", "a", "y", "neg")]
    assert placed(network(nodes), names(), fixed=names("concat")) == (names(), 3)


def test_values_that_nobody_reads_are_no_obstacle():
    nodes = [
        node("Shape", "x", "s", "shape"),
        node("ConstantOfShape", "s", "unused", "fill"),
        node("Neg", "x", "y", "neg"),
    ]
    assert placed(network(nodes), names()) == (names(), 2)


def test_among_equal_numbers_of_casts_fewer_nodes_are_fp32():
    nodes = [
        node("Exp", "x", "a", "exp"),
        *(node("Identity", f"a{i}" if i else "a", f"a{i + 1}", f"i{i}") for i in range(4)),
        node("Neg", "a4", "y", "neg"),
    ]
    # One Cast on each side of Neg: as early as can be on the way to it, as late after Exp.
    assert placed(network(nodes), names("exp")) == (names("exp"), 2)
    assert placed(network(nodes), names("neg")) == (names("neg"), 2)


def test_a_fill_beyond_the_range_becomes_low_where_it_did_before():
    def concat(fill: float) -> Network:
        value = numpy_helper.from_array(np.array([fill], np.float32))
        return network(
            [
                node("Shape", "x", "s", "shape"),
                node("ConstantOfShape", "s", "w", "fill", value=value),
                node("Concat", "x z w", "a", "concat", axis=0),
                node("Neg", "a", "y", "neg"),
            ]
        )

    assert placed(concat(-3e38), names()) == (names(), 3)
    assert placed(concat(-3e4), names()) == (names("fill", "concat"), 2)


def test_a_constant_beyond_the_range_becomes_low_where_it_did_before():
    # Saturated in a low Concat; an FP32 one would save a Cast, and its Cast would overflow.
    nodes = [
        node("Concat", "x z w", "a", "concat", axis=0),
        node("Identity", "a", "b", "identity"),
        node("Neg", "b", "y", "neg"),
    ]
    big = network(nodes, "y", {"w": np.full((1, 4), 1e6, np.float32)})
    assert placed(big, names()) == (names(), 3)
    small = network(nodes, "y", {"w": np.full((1, 4), 1e3, np.float32)})
    assert placed(small, names())[1] == 2


def moving(roles: Roles) -> list[NodeName]:
    return [n for n, r in roles.items() if r.role is Role.MOVEMENT]


def seen(
    net: Network, roles: Roles, fp32: Names, *, low_io: frozenset[TensorName]
) -> Iterator[tuple[object, ...]]:
    """Yield, per FP32 reader of a value, which of its origins reach it rounded.

    Follows values through moving nodes; says the same as running the model, but of every
    input at once.
    """
    origins: dict[object, frozenset[tuple[object, bool]]] = {}

    def of(value):
        if value not in origins:
            rounded = value.is_graph_input() and value.name in low_io
            origins[value] = frozenset({(value.name, rounded)})
        return origins[value]

    for n in net.all_nodes():
        role = roles[node_name(n)]
        low = role.free and n.name not in fp32
        floats = [v for v in n.inputs if is_float(v)]
        if role.role is Role.MOVEMENT:
            passed = frozenset().union(*(of(v) for v in floats)) or frozenset({(n.name, False)})
            result = frozenset((o, r or low) for o, r in passed)
            origins |= dict.fromkeys(n.outputs, result)
            continue
        origins |= {v: frozenset({(v.name, low)}) for v in n.outputs}
        if not low and role.role is not Role.BLIND:
            yield from ((n.name, of(v)) for v in floats)
    ends = [v for g in net.graphs() for v in g.outputs if is_float(v) and v.name not in low_io]
    yield from ((v.name, of(v)) for v in ends)


@given(graphs(exact=True), st.data())
def test_no_other_placement_that_rounds_the_same_has_fewer_casts(drawn: Drawn, data):
    net = network_from_proto(drawn.proto)
    roles, low_io = roles_of(net), data.draw(low_ends(net))
    movers = moving(roles)
    assume(1 <= len(movers) <= 5)
    kept = data.draw(plans(net)) - frozenset(movers)
    full = kept | carried(net, roles, kept, low_io=low_io)
    expected = list(seen(net, roles, full, low_io=low_io))

    def cost(fp32: Names) -> tuple[int, int]:
        return rewrite(net, roles, fp32, FP16, low_io=low_io).casts, len(fp32)

    every = (
        kept | frozenset(chosen)
        for count in range(len(movers) + 1)
        for chosen in combinations(movers, count)
    )
    equal = [fp32 for fp32 in every if list(seen(net, roles, fp32, low_io=low_io)) == expected]
    found = fewest_casts(net, roles, full, FP16, low_io=low_io)
    assert found in equal
    assert cost(found) == min(cost(fp32) for fp32 in equal)


@given(graphs(), st.data())
def test_placement_changes_no_result(drawn: Drawn, data):
    net = network_from_proto(drawn.proto)
    roles, low_io = roles_of(net), data.draw(low_ends(net))
    kept = data.draw(plans(net)) - frozenset(moving(roles))
    full = kept | carried(net, roles, kept)
    found = fewest_casts(net, roles, full, FP16, low_io=low_io)
    switched = emulate_switched(net, roles, FP16, low_io=low_io)
    session = Session(switched.model)
    before, after = (
        session.run({**drawn.sample, SWITCH_INPUT: switched.switches.switch(fp32)})
        for fp32 in (full, found)
    )
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)


def test_without_bf16_nothing_is_asked_of_an_opset_that_has_none():
    s = Sketch(11)
    network = s.network(s.op("Neg", s.op("Identity", s.input("x", [2]))))
    names = frozenset(node_name(n) for n in network.nodes())
    assert Following(network, roles_of(network))(names, frozenset()) == frozenset()
