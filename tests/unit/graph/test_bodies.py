"""A lowered model is found to be the one it was made from; any other change is named."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from halfwise.emulation.bodies import report
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import seen_in_bodies
from halfwise.formats import BF16, FP16, Format
from halfwise.graph.bodies import (
    Key,
    alike,
    bodies_in,
    carried,
    first_difference,
)
from halfwise.graph.casts import low_type, rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, add_constant, node_name
from halfwise.graph.roles import roles_of
from halfwise.records import NodeName
from tests.control import BOOL, F32, GO, MATRIX, ROW, STEP, graph
from tests.models import CLASSES, Factory, mask, two_bodies
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


def branches(*, weight=2.0, op="Tanh", operand="h_out", twice=True, casts=False):
    s = Sketch()
    x, flag = s.input("x", [2, 3]), s.input("flag", [], BOOL)
    s.op("Exp", x, name="h")
    s.op("Sin", x, name="other")
    s.constant(f32(weight), "outer")
    inner = [node("Mul", f"{operand} outer", "a"), node(op, "a", "b"), node("Add", "b own", "c")]
    inner += [node("Add", "b b" if twice else "b c", "d")]
    if casts:
        inner[1].input[0] = "a32"
        inner.insert(1, onnx.helper.make_node("Cast", ["a"], ["a32"], "cast", to=F32))
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


def test_what_no_output_needs_and_names_do_not_count():
    proto = branches()
    (then_branch,) = (a.g for a in proto.graph.node[-1].attribute if a.name == "then_branch")
    own = then_branch.initializer[0]
    one = then(network_from_proto(proto))
    own.CopyFrom(numpy_helper.from_array(np.array(0.25, np.float32), "own"))
    assert alike(one, then(network_from_proto(proto)))
    proto = branches()
    for attribute in proto.graph.node[-1].attribute:
        for inner in attribute.g.node:
            inner.name += "_renamed"
    assert alike(one, then(network_from_proto(proto)))


def test_nested_bodies_are_compared():
    one, other = nested(), nested()
    assert all(map(alike, graphs(one), graphs(other)))
    for inner in other.model.graph.all_nodes():
        if inner.op_type == "Tanh":
            inner.op_type = "Sin"
    assert [alike(a, b) for a, b in zip(graphs(one), graphs(other), strict=True)].count(True) == 2


def graphs(network: Network):
    return [body.graph for body in bodies_in(network.graph).values()]


@pytest.mark.parametrize("casts", [False, True], ids=["none", "the-authors"])
def test_a_body_that_is_kept_reads_through_casts(casts):
    network = network_from_proto(branches(casts=casts))
    roles = roles_of(network)
    kept = frozenset(map(node_name, network.all_nodes()))
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
    reports = report(counting)
    session = Session(counting)
    found = session.run(sample)
    assert {key: found[told.output] for key, told in reports.items() if found[told.output]} == ran
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
    runs, shapes = seen_in_bodies(nested(opset), [given(outside, trips, True)])
    assert set(runs) == {THEN, ELSE, LOOP, SCAN, *INNER}
    assert {key: count for key, count in runs.items() if count} == ran
    expected: dict[str, tuple[int, ...]] = {}
    if LOOP in ran:
        expected |= {"state": (2, 3), "inner_out": (2, 3), "inner_then_y": (2, 3)}
    if SCAN in ran:
        expected |= {"row": (3,), "root": (3,), "seen": (3,)}
    assert expected.items() <= shapes.items()
    assert expected or not shapes.keys() & {"state", "row"}


def lowered(network: Network, fmt: Format) -> Network:
    """Every third node in FP32, written and read again."""
    roles = roles_of(network, low_type(fmt))
    kept = frozenset(sorted(n for n, r in roles.items() if r.free)[::3])
    rewritten = rewrite(network, roles, kept, fmt)
    return network_from_proto(ir.serde.serialize_model(rewritten.model))


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("factory", [*CLASSES[::8], mask, two_bodies], ids=lambda f: f.__name__)
def test_a_lowered_model_is_the_same(factory: Factory, fmt: Format) -> None:
    network = network_from_proto(factory().proto)
    assert first_difference(network, network) is None
    assert first_difference(network, lowered(network, fmt)) is None


def sketch() -> Network:
    x = (s := Sketch()).input("x", [1, 4])
    h = s.op("MatMul", x, f32(np.arange(16).reshape(4, 4) / 7), name="product")
    h = s.op("LayerNormalization", h, np.ones(4, np.float32), epsilon=1e-3, name="norm")
    return s.network(s.op("Sub", h, s.op("Relu", x, name="relu"), name="last"))


def nudged(model: ir.Model) -> None:
    value = next(v for v in model.graph.initializers.values() if v.shape == ir.Shape((4, 4)))
    assert value.const_value is not None
    array = value.const_value.numpy().copy()
    array[0, 1] = np.nextafter(array[0, 1], np.inf, dtype=array.dtype)
    value.const_value = ir.tensor(array, name=value.name)


def other_eps(model: ir.Model) -> None:
    node = next(n for n in model.graph if n.name == "norm")
    node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-4)


def swapped(model: ir.Model) -> None:
    node = next(n for n in model.graph if n.name == "last")
    one, other = node.inputs
    node.replace_input_with(0, other)
    node.replace_input_with(1, one)


def inserted(model: ir.Model) -> None:
    node = next(n for n in model.graph if n.name == "last")
    two = add_constant(model.graph, "two", f32(2))
    more = ir.node("Mul", [node.inputs[1], two], name="more")
    more.outputs[0].name = "doubled"
    model.graph.insert_before(node, more)
    node.replace_input_with(1, more.outputs[0])


def given_away(model: ir.Model) -> None:
    node = next(n for n in model.graph if n.name == "relu")
    (own,) = model.graph.outputs
    own.name, node.outputs[0].name = "inner", own.name
    model.graph.outputs[0] = node.outputs[0]


def truncated(model: ir.Model) -> None:
    node = next(n for n in model.graph if n.name == "last")
    through = node.inputs[1]
    for to in (ir.DataType.INT32, ir.DataType.FLOAT):
        cast = ir.node("Cast", [through], {"to": int(to)}, name=f"to_{to.name}")
        cast.outputs[0].name = f"as_{to.name}"
        model.graph.insert_before(node, cast)
        through = cast.outputs[0]
    node.replace_input_with(1, through)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (truncated, "to_INT32"),
        (nudged, "product"),
        (other_eps, "norm"),
        (swapped, "last"),
        (inserted, "more"),
        (given_away, "last_out"),
    ],
)
def test_what_differs_is_named(change: Callable[[ir.Model], None], name: str) -> None:
    for network in (sketch(), lowered(sketch(), FP16)):
        model = network.copy()
        change(model)
        changed = network_from_proto(ir.serde.serialize_model(model))
        assert first_difference(sketch(), changed) == name


def one_node(op: str, *, opset: int = 17, **attributes: int) -> Network:
    x = (s := Sketch(opset)).input("x", [2, 3, 4])
    return s.network(s.op("Relu", s.op(op, x, name="it", **attributes)))


def test_what_a_cast_of_the_original_casts_to_counts() -> None:
    whole, low = (one_node("Cast", to=int(t)) for t in (ir.DataType.INT32, ir.DataType.FLOAT16))
    assert first_difference(whole, whole) is None
    assert first_difference(whole, low) == first_difference(low, whole) == "it"
    assert first_difference(one_node("Cast", to=int(ir.DataType.FLOAT)), low) is None


def test_an_operator_that_is_another_at_another_opset_differs() -> None:
    flat, single = (one_node("Softmax", opset=o, axis=1) for o in (12, 13))
    assert first_difference(single, flat) == first_difference(flat, single) == "it"
    # Relu is the same from 14 on.
    assert first_difference(one_node("Relu", opset=14), one_node("Relu", opset=17)) is None


def test_attributes_of_two_kinds_differ() -> None:
    def attribute(network: Network, value: ir.Attr) -> Network:
        model = network.copy()
        next(n for n in model.graph if n.name == "it").attributes["value"] = value
        return Network(model, None, "", {})

    shape = (s := Sketch()).constant([2, 3])
    plain = s.network(s.op("Relu", s.op("ConstantOfShape", shape, name="it")))
    for array, name in ((f32([0]), None), (f32([1]), "it"), (np.array([0]), "it")):
        other = attribute(plain, ir.AttrTensor("value", ir.tensor(array)))
        assert first_difference(plain, other) == first_difference(other, plain) == name
    zeros = attribute(plain, ir.AttrTensor("value", ir.tensor(f32([0]))))
    number = attribute(plain, ir.AttrFloat32("value", 0.0))
    for one in (plain, zeros):
        assert first_difference(one, number) == first_difference(number, one) == "it"
