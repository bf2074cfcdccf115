"""What a plan costs."""

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from halfwise.emulation.runner import seen_in_bodies, seen_shapes
from halfwise.fixing.cost import (
    FLOPS_PER_BYTE_FP32,
    FLOPS_PER_BYTE_INT8,
    FLOPS_PER_BYTE_TF32,
    CostModel,
    cost_model,
)
from halfwise.fixing.kernels import described, is_generated, kernels
from halfwise.fixing.outcome import worth_of
from halfwise.formats import FP16
from halfwise.graph.casts import low_type
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import node_name
from halfwise.graph.roles import Role, float_io, is_float, roles_of
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.records import NodeName
from tests import models
from tests.control import BOOL, F32, GO, I64, STEP, graph
from tests.graphs import Drawn, graphs
from tests.unit.casing import names
from tests.unit.fixing.running import plans_of
from tests.unit.graph.sketch import Sketch, f32

CONVS = frozenset(("first", "second", "third"))


def chain(rows, width, activation=False):
    """Three products of [rows, width], with a Relu behind the first where asked for."""
    s = Sketch()
    x = s.input("x", [rows, width])
    for name in ("first", "second", "third"):
        x = s.op("MatMul", x, f32(np.ones((width, width))), name=name)
        if activation and name == "first":
            x = s.op("Relu", x, name="relu")
    network = s.network(x)
    roles = roles_of(network, low_type(FP16))
    shapes = seen_shapes(network, {"x": np.ones((rows, width), np.float32)})
    return CostModel(network, roles, shapes)


def test_what_memory_bounds_costs_twice_as_much_in_fp32():
    model = chain(1, 64)
    moved = 3 * (64 * 64 + 2 * 64)
    assert model.cost(CONVS) == 4 * moved
    # Low, the input is converted first, 4 bytes read and 2 written, and the output last.
    assert model.cost(frozenset()) == 2 * moved + 2 * 6 * 64


def test_what_arithmetic_bounds_is_its_operations():
    model = chain(2048, 1024)
    assert model.cost(CONVS) == pytest.approx(3 * 2 * 2048 * 1024**2 / FLOPS_PER_BYTE_FP32)


def test_tf32_computes_faster_and_moves_as_much():
    large, small = chain(2048, 1024), chain(1, 64)
    flops = 3 * 2 * 2048 * 1024**2
    assert large.cost(CONVS, tf32=True) == pytest.approx(flops / FLOPS_PER_BYTE_TF32)
    assert small.cost(CONVS, tf32=True) == small.cost(CONVS)


def test_an_island_pays_for_its_casts():
    low, island = (chain(1, 64).cost(kept) for kept in (frozenset(), frozenset(("second",))))
    more = 2 * (64 * 64 + 2 * 64)
    assert island == low + more + 2 * 6 * 64


def test_what_a_kernel_hands_on_inside_is_never_stored():
    plain, fused = chain(1, 64), chain(1, 64, activation=True)
    assert fused.cost(frozenset()) == plain.cost(frozenset())
    assert fused.cost(frozenset(("relu",))) == fused.cost(frozenset())


@given(st.integers(1, 40), st.integers(1, 40))
def test_low_costs_no_more_than_fp32_but_for_the_casts_at_the_ends(rows, width):
    model = chain(rows, width)
    assert model.cost(frozenset()) <= model.cost(CONVS) + 2 * 6 * rows * width


@given(graphs())
def test_where_all_may_be_low_and_the_ends_are_no_plan_costs_less(drawn: Drawn):
    network = network_from_proto(drawn.proto)
    roles = roles_of(network, low_type(FP16))
    touching = [n for n in network.nodes() if roles[node_name(n)].role is not Role.BLIND]
    assume(
        all(
            roles[node_name(n)].inputs == tuple(map(is_float, n.inputs))
            and roles[node_name(n)].outputs == tuple(map(is_float, n.outputs))
            for n in touching
        )
    )
    model = CostModel(network, roles, seen_shapes(network, drawn.sample), low_io=float_io(network))
    assert model.cost(frozenset()) <= model.cost(frozenset(roles))


def product(built):
    """A product of [4, 512], as a node of a body that gives `made`."""
    return onnx.helper.make_node("MatMul", [f"{built}_in", "weight"], [built], f"{built}_node")


def with_body(kind):
    """The product in a Loop, or in one branch of an If whose other one gives what it reads."""
    s = Sketch()
    x = s.input("x", [None, 512])
    s.constant(f32(np.ones((512, 512))), "weight")
    state, rows = (F32, (None, 512)), s.op("Relu", x, name="relu")
    if kind == "Loop":
        trips = s.input("trips", [], I64)
        same = onnx.helper.make_node("Identity", ["go"], ["on"], "same")
        formals = [("step", STEP), ("go", GO), ("y_in", state)]
        body = graph("body", [same, product("y")], formals, [("on", GO), ("y", state)])
        s.nodes.append(onnx.helper.make_node("Loop", [trips, "", rows], ["out"], "node", body=body))
    else:
        flag, node = s.input("flag", [], BOOL), product("y")
        node.input[0] = rows
        idle = onnx.helper.make_node("Identity", [rows], ["z"], "idle")
        then, other = (
            graph(n, [m], (), [(o, state)]) for n, m, o in (("t", node, "y"), ("e", idle, "z"))
        )
        branches = {"then_branch": then, "else_branch": other}
        s.nodes.append(onnx.helper.make_node("If", [flag], ["out"], "node", **branches))
    return s.network(s.op("Relu", "out", name="last"))


def cost_of(network, samples):
    roles = roles_of(network, low_type(FP16))
    runs, inside = seen_in_bodies(network, samples)
    shapes = seen_shapes(network, samples[0]) | inside
    model = CostModel(network, roles, shapes, runs=runs, low_io=float_io(network))
    return lambda *kept: model.cost(frozenset(kept))


def test_a_loop_costs_what_its_body_does_times_its_runs():
    network = with_body("Loop")

    def of(trips):
        return cost_of(network, [{"x": np.ones((4, 512), np.float32), "trips": np.array(trips)}])

    once, casts = 512 * 512 + 2 * 4 * 512, 2 * (2 + 4) * 4 * 512
    assert of(7)() - of(2)() == 5 * (2 * once + casts)
    assert of(7)("y_node") - of(2)("y_node") == 5 * 4 * once
    assert of(7)("relu", "y_node", "last") == pytest.approx(2 * of(7)(), rel=0.07)


def test_a_branch_costs_as_often_as_it_runs():
    network = with_body("If")
    x = np.ones((4, 512), np.float32)
    samples = [{"x": x, "flag": np.array(flag)} for flag in (True, False)]
    always, half, never = (cost_of(network, s) for s in (samples[:1], samples, samples[1:]))
    assert always() > 10 * never()
    # What the branch reads is written once, however often it runs.
    assert always() - half() == pytest.approx(half() - never(), rel=0.02)
    assert always("y_node") > 1.8 * always()


NONE: frozenset[str] = frozenset()
ROWS, WIDTH = 4, 16


def model_of(network, rows=ROWS, width=WIDTH, **more):
    shapes = seen_shapes(network, {"x": np.ones((rows, width), np.float32)})
    return CostModel(network, roles_of(network, low_type(FP16)), shapes, **more)


def sketched(steps, *, quantised=frozenset(), rows=ROWS, width=WIDTH):
    """A network of products, Relus and sums of what came before, some products with Q and DQ."""
    s = Sketch()
    built = [s.input("x", [rows, width])]

    def pair(value, name):
        parts = (value, f32(0.1), np.array(0, np.int8))
        whole = s.op("QuantizeLinear", *parts, name=f"{name}_q")
        return s.op("DequantizeLinear", whole, *parts[1:], name=f"{name}_dq")

    for i, (op, first, second) in enumerate(steps):
        a, b = (built[k % len(built)] for k in (first, second))
        if op == "MatMul":
            name, b = f"product_{i}", s.constant(f32(np.ones((width, width))), f"weight_{i}")
            if name in quantised:
                a, b = pair(a, f"{name}_a"), pair(b, f"{name}_b")
            built.append(s.op(op, a, b, name=name))
        else:
            built.append(s.op(op, *((a, b) if op == "Add" else (a,)), name=f"step_{i}"))
    read = {name for node in s.nodes for name in node.input}
    return s.network(*(name for name in built[1:] if name not in read))


STEPS = st.lists(
    st.tuples(st.sampled_from(("MatMul", "Relu", "Add")), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=9,
)


@given(STEPS, st.data())
def test_quantisations_are_seen_through(steps, data):
    plain = sketched(steps)
    names = sorted(str(n.name) for n in plain.nodes() if n.op_type == "MatMul")
    several = data.draw(st.frozensets(st.sampled_from(names))) if names else NONE
    kept = data.draw(st.frozensets(st.sampled_from([str(n.name) for n in plain.nodes()])))
    ours, others_cost = model_of(plain), model_of(sketched(steps, quantised=several))
    assert ours.cost(kept, int8=several) == others_cost.cost(kept)


def test_int8_reads_bytes_and_computes_twice_as_fast():
    chain = [("MatMul", i, 0) for i in range(3)]
    whole = frozenset(f"product_{i}" for i in range(3))
    weights, values = 3 * WIDTH**2, ROWS * WIDTH
    # The input is read in FP32 and quantised on its own; the last product gives FP32.
    moved = weights + (4 + 1) * values + 5 * values + 4 * values
    assert model_of(sketched(chain)).cost(NONE, int8=whole) == moved
    # Where sums are stored in FP32, a kernel between two products quantises them.
    sums = weights + (4 + 1) * values + 3 * (1 + 4) * values + 2 * (4 + 1) * values
    assert model_of(sketched(chain), int8_apart=True).cost(NONE, int8=whole) == sums
    # So it does behind a product in FP16, which writes no integers.
    last = frozenset(("product_2",))
    one = model_of(sketched(chain)).cost(NONE, int8=last)
    apart = model_of(sketched(chain), int8_apart=True).cost(NONE, int8=last)
    assert apart - one == 2 * 2 * values
    large = model_of(sketched(chain[:1], rows=2048, width=2048), 2048, 2048)
    flops = 2 * 2048**3 / FLOPS_PER_BYTE_INT8
    assert large.cost(NONE, int8=whole) == pytest.approx(flops + 5 * 2048**2)


@pytest.mark.parametrize(("channels", "filled"), [(1, 4), (3, 4), (4, 4), (6, 8)])
def test_channels_of_an_int8_convolution_are_filled_up_to_four(channels, filled):
    s = Sketch()
    x, weight = s.input("x", [1, 2 * channels, 8, 8]), f32(np.ones((2, channels, 3, 3)))
    network = s.network(s.op("Conv", x, weight, name="conv", group=2))
    sample = {"x": np.ones((1, 2 * channels, 8, 8), np.float32)}
    costs = [
        CostModel(network, roles_of(network), seen_shapes(network, sample), int8_apart=apart)
        for apart in (False, True)
    ]
    one, other = (
        model.traffic(frozenset(), int8=frozenset((NodeName("conv"),))) for model in costs
    )
    zeros = 2 * (filled - channels)
    # What quantises reads and writes them, the product reads them, and those of its weights.
    assert other - one == 3 * 64 * zeros + 9 * zeros


def test_one_left_out_reads_what_is_stored_beside_the_integers():
    steps = [("Relu", 0, 0), ("MatMul", 1, 0), ("MatMul", 1, 0), ("Add", 2, 3)]
    model, both = model_of(sketched(steps)), frozenset(("product_1", "product_2"))
    apart = model.cost(NONE, int8=both - {"product_2"}) - model.cost(NONE, int8=both)
    # Its weight and what it reads have another byte, and what both read is stored in FP16 too.
    assert apart == WIDTH**2 + (1 + 2) * ROWS * WIDTH


def named(network):
    return [(node_name(node), node) for node in network.nodes()]


def test_products_count_their_operations():
    s = Sketch()
    image = s.input("image", [1, 3, 8, 8])
    s.input("sequence", [5, 1, 4])
    y = s.op("Conv", image, f32(np.ones((6, 3, 3, 3))), name="conv")
    z = s.op("ConvTranspose", y, f32(np.ones((6, 2, 3, 3))), name="back")
    g = s.op("Gemm", s.op("Flatten", z, name="flat"), f32(np.ones((128, 10))), name="gemm")
    r = s.op(
        "RNN",
        "sequence",
        f32(np.ones((1, 7, 4))),
        f32(np.ones((1, 7, 7))),
        name="rnn",
        hidden_size=7,
    )
    network = s.network(g, r)
    sample = {"image": f32(np.ones((1, 3, 8, 8))), "sequence": f32(np.ones((5, 1, 4)))}
    roles, shapes = roles_of(network), seen_shapes(network, sample)
    parts = {
        n: described(node, roles[n], shapes, {}, has_bodies=False, times=1)
        for n, node in named(network)
    }
    flops = {name: part.flops for name, part in parts.items()}
    assert flops["conv"] == 2 * 6 * 6 * 6 * 3 * 9
    assert flops["back"] == 2 * 6 * 36 * 2 * 9
    assert flops["gemm"] == 2 * 128 * 10
    assert flops["rnn"] == 2 * 5 * 7 * (4 + 7)
    weights = {name: (part.stored, part.weights) for name, part in parts.items()}
    assert (weights["gemm"], weights["rnn"]) == ((1280, 1280), (77, 0))


def kernels_of(network):
    roles = roles_of(network)
    generated = {name for name, node in named(network) if is_generated(node, roles[name])}
    found: dict[str, set[str]] = {}
    for node, kernel in kernels(network.graph, generated).items():
        found.setdefault(kernel, set()).add(node)
    return sorted(map(sorted, found.values()))


def test_what_is_pointwise_belongs_to_the_product_before():
    s = Sketch()
    y = s.op("MatMul", s.input("x", [2, 4]), f32(np.ones((4, 4))), name="product")
    z = s.op("Relu", y, name="relu")
    network = s.network(s.op("MatMul", z, f32(np.ones((4, 4))), name="last"))
    assert kernels_of(network) == [["last"], ["product", "relu"]]


def test_sums_and_what_surrounds_them_are_one_kernel_between_products():
    s = Sketch()
    x = s.input("x", [2, 4])
    y = s.op("Add", x, s.op("MatMul", x, f32(np.ones((4, 4))), name="product"), name="sum")
    centred = s.op("Sub", y, s.op("ReduceMean", y, name="mean", axes=[-1]), name="centred")
    last = s.op("MatMul", centred, f32(np.ones((4, 4))), name="last")
    network = s.network(s.op("Add", y, last, name="again"))
    assert kernels_of(network) == [["again", "last"], ["centred", "mean", "sum"], ["product"]]


def gated():
    """A product whose result a Sigmoid gates, and one that reads it."""
    s = Sketch()
    weight = f32(np.ones((WIDTH, WIDTH)))
    y = s.op("MatMul", s.input("x", [ROWS, WIDTH]), weight, name="product")
    gate = s.op("Sigmoid", y, name="gate")
    return model_of(s.network(s.op("MatMul", s.op("Mul", y, gate, name="gated"), weight)))


def test_what_follows_a_product_leaves_its_kernel_where_two_types_read_one_value():
    model = gated()
    low, apart = model.traffic(NONE), model.traffic(frozenset(("gate",)))
    assert model.traffic(frozenset(("gate", "gated"))) == low
    # The product's result is written and read.
    assert apart == low + 2 * 2 * ROWS * WIDTH


def attending():
    """An attention of queries, keys and values that products give."""
    s = Sketch()
    x = s.input("x", [ROWS, WIDTH])
    q, k, v = (
        s.op("MatMul", x, f32(np.ones((WIDTH, WIDTH))), name=f"made_{name}") for name in "qkv"
    )
    scores = s.op("MatMul", q, s.op("Transpose", k, name="turn", perm=[1, 0]), name="scores")
    weights = s.op("Softmax", scores, name="softmax")
    return model_of(s.network(s.op("MatMul", weights, v, name="values")))


def test_attention_is_one_kernel_until_a_product_is_kept():
    model = attending()
    low = model.traffic(NONE)
    assert model.traffic(frozenset(("softmax",))) == low
    # Scores in FP32 are written and read, weights in FP16, and one input has a Cast of its own.
    kept = model.traffic(frozenset(("scores", "softmax", "turn")))
    assert kept > low + (2 * 4 + 2 * 2) * ROWS**2


def test_a_price_is_the_cost_that_worth_tells_and_the_model_runs_once(monkeypatch):
    runs = []

    def shapes_of(*args, **keywords):
        runs.append(1)
        return seen_shapes(*args, **keywords)

    ill = models.layer_norm()
    request = understand(ill.inputs, {})
    space = plans_of(load_case(ill.proto, request.data, request.criterion), request.settings)
    monkeypatch.setattr("halfwise.fixing.plan.plan.seen_shapes", shapes_of)
    none, prices = names(), space.variant.prices
    worth = worth_of(space, space.plan(none))
    assert worth is not None
    assert prices is not None
    assert space.cost(none) == worth.cost == 1
    assert space.cost(space.choices) == prices.fp32 == worth.fp32 > 1
    # A norm is one kernel, which reads and writes as its neighbours want it.
    assert space.cost(frozenset(sorted(space.choices)[:2])) == 1
    assert runs == [1]


def test_what_a_sequence_map_computes_is_not_seen_so_no_cost_is_known():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        mapped (float[4, 8] x) => (float[4, 8] y) {
            parts = SplitToSequence <axis = 0> (x)
            powers = SequenceMap <body = each (float[1, 8] a) => (float[1, 8] b) {
                b = Exp(a)
            }> (parts)
            y = ConcatFromSequence <axis = 0> (powers)
        }"""
    )
    request = understand({"x": np.ones((8, 4, 8), np.float32)}, {"allow_random": True})
    case = load_case(proto, request.data, request.criterion)
    roles = roles_of(case.network)
    assert cost_model(case, request.settings, roles, frozenset(), dict) is None
