"""Convolutions whose weights are computed state the size of their kernel; others stay."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.emulation.ort import Session
from halfwise.emulation.switched import SWITCH_INPUT, emulate_switched
from halfwise.emulation.typed import emulate_typed
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.quantised import (
    Census,
    census,
    give_kernel_shapes,
    moves_before,
    pairs_of,
    pairs_read,
    quantised_nodes,
    residuals,
    without_kernel_shape,
)
from halfwise.graph.roles import roles_of
from halfwise.options.loading import load_model
from halfwise.records import NodeName
from tests.unit.graph.qdq import LAYERS, SIZE, chain, last
from tests.unit.graph.sketch import Sketch, f32

ZERO = np.array(0, np.int8)


def test_a_node_reads_data_and_weights_through_pairs_behind_moves():
    s = chain(["second"], moved=True)
    network = s.network(last(s))
    data, weight = quantised_nodes(network)[NodeName("second")]
    assert quantised_nodes(network).keys() == {"second"}
    assert data.source is not None
    assert data.source.name == "first/relu_out"
    assert (float(data.scale), int(data.zero_point)) == (0.25, 3)
    assert (data.axis, data.block) == (None, None)
    assert (weight.source, weight.quantise, weight.axis) == (None, None, 0)
    assert weight.dtype.name == "INT8"
    ((reader, slot),) = weight.readers
    assert (reader.name, slot) == ("second", 1)
    assert [n.name for n in moves_before(reader, slot)] == ["second/transpose"]


@pytest.mark.parametrize("slot", [0, 1])
def test_a_node_with_one_pair_is_half_quantised(slot):
    s = Sketch()
    x, w = s.input("x", [2, 2]), s.constant(np.eye(2), "w")
    operands = [x, w]
    codes = s.op("QuantizeLinear", operands[slot], 0.5, ZERO)
    operands[slot] = s.op("DequantizeLinear", codes, 0.5, ZERO)
    network = s.network(s.op("MatMul", *operands, name="product"))
    assert census(network).half == 1
    assert not quantised_nodes(network)
    assert pairs_read(network)[NodeName("product")].keys() == {slot}


def with_pair(s, x, first, second):
    return s.op("DequantizeLinear", s.op("QuantizeLinear", x, *first), *second)


NONE = {
    "other scales": lambda s, x: with_pair(s, x, (0.5, ZERO), (0.25, ZERO)),
    "other zero points": lambda s, x: with_pair(s, x, (0.5, ZERO), (0.5, ZERO + np.int8(1))),
    "scales that are computed": lambda s, x: with_pair(
        s, x, (one := s.op("Add", s.input("scale", []), 1.0), ZERO), (one, ZERO)
    ),
    "integers that come in": lambda s, _: s.op("DequantizeLinear", s.input("q", [2, 2], 3), 0.5),
    "integers between": lambda s, x: s.op(
        "DequantizeLinear", s.op("Transpose", s.op("QuantizeLinear", x, 0.5, ZERO)), 0.5, ZERO
    ),
}


@pytest.mark.parametrize("case", NONE)
def test_what_means_more_than_to_quantise_is_no_pair(case):
    s = Sketch()
    assert not pairs_of(s.network(s.op("Relu", NONE[case](s, s.input("x", [2, 2])))))


def test_a_zero_point_may_be_left_out_and_one_scale_have_an_axis():
    s = Sketch()
    codes = s.op("QuantizeLinear", s.input("x", [2, 3]), f32([0.5]), np.zeros(1, np.int8))
    (pair,) = pairs_of(s.network(s.op("DequantizeLinear", codes, f32([0.5]), np.zeros(1, np.int8))))
    assert (pair.scale.shape, pair.zero_point.shape, pair.axis) == ((), (), None)
    s = Sketch()
    stored = s.constant(np.array([[1, -2], [3, 4]], np.int8))
    (pair,) = pairs_of(s.network(s.op("DequantizeLinear", stored, f32([0.5, 2]), axis=-1)))
    np.testing.assert_array_equal(pair.dequantised(), [[0.5, -4], [1.5, 8]])
    np.testing.assert_array_equal(pair.zero_point, [0, 0])


def test_whoever_reads_what_was_moved_is_a_reader_and_who_gives_it_out():
    s = Sketch()
    q = with_pair(s, s.input("x", [2, 2]), (0.5, ZERO), (0.5, ZERO))
    moved = s.op("Transpose", q, name="moved")
    given = s.op("Transpose", q, name="given")
    (pair,) = pairs_of(
        s.network(s.op("Relu", moved, name="relu"), s.op("Abs", q, name="abs"), given)
    )
    assert {node.name for node, _ in pair.readers} == {"relu", "abs", "given"}


@given(
    st.sets(st.sampled_from(LAYERS)), st.data(), st.booleans(),
    st.sampled_from([np.int8, ml_dtypes.int4]),
)  # fmt: skip
def test_around_pairs_both_emulations_agree_and_all_in_fp32_is_the_file(
    quantised, data, stored, dtype
):
    s = chain(quantised, stored=stored, dtype=dtype)
    network = s.network(last(s))
    roles = roles_of(network)
    free = sorted(name for name, role in roles.items() if role.free)
    switched = emulate_switched(network, roles, FP16)
    session = Session(switched.model)
    sample = {"x": np.random.default_rng(0).normal(size=(2, SIZE)).astype(np.float32) * 8}
    for fp32 in (data.draw(st.frozensets(st.sampled_from(free))), frozenset(roles)):
        (own,) = session.run({**sample, SWITCH_INPUT: switched.switches.switch(fp32)}).values()
        typed = emulate_typed(rewrite(network, roles, fp32, FP16).model)
        (other,) = Session(typed).run(sample).values()
        np.testing.assert_array_equal(own, other)
    (plain,) = Session(network.model).run(sample).values()
    np.testing.assert_array_equal(own, plain)


@pytest.mark.parametrize("kernel", [(2,), (3, 1), (1, 2, 3)])
def test_what_is_missing_is_given(kernel):
    s = Sketch()
    x = s.input("x", [1, 2, *[6] * len(kernel)])
    weights = np.ones((4, 2, *kernel), np.float32)
    computed = s.op("Conv", x, s.op("Identity", weights), name="computed")
    constant = s.op("Conv", x, weights, name="constant")
    given = s.op("Conv", x, s.op("Neg", weights), name="given", kernel_shape=list(kernel))
    open_ = s.op("Conv", x, s.input("w", [4, 2, *["k"] * len(kernel)]), name="open")
    network = s.network(computed, constant, given, open_)
    assert [n.name for n in without_kernel_shape(network.graph)] == ["computed"]
    give_kernel_shapes(network.graph)
    told = {n.name: n.attributes.get_ints("kernel_shape", ()) for n in network.graph}
    assert told["computed"] == told["given"] == kernel
    assert told["constant"] == told["open"] == ()


WEIGHT = f32(np.ones((2, 2, 1, 1)))


def conv(s: Sketch, x: str, name: str) -> str:
    return s.op("Conv", x, WEIGHT, name=name)


def block(kind: str, shape: list[int | str]) -> Sketch:
    s = Sketch(17)
    x = s.op("Relu", s.input("x", shape), name="start")
    y = conv(s, s.op("Relu", conv(s, x, "first"), name="act"), "second")
    if kind == "norm":
        y = s.op("BatchNormalization", y, *[f32(np.ones(2))] * 4, name="norm")
    if kind == "activation":
        y = s.op("Relu", y, name="last")
    other: str | np.ndarray = x
    if kind == "shortcut":
        other = conv(s, x, "shortcut")
    if kind == "bias":
        other = f32(np.ones((1, 2, 1, 1)))
    if kind == "broadcast":
        other = s.op("GlobalAveragePool", x, name="pool")
    total = s.op("Add", other, y, name="sum")
    if kind == "read twice":
        total = s.op("Mul", total, y, name="twice")
    s.op("Relu", total, name="end")
    return s


@pytest.mark.parametrize("shape", [[1, 2, 4, 4], ["n", 2, "h", "w"]])
@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("identity", {"sum": ("second", 0)}),
        ("norm", {"sum": ("second", 0)}),
        ("shortcut", {"sum": ("second", 0)}),
        ("activation", {}),
        ("bias", {}),
        ("broadcast", {}),
        ("read twice", {}),
    ],
)
def test_what_a_kernel_adds(kind, found, shape):
    s = block(kind, shape)
    assert residuals(s.network(s.nodes[-1].output[0])) == found


def test_convolutions_that_do_not_count():
    s = block("shortcut", [1, 2, 4, 4])
    network = s.network(s.nodes[-1].output[0])
    assert residuals(network, {NodeName("shortcut")}) == {"sum": ("shortcut", 1)}
    assert residuals(network, ()) == {}


IN_BODIES = """<ir_version: 8, opset_import: ["": 17]>
g (float[2, 2] x, bool c) => (float[2, 2] y) <float s = {0.1}, int8 z = {0}> {
    plain = MatMul(x, x)
    y = If (c) <
        then_branch = quantised () => (float[2, 2] a) {
            q = QuantizeLinear(plain, s, z) d = DequantizeLinear(q, s, z)
            r = QuantizeLinear(x, s, z) e = DequantizeLinear(r, s, z)
            a = MatMul(d, e)
        },
        else_branch = half () => (float[2, 2] b) {
            u = QuantizeLinear(plain, s, z) v = DequantizeLinear(u, s, z)
            b = MatMul(v, x)
        }
    >
}"""


def test_products_in_bodies_count():
    network = load_model(onnx.parser.parse_model(IN_BODIES))
    assert census(network) == Census(products=3, whole=1, half=1, integers=0, quantised=6)
