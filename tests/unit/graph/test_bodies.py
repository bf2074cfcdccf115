import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.formats import FP16
from halfwise.graph.bodies import Key, bodies_in, carried, count_runs, seen_in_body, tell_shapes
from halfwise.graph.casts import rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import roles_of
from halfwise.graph.sameness import alike
from halfwise.records import NodeName
from tests.control import BOOL, F32, GO, MATRIX, ROW, STEP, graph
from tests.unit.graph.sketch import Sketch, f32


def node(op_type, inputs, outputs, **attributes):
    name = f"{outputs.split()[0]}_node"
    return helper.make_node(op_type, inputs.split(), outputs.split(), name, **attributes)


def choice(prefix, operand, flag, op="Tanh"):
    bodies = {
        f"{side}_branch": graph(
            f"{prefix}_{side}",
            [node(op, operand, f"{prefix}_{side}_y")],
            (),
            [(f"{prefix}_{side}_y", MATRIX)],
        )
        for side in ("then", "else")
    }
    return helper.make_node("If", [flag], [f"{prefix}_out"], prefix, **bodies)


def nested(opset=17):
    """An If in a Loop in the branch of an If; the other branch scans rows."""
    s = Sketch(opset)
    x, trips = s.input("x", [2, 3]), s.input("trips", [], TensorProto.INT64)
    outside, inside = (s.input(n, [], BOOL) for n in ("outside", "inside"))
    loop = graph(
        "loop_body",
        [node("Identity", "go", "on"), choice("inner", "state", inside)],
        [("step", STEP), ("go", GO), ("state", MATRIX)],
        [("on", GO), ("inner_out", MATRIX)],
    )
    then = graph(
        "then",
        [helper.make_node("Loop", [trips, "", x], ["last"], "loop", body=loop)],
        (),
        [("last", MATRIX)],
    )
    scan = graph(
        "scan_body",
        [node("Sqrt", "row", "root"), node("Identity", "root", "seen")],
        [("row", ROW)],
        [("seen", ROW)],
    )
    other = graph(
        "other",
        [
            helper.make_node(
                "Scan",
                [x],
                ["rows"],
                "scan",
                body=scan,
                num_scan_inputs=1,
                scan_output_axes=[0],
                scan_output_directions=[1],
            )
        ],
        (),
        [("rows", MATRIX)],
    )
    branches = {"then_branch": then, "else_branch": other}
    s.nodes.append(helper.make_node("If", [outside], ["chosen"], "outer", **branches))
    return s.network(s.op("Neg", "chosen", name="neg"))


def key(name: str, attribute: str = "body") -> Key:
    return NodeName(name), attribute


THEN, ELSE = key("outer", "then_branch"), key("outer", "else_branch")


LOOP, SCAN = key("loop"), key("scan")


INNER = key("inner", "then_branch"), key("inner", "else_branch")


@pytest.mark.parametrize(("op", "counts"), [("Tanh", True), ("Identity", False), ("Shape", False)])
def test_only_what_computes_with_floats_counts(op, counts):
    s = Sketch()
    x, flag = s.input("x", [2, 3]), s.input("flag", [], BOOL)
    s.nodes.append(choice("choose", x, flag, op))
    (one, other) = bodies_in(s.network("choose_out").graph).values()
    assert one.computes(low=False) == other.computes(low=False) == counts


@pytest.mark.parametrize(
    ("shape", "counts"),
    [((2, 3), False), (("rows", 3), True), ((2, "columns"), False), (("rows", "columns"), True)],
)
def test_a_branch_that_no_input_can_lead_to_is_left_out(shape, counts):
    s = Sketch()
    x = s.input("x", list(shape))
    first = s.op("Gather", s.op("Shape", x), s.constant(np.array(0)))
    flag = s.op("Equal", first, s.constant(np.array(2)))
    s.nodes.append(choice("choose", x, flag))
    assert [b.can_run for b in bodies_in(s.network("choose_out").graph).values()] == [counts] * 2
    s.nodes[-1] = choice("choose", x, s.constant(np.array(True), "always"))
    assert not any(b.can_run for b in bodies_in(s.network("choose_out").graph).values())


def branches(*, weight=2.0, op="Tanh", operand="h_out", twice=True):
    s = Sketch()
    x, flag = s.input("x", [2, 3]), s.input("flag", [], BOOL)
    s.op("Exp", x, name="h")
    s.op("Sin", x, name="other")
    s.constant(f32(weight), "outer")
    inner = [node("Mul", f"{operand} outer", "a"), node(op, "a", "b"), node("Add", "b own", "c")]
    inner += [node("Add", "b b" if twice else "b c", "d")]
    body = graph("then", inner, (), [("d", (F32, (2, 3)))], {"own": 0.5})
    other = graph("else", [node("Identity", x, "e")], (), [("e", (F32, (2, 3)))])
    s.nodes.append(
        onnx.helper.make_node("If", [flag], ["y"], "choose", then_branch=body, else_branch=other)
    )
    return s.proto("y")


def then(network: Network) -> ir.Graph:
    return in_graph(network.graph)


def in_graph(main: ir.Graph) -> ir.Graph:
    return bodies_in(main)[NodeName("choose"), "then_branch"].graph


@pytest.mark.parametrize(
    "change",
    [{"weight": 2.5}, {"op": "Sin"}, {"operand": "other_out"}, {"twice": False}],
    ids=["captured-constant", "operator", "captured-value", "operand"],
)
def test_bodies_that_differ_are_told_apart(change):
    one = then(network_from_proto(branches()))
    assert alike(one, then(network_from_proto(branches())))
    assert not alike(one, then(network_from_proto(branches(**change))))


def test_an_own_constant_and_names_inside():
    proto = branches()
    (then_branch,) = (a.g for a in proto.graph.node[-1].attribute if a.name == "then_branch")
    own = then_branch.initializer[0]
    one = then(network_from_proto(proto))
    own.CopyFrom(numpy_helper.from_array(np.array(0.25, np.float32), "own"))
    assert not alike(one, then(network_from_proto(proto)))
    proto = branches()
    for attribute in proto.graph.node[-1].attribute:
        for inner in attribute.g.node:
            inner.name += "_renamed"
    assert not alike(one, then(network_from_proto(proto)))


def test_nested_bodies_are_compared():
    one, other = nested(), nested()
    assert all(map(alike, graphs(one), graphs(other)))
    for inner in other.model.graph.all_nodes():
        if inner.op_type == "Tanh":
            inner.op_type = "Sin"
    assert [alike(a, b) for a, b in zip(graphs(one), graphs(other), strict=True)].count(True) == 2


def graphs(network: Network):
    return [body.graph for body in bodies_in(network.graph).values()]


def test_a_body_that_is_kept_reads_through_casts():
    network = network_from_proto(branches())
    roles = roles_of(network)
    kept = frozenset(node_name(n) for n in network.nodes() if n.op_type == "If")
    mixed = rewrite(network, roles, kept, FP16).model
    own = then(network)
    assert alike(own, in_graph(mixed.graph))
    low = rewrite(network, roles, frozenset(), FP16).model
    assert bodies_in(low.graph)[NodeName("choose"), "then_branch"].computes(low=True)


def test_the_state_of_a_scan_comes_before_what_it_stacks():
    outputs = [ir.Value(name=name) for name in ("state", "stacked")]
    inputs = [ir.Value(name=name) for name in ("first", "rows")]
    attributes = [ir.AttrInt64("num_scan_inputs", 1)]
    node = ir.Node("", "Scan", inputs, attributes, outputs=outputs)
    assert list(carried(node)) == outputs[:1]
    assert list(carried(ir.Node("", "If", inputs[:1], outputs=[ir.Value(name="y")]))) == []


def given(outside, trips, inside):
    return {
        "x": np.abs(f32(np.arange(6).reshape(2, 3))),
        "trips": np.array(trips),
        "outside": np.array(outside),
        "inside": np.array(inside),
    }


@pytest.mark.parametrize("opset", [11, 17, 21])
@pytest.mark.parametrize(
    ("outside", "trips", "inside", "ran"),
    [
        (True, 3, True, {THEN: 1, LOOP: 3, INNER[0]: 3}),
        (True, 2, False, {THEN: 1, LOOP: 2, INNER[1]: 2}),
        (True, 0, True, {THEN: 1}),
        (False, 3, True, {ELSE: 1, SCAN: 2}),
    ],
)
def test_every_body_counts_its_runs_and_changes_nothing(opset, outside, trips, inside, ran):
    network = nested(opset)
    bodies = bodies_in(network.graph)
    assert all(body.computes(low=False) and not body.computes(low=True) for body in bodies.values())
    assert set(bodies) == {THEN, ELSE, LOOP, SCAN, *INNER}
    assert bodies[INNER[0]].around == (THEN, LOOP)
    sample = given(outside, trips, inside)
    counting = network.copy()
    names = count_runs(counting, list(bodies))
    session = Session(counting)
    found = session.run(sample)
    assert {key: found[n] for key, n in zip(bodies, names, strict=True) if found[n]} == ran
    plain = Session(network.model).run(sample)
    for name, array in plain.items():
        assert np.array_equal(found[name], array, equal_nan=True)


@pytest.mark.parametrize("opset", [11, 17, 21])
@pytest.mark.parametrize(
    ("outside", "trips", "ran"),
    [
        (True, 3, {THEN: 1, LOOP: 3, INNER[0]: 3}),
        (True, 0, {THEN: 1}),
        (False, 3, {ELSE: 1, SCAN: 2}),
    ],
)
def test_bodies_tell_the_shapes_of_what_is_in_them(opset, outside, trips, ran):
    model = nested(opset).copy()
    asked = tell_shapes(model)
    assert set(asked) == {THEN, ELSE, LOOP, SCAN, *INNER}
    found = Session(model).run(given(outside, trips, True))
    seen = {key: seen_in_body(found[name], tensors) for key, (name, tensors) in asked.items()}
    assert {key: runs for key, (runs, _) in seen.items() if runs} == ran
    assert all(not shapes for runs, shapes in seen.values() if not runs)
    if LOOP in ran:
        assert seen[LOOP][1] == {"state": (2, 3), "inner_out": (2, 3)}
        assert seen[INNER[0]][1] == {"inner_then_y": (2, 3)}
    if SCAN in ran:
        assert seen[SCAN][1] == {"row": (3,), "root": (3,), "seen": (3,)}
