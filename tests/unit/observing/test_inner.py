"""Numbers about the inside of ops, against the definition written out in NumPy."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import parser

from halfwise.case import Samples
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import NodeRole, Role, Roles, roles_of
from halfwise.observing import observe_network
from halfwise.observing.inner import cancellation, sums, with_twins

rng = np.random.default_rng(7)
small = st.floats(-1000, 1000, width=32)


def f32(values):
    return np.array(values, np.float32)


def i64(values):
    return np.array(values, np.int64)


def network_of(body, opset):
    text = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n{body}'
    return network_from_proto(parser.parse_model(text))


def inner(body, opset, *samples):
    network = network_of(body, opset)
    given_samples = Samples(tuple(map(str, range(len(samples)))), lambda i: samples[i])
    found, _ = observe_network(network, given_samples, FP16, roles=roles_of(network))
    return [(i.op, i.kind, i.value, i.worst_sample) for i in found.inner]


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def close(value: float) -> object:
    return pytest.approx(float(value), rel=1e-5)


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
    model, _ = with_twins(network, roles_of(network), sums)
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
    assert (
        observe_network(network, Samples(("0",), lambda _: sample), FP16, roles=pinned)[0].inner
        == ()
    )


def test_cancellation_of_activations():
    body = """g (float[2,3] x, float[3] y) => (float[2,3] a, float[2,3] s)
        { a = Add (x, y) s = Sub (x, y) }"""
    y = f32([1000, 2000, 3000])
    near, far = f32([y + 1, y + 1]), f32([-y / 8, -y / 8])
    found = inner(body, 17, {"x": far, "y": y}, {"x": near, "y": y})
    assert found == [("Add", "cancellation", close(8 / 7), 0), ("Sub", "cancellation", 2001.0, 1)]


@pytest.mark.parametrize("reader", ["Log", "Exp"])
def test_cancellation_in_a_product_before_a_logarithm(reader):
    body = f"""g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {{1, 1, -0.75, 1}}>
        {{ p = MatMul (x, w) s = Mul (p, p) y = {reader} (s) }}"""
    found = [one for one in inner(body, 17, {"x": f32([[1, 1]])}) if one[1] == "cancellation"]
    assert found == ([("MatMul", "cancellation", (7 + 1) / 2, 0)] * (reader == "Log"))


def test_cancellation_of_an_activation_with_a_constant():
    body = """g (float[2,3] x) => (float[2,3] s, float[2,3] r, float[2,3] k, float k2)
        <float[3] c = {1000, 2000, 3000}, float one = {1}>
        { s = Sub (x, c) r = Add (c, x) k = Sub (one, x) k2 = Add (one, one) }"""
    c = f32([1000, 2000, 3000])
    assert inner(body, 17, {"x": f32([c + 1, c + 1])}) == [
        ("Sub", "cancellation", 2001.0, 0),
        ("Add", "cancellation", close(2001 / 4001), 0),
        ("Sub", "cancellation", close(2001 / 2000), 0),
    ]


def test_what_equals_a_constant_does_not_cancel():
    body = """g (float[2,3] mask) => (float[2,3] y) <float one = {1}> { y = Sub (one, mask) }"""
    assert inner(body, 17, {"mask": f32([[1, 1, 1], [1, 1, 0]])}) == [
        ("Sub", "cancellation", 1.0, 0)
    ]
    assert inner(body, 17, {"mask": np.ones((2, 3), np.float32)}) == []


def between(a, b, sign, **counting):
    with np.errstate(invalid="ignore"):
        total = a + sign * b
    return cancellation(np.maximum(np.abs(a), np.abs(b)), total, **counting)


@given(
    hnp.arrays(np.float32, (3, 5), elements=small), hnp.arrays(np.float32, (3, 1), elements=small)
)
def test_cancellation_is_the_median(a, b):
    wide = np.broadcast_to(b, a.shape)
    ratios = [
        max(abs(x), abs(y)) / abs(x - y) if x != y else math.inf
        for x, y in zip(a.ravel().astype(float), wide.ravel().astype(float), strict=True)
        if x or y
    ]
    found = between(a, b, -1)
    expected = np.median(ratios) if ratios else math.nan
    assert found == pytest.approx(expected, rel=2**-23, nan_ok=True)


@given(
    hnp.arrays(np.float32, st.integers(1, 40), elements=small),
    st.floats(0.0, 10.0) | st.just(math.inf) | st.none(),
)
def test_a_median_is_told_where_it_is_beyond_what_is_known(a, known):
    b = f32([3.0])
    median = between(a, b, -1)
    # The median itself is the case that a count may get wrong.
    beyond = median if known is None else known
    found = between(a, b, -1, beyond=beyond)
    assert found == median if median > beyond else math.isnan(found)


def test_cancellation_ignores_what_is_not_a_number():
    a = f32([np.nan, np.inf, 0, 4])
    assert between(a, f32([1, 1, 0, -2]), 1) == 2.0
    assert math.isnan(between(a[:3], f32([1, 1, 0]), 1))
    assert math.isnan(between(a[:0], a[:0], 1))
    assert between(np.ones(3, np.float32), np.ones(3, np.float32), -1) == math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(between(f32([np.inf]), f32([np.inf]), -1))


def test_cancellation_of_large_tensors_is_drawn_where_the_session_runs():
    # Both kinds of columns are seen although they alternate.
    a = np.ones((1 << 9, 1 << 9), np.float32)
    a[:, ::2] = 3
    body = "g (float[512,512] x, float[512,1] m) => (float[512,512] y) { y = Sub (x, m) }"
    found = inner(body, 17, {"x": a, "m": np.full((512, 1), 2, np.float32)})
    [(_, _, value, _)] = found
    assert 2.0 <= value <= 3.0


X = (1000 + np.arange(16, dtype=np.float32)).reshape(1, 4, 4)
"""Each channel is 1000 and more, and 1.5 around its mean at most."""


def of_means(mean: np.ndarray) -> object:
    return close(float(np.median(np.maximum(X, mean) / np.abs(X - mean))))


@pytest.mark.parametrize(
    ("norm", "mean"),
    [
        ("InstanceNormalization (x, s, b)", X.mean(axis=2, keepdims=True)),
        ("LayerNormalization <axis = 1> (x, rows)", X.mean(axis=(1, 2), keepdims=True)),
        ("LayerNormalization (x, s)", X.mean(axis=2, keepdims=True)),
        (
            "GroupNormalization <num_groups = 2> (x, s, b)",
            X.reshape(2, 8).mean(axis=1).repeat(2).reshape(1, 4, 1),
        ),
        ("BatchNormalization (x, s, b, m, v)", np.full((1, 4, 1), 1000.5, np.float32)),
    ],
)
def test_a_norm_takes_a_mean_off(norm, mean):
    ones = "{1, 1, 1, 1}"
    body = f"""g (float[1,4,4] x) => (float[1,4,4] y) <float[4] s = {ones}, float[4] b = {ones},
        float[4] m = {{1000.5, 1000.5, 1000.5, 1000.5}}, float[4] v = {ones},
        float[4,4] rows = {{{", ".join("1" * 16)}}}>
        {{ y = {norm} }}"""
    found = [value for _, kind, value, _ in inner(body, 21, {"x": X}) if kind == "cancellation"]
    assert found == [of_means(mean)]


def test_a_norm_of_what_lies_around_zero_does_not_cancel():
    body = """g (float[1,1,4] x) => (float[1,1,4] y) <float[1] s = {1}, float[1] b = {0}>
        { y = InstanceNormalization (x, s, b) }"""
    found = inner(body, 17, {"x": f32([[[-1, 1, -2, 2]]])})
    assert [value for _, kind, value, _ in found if kind == "cancellation"] == [1.0]


@pytest.mark.parametrize(
    ("norm", "x"),
    [
        ("InstanceNormalization (x, s, b)", np.zeros((1, 2, 0))),
        ("InstanceNormalization (x, s, b)", np.full((1, 2, 4), 3e38)),
        ("GroupNormalization <num_groups = 1> (x, s, b)", np.full((1, 2, 2), [np.inf, -np.inf])),
        ("LayerNormalization (x, s)", np.full((1, 1, 2), [np.inf, -np.inf])),
    ],
)
def test_a_norm_of_nothing_or_without_a_finite_mean_has_no_cancellation(norm, x):
    body = f"""g (float[1,N,M] x) => (float[1,N,M] y) <float[2] s = {{1, 1}}, float[2] b = {{0, 0}}>
        {{ y = {norm} }}"""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = inner(body, 21, {"x": x.astype(np.float32)})
    assert "cancellation" not in {kind for _, kind, _, _ in found}


@pytest.mark.parametrize(
    ("more", "value"),
    [
        ("", 99.0),
        ("z = Neg (d)", 101 / 2),
        ("z = Where (m, d, x)", 101 / 2),
        ("z = Transpose (d)", 101 / 2),
    ],
)
def test_of_exponents_alone_the_operands_count(more, value):
    """e⁻⁹⁰ is nothing, e⁰ is exact, and of the others the larger operand is 90 to 101."""
    ends = ", float[5] z" if more else ""
    body = f"""g (float[5] x, float[5] y, bool[5] m) => (float[5] e{ends})
        {{ d = Sub (x, y) w = Where (m, d, x) e = Exp (w) {more} }}"""
    x, y = f32([10, 99, 100, 101, 90]), f32([100, 98, 100, 99, 88])
    sample = {"x": x, "y": y, "m": np.ones(5, bool)}
    found = [value for op, kind, value, _ in inner(body, 17, sample) if kind == "cancellation"]
    assert found[0] == pytest.approx(value)


def scores_of(x, weights, bias, past):
    """Return the scaled products of two heads of queries and keys: f32[1, 2, 4, past + 4]."""
    width = 16
    queries, keys = ((x @ weights + bias)[..., i * width : (i + 1) * width] for i in (0, 1))
    queries, keys = (a.reshape(1, 4, 2, 8).transpose(0, 2, 1, 3) for a in (queries, keys))
    return queries @ np.concatenate([past[0], keys], axis=2).transpose(0, 1, 3, 2) / np.sqrt(8)


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("places", [0, 3])
def test_scores_of_an_attention_with_a_cache(opset, places):
    body = """g (float[1,4,12] x, float[12,48] w, float[48] b, float[2,1,2,p,8] past)
        => (float[1,4,16] y) { y, present = com.microsoft.Attention
        <num_heads = 2, unidirectional = 1> (x, w, b, , past) }"""
    sample = {"x": normal(1, 4, 12), "w": normal(12, 48), "b": normal(48)}
    sample["past"] = normal(2, 1, 2, places, 8)
    scores = np.abs(scores_of(*sample.values())).max()
    assert inner(body, opset, sample) == [("Attention", "score", close(scores), 0)]


def test_scores_of_onnx_attention_are_those_before_caps_and_masks():
    body = """g (float[1,2,4,8] q, float[1,1,5,8] k, float[1,1,5,8] v, float[4,5] m)
        => (float[1,2,4,8] y) { y = Attention <softcap = 2.0, scale = 3.0> (q, k, v, m) }"""
    sample = {"q": normal(1, 2, 4, 8), "k": normal(1, 1, 5, 8), "v": normal(1, 1, 5, 8)}
    sample["m"] = -1e9 * (normal(4, 5) > 0).astype(np.float32)
    scores = 3 * np.abs(sample["q"] @ sample["k"].transpose(0, 1, 3, 2)).max()
    assert inner(body, 23, sample) == [("Attention", "score", close(scores), 0)]


@pytest.mark.parametrize("opset", [13, 18])
def test_sums_and_squares_of_a_norm_with_a_bias(opset):
    body = """g (float[1,4,8] x, float[1,4,8] s, float[8] g, float[8] b, float[8] a)
        => (float[1,4,8] y) { y = com.microsoft.SkipLayerNormalization (x, s, g, b, a) }"""
    sample = {"x": normal(1, 4, 8), "s": normal(1, 4, 8)}
    sample |= {name: normal(8) for name in "gba"}
    total = sample["x"] + sample["s"] + sample["a"]
    assert inner(body, opset, sample) == [
        ("SkipLayerNormalization", "residual", close(np.abs(total).max()), 0),
        ("SkipLayerNormalization", "mean-square", close((total**2).mean(-1).max()), 0),
    ]
