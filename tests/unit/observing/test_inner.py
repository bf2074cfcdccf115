"""Numbers about the inside of ops, against the definition written out in NumPy."""

import numpy as np
import pytest
from hypothesis import strategies as st
from onnx import parser

from halfwise.case import Samples
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import NodeRole, Role, Roles, roles_of
from halfwise.observing import observe
from halfwise.observing.inner import with_sums

rng = np.random.default_rng(7)
small = st.floats(-1000, 1000, width=32)


def f32(values):
    return np.array(values, np.float32)


def i64(values):
    return np.array(values, np.int64)


def network_of(body, opset):
    text = f'<ir_version: 8, opset_import: ["" : {opset}]>\n{body}'
    return network_from_proto(parser.parse_model(text))


def inner(body, opset, *samples):
    network = network_of(body, opset)
    given_samples = Samples(tuple(map(str, range(len(samples)))), lambda i: samples[i])
    found, _ = observe(network, given_samples, FP16, roles=roles_of(network))
    return [(i.op, i.kind, i.value, i.worst_sample) for i in found.inner]


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def close(value: float) -> object:
    return pytest.approx(float(value), rel=1e-5)


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
def test_squares(opset):
    axes = "l = ReduceL2 <axes = [1]> (x) q = ReduceSumSquare <axes = [1]> (x)"
    if opset >= 18:
        axes = "l = ReduceL2 (x, a) q = ReduceSumSquare (x, a)"
    body = f"""g (float[2,3] x) => (float[2,3] p, float[2,3] c, float[2,3] m, float[2,3] r,
        float[n,k] l, float[n2,k2] q)
        <float two = {{2}}, float three = {{3}}, float half = {{0.5}}, int64[1] a = {{1}}>
        {{ p = Pow(x, two) c = Pow(x, three) m = Mul(x, x) r = Pow(x, half) {axes} }}"""
    x, y = normal(2, 3), 300 * normal(2, 3)
    square, total = float(np.abs(y).max()) ** 2, (y.astype(np.float64) ** 2).sum(1).max()
    assert inner(body, opset, {"x": x}, {"x": y}, {"x": x}) == [
        ("Pow", "square", square, 1),
        ("Pow", "square", square, 1),
        ("Mul", "square", square, 1),
        ("ReduceL2", "square", close(total), 1),
        ("ReduceSumSquare", "square", close(total), 1),
    ]


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
def test_sums_of_reductions(opset):
    total = "s = ReduceSum <axes = [-1], keepdims = 0> (x)"
    if opset >= 13:
        total = "s = ReduceSum <keepdims = 0> (x, a)"
    mean = "m = ReduceMean (x, a)" if opset >= 18 else "m = ReduceMean <axes = [-1]> (x)"
    body = f"""g (float[2,3,4] x) => (float[n,k] s, float[n,k,l] m, float[2,3,1] p)
        <int64[1] a = {{-1}}> {{ {total} {mean} p = GlobalAveragePool (x) }}"""
    x = 100 * normal(2, 3, 4)
    value = close(np.abs(x).sum(-1).max())
    assert inner(body, opset, {"x": x / 2}, {"x": x}) == [
        ("ReduceSum", "sum", value, 1),
        ("ReduceMean", "sum", value, 1),
        ("GlobalAveragePool", "sum", value, 1),
    ]


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
def test_sums_of_softmax(opset):
    body = """g (float[2,3,4] x) => (float[2,3,4] d, float[2,3,4] y)
        { d = Softmax (x) y = Softmax <axis = 1> (x) }"""
    x = normal(2, 3, 4)

    def largest(axes):
        return np.exp(x - x.max(axes, keepdims=True)).sum(axes).max()

    expected = [largest((1, 2))] * 2 if opset < 13 else [largest(2), largest(1)]
    assert inner(body, opset, {"x": x}) == [("Softmax", "sum", close(e), 0) for e in expected]


@pytest.mark.parametrize("opset", [7, 11, 13, 18, 21])
def test_sums_of_products(opset):
    body = """g (float[1,2,5,5] x, float[3,2,3,3] w, float[3] b, float[4,3] p, float[5,4] q)
        => (float[1,3,5,5] conv, float[3,5] gemm, float[5,3] mat)
        {
          conv = Conv <pads = [1,1,1,1]> (x, w, b)
          c = MatMul (q, p)
          mat = Neg (c)
          gemm = Gemm <alpha = -0.5, beta = 7.0, transA = 1, transB = 1> (p, q, one)
        }"""
    body = body.replace("{\n", "<float[1] one = {1}> {\n", 1)
    sample = {
        "x": normal(1, 2, 5, 5),
        "w": normal(3, 2, 3, 3),
        "b": 1e6 * normal(3),
        "p": normal(4, 3),
        "q": normal(5, 4),
    }
    padded = np.pad(np.abs(sample["x"]), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded[0], (3, 3), axis=(1, 2))
    conv = np.einsum("cyxkl,ockl->oyx", windows, np.abs(sample["w"])).max()
    product = (np.abs(sample["q"]) @ np.abs(sample["p"])).max()
    assert sorted(inner(body, opset, sample)) == [
        ("Conv", "sum", close(conv), 0),
        ("Gemm", "sum", close(product), 0),
        ("MatMul", "sum", close(product), 0),
    ]


@pytest.mark.parametrize(("small", "computed"), [(48, 0), (47, 3)])
def test_magnitudes_of_small_constants_are_constants(small, computed, monkeypatch):
    """One node for each would be loaded in quadratic time."""
    monkeypatch.setattr("halfwise.graph.model.SMALL_BYTES", small)
    body = """g (float[4,3] x, float[3,4] z) => (float[4,4] a, float[4,4] b, float[3,3] c)
        <float[3,4] w = {1, -2, 3, -4, 5, -6, 7, -8, 9, -10, 11, -12}>
        { a = MatMul (x, w) b = Gemm (x, w) c = MatMul (w, x) }"""
    network = network_of(body, 17)
    model, _ = with_sums(network, roles_of(network))
    read = [n.inputs[0] for n in model.graph if n.op_type == "Abs"]
    weights = [v for v in read if v is not None and v.const_value]
    assert len(weights) == computed
    assert len(network.model.graph.initializers) == 1
    x, w = normal(4, 3), np.arange(1, 13).reshape(3, 4)
    right, left = close((np.abs(x) @ w).max()), close((w @ np.abs(x)).max())
    expected = [("MatMul", "sum", right, 0), ("Gemm", "sum", right, 0), ("MatMul", "sum", left, 0)]
    assert inner(body, 17, {"x": x, "z": x.T}) == expected


def test_nodes_that_must_stay_in_fp32_are_left_out():
    body = "g (float[3] x, float[3] z) => (float[3] y) { s = Mul (x, x) y = Add (s, z) }"
    network = network_of(body, 17)
    pinned = Roles({name: NodeRole(Role.PINNED, reason="test") for name in roles_of(network)})
    sample = {"x": normal(3), "z": normal(3)}
    assert inner(body, 17, sample) != []
    assert observe(network, Samples(("0",), lambda _: sample), FP16, roles=pinned)[0].inner == ()
