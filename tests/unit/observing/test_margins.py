"""Margins of choices, against the definition written out in NumPy."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import parser

from halfwise.case import Samples
from halfwise.formats import BF16, FP16
from halfwise.graph.model import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.observing import observe
from halfwise.observing.margins import margin, rank_margin

small = st.floats(-1000, 1000, width=32)


def f32(values):
    return np.array(values, np.float32)


def inner(body, opset, *samples):
    text = f'<ir_version: 8, opset_import: ["" : {opset}]>\n{body}'
    network = network_from_proto(parser.parse_model(text))
    given_samples = Samples(tuple(map(str, range(len(samples)))), lambda i: samples[i])
    found, _ = observe(network, given_samples, FP16, roles=roles_of(network))
    return [(i.op, i.kind, i.value, i.worst_sample) for i in found.inner]


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
def test_margins(opset):
    body = """g (float[2,4] x, int64[1] n) => (int64[r] a, int64[2] b, float[m,k] v, int64[m,k] i,
        float[m2,k2] w, int64[m2,k2] j, int64[m3,k3] l)
        <int64[1] two = {2}>
        { a = ArgMax <axis = -1, keepdims = 0> (x) b = ArgMin <axis = 1, keepdims = 0> (x)
          v, i = TopK (x, two) w, j = TopK <largest = 0> (x, n) e = Mul (x, x)
          unused, l = TopK <axis = 0> (e, one) }"""
    body = body.replace("<int64[1] two = {2}>", "<int64[1] two = {2}, int64[1] one = {1}>")
    x = f32([[1, 8, 2, 4], [16, 4, 2, 0]])
    found: dict[str, list[float]] = {op: [] for op in ("ArgMax", "ArgMin", "TopK")}
    for op, kind, value, _ in inner(body, opset, {"x": x, "n": np.array([3], np.int64)}):
        if kind == "margin":
            found[op].append(value)
    assert found["ArgMax"] == [min(4 / FP16.ulp(8), 12 / FP16.ulp(16))]
    assert found["ArgMin"] == [min(1 / FP16.ulp(1), 2 / FP16.ulp(0))]
    k2 = min(2 / FP16.ulp(4), 2 / FP16.ulp(4))
    k3_smallest = min(4 / FP16.ulp(4), 12 / FP16.ulp(4))
    down_columns = 0.0
    assert found["TopK"] == [k2, k3_smallest, down_columns]


@pytest.mark.parametrize("given_threshold", [True, False])
def test_margins_of_suppression(given_threshold):
    body = """g (float[1,4,4] boxes, float[1,1,4] x, float[1] lowest) => (int64[n,3] chosen)
        <int64 most = {4}, float overlap = {0.5}> { scores = Relu (x)
          chosen = NonMaxSuppression (boxes, scores, most, overlap, lowest) }"""
    if not given_threshold:
        body = body.replace("overlap, lowest)", "overlap)")
    boxes = np.zeros((1, 4, 4), np.float32)
    sample = {"boxes": boxes, "x": f32([[[0.1, 0.5, 0.75, 0.101]]]), "lowest": f32([0.25])}
    expected = 0.25 / FP16.ulp(0.5) if given_threshold else (f32(0.101) - f32(0.1)) / FP16.ulp(0.1)
    (found,) = inner(body, 13, sample)
    assert found == ("NonMaxSuppression", "margin", pytest.approx(float(expected), rel=1e-6), 0)


@given(
    hnp.arrays(np.float32, (2, 6, 2), elements=small), st.integers(1, 5), st.sampled_from([1, -2])
)
def test_margin_is_the_smallest_gap_in_spacings(scores, k, axis):
    ranked = -np.sort(-scores.astype(np.float64), axis=1)
    expected = min(
        (ranked[i, k - 1, j] - ranked[i, k, j]) / FP16.ulp(abs(ranked[i, k - 1, j]))
        for i in range(2)
        for j in range(2)
    )
    assert margin(scores, k, axis, FP16) == expected


def test_margin_where_there_is_nothing_to_confuse():
    scores = f32([[1, 2, 3]])
    assert math.isnan(margin(scores, 3, 1, FP16))
    assert math.isnan(margin(scores, 0, 1, FP16))
    assert math.isnan(margin(scores[:0], 1, 1, FP16))
    assert math.isnan(margin(np.full((1, 3), np.nan, np.float32), 1, 1, FP16))
    assert margin(f32([[1, -np.inf]]), 1, 1, BF16) == math.inf


@given(hnp.arrays(np.float32, (2, 5), elements=small), small)
def test_rank_margin_is_the_smallest_gap_between_neighbours(scores, threshold):
    gaps = []
    for row in scores.astype(np.float64):
        ranked = sorted({*row[row > threshold], threshold})
        gaps += [(b - a) / FP16.ulp(abs(b)) for a, b in itertools.pairwise(ranked)]
    found = rank_margin(scores, threshold, FP16)
    assert found == (min(gaps) if gaps else pytest.approx(math.nan, nan_ok=True))


def test_rank_margin_where_nothing_competes():
    assert math.isnan(rank_margin(f32([[1, 1, np.nan]]), -np.inf, FP16))
    assert math.isnan(rank_margin(f32([[1, 2]]), 3.0, FP16))
    assert math.isnan(rank_margin(f32([[]]), -np.inf, FP16))
    assert rank_margin(f32([[2, 4, 4]]), -np.inf, FP16) == 2 / FP16.ulp(4)
