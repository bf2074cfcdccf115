"""Counting on bits must agree with rounding every element by the format itself."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import parser

from halfwise.case import Samples
from halfwise.formats import BF16, FP16, Format
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.observing import observe_network
from halfwise.observing.statistics import DetailCounter, margin, rank_margin
from halfwise.records import Detail, replace

anything = hnp.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32))


def detail(fmt: Format, *arrays: np.ndarray) -> Detail:
    counter = DetailCounter(fmt)
    for array in arrays:
        counter.add(array)
    return counter.detail(len(arrays))


def neighbours(*values: float) -> np.ndarray:
    centre = np.array(values, np.float32)
    return np.concatenate(
        [
            np.nextafter(centre, np.float32(0)),
            centre,
            np.nextafter(centre, np.float32(np.inf)),
        ]
    )


@pytest.mark.parametrize(
    ("fmt", "values", "counts"),
    [
        (FP16, np.arange(2040, 2060), True),
        (FP16, [-3001, 0, 4097, 1e9], True),
        (FP16, np.arange(2049), False),
        (FP16, [4096, 8192, 1e5, np.inf], False),
        (FP16, [0, -2999, 0, -2999], False),
        (FP16, [2049, 2050, 2051, 0.5], False),
        (BF16, np.arange(300), True),
        (BF16, np.arange(257), False),
    ],
)
def test_whole_numbers_count_where_the_format_rounds_some(fmt, values, counts):
    assert detail(fmt, np.array(values, np.float32)).integers is counts


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)
@given(x=anything)
@example(neighbours(65504, 65519.996, 65520, 2.0**16, 2.0**-14, 2.0**-14 - 2.0**-25))
@example(neighbours(2.0**-24, 2.0**-25, 3 * 2.0**-25, 2.0**-126, 2.0**-149, 0))
@example(neighbours(BF16.max, BF16.flush_threshold))
def test_fractions_are_those_of_rounding_but_for_the_ends_of_binades(fmt, x):
    sizes = np.abs(x)
    last = (sizes >= fmt.overflow_threshold) & (sizes < 2.0 ** np.ceil(np.log2(fmt.max)))
    last |= (sizes < fmt.smallest_normal) & (
        sizes >= fmt.smallest_normal * (1 - 2.0**-fmt.precision)
    )
    x = x[np.isfinite(x) & ~last & (sizes != fmt.flush_threshold)]
    found = detail(fmt, x)
    rounded, finite = np.abs(fmt.round(x)), np.isfinite(x)
    nonzero = finite & (x != 0)
    becomes_subnormal = (rounded > 0) & (rounded < fmt.smallest_normal)
    assert found.overflow == (finite & np.isinf(rounded)).sum() / max(x.size, 1)
    assert found.flush == (nonzero & (rounded == 0)).sum() / max(nonzero.sum(), 1)
    assert found.subnormal == becomes_subnormal.sum() / max(x.size, 1)
    assert found.smallest_nonzero == np.abs(x[nonzero]).min(initial=np.inf)


@given(anything)
def test_histogram_counts_every_finite_element_once(x):
    histogram = detail(FP16, x).histogram
    magnitudes = np.abs(x[np.isfinite(x)].astype(np.float64))
    exponents = np.frexp(magnitudes[magnitudes > 0])[1] - 1
    expected = {int(e): int((exponents == e).sum()) for e in exponents}
    found = {histogram.first + i: c for i, c in enumerate(histogram.counts) if c}
    assert found == expected
    assert histogram.zeros == (magnitudes == 0).sum()
    assert not histogram.counts or (histogram.counts[0] and histogram.counts[-1])


@given(anything, anything)
def test_merging_samples_equals_one_large_sample(x, y):
    apart, together = detail(FP16, x, y), detail(FP16, np.concatenate([x, y]))
    assert replace(apart, samples=1) == together
    assert apart.samples == 2


def test_many_blocks_and_any_memory_order():
    x = np.random.default_rng(0).lognormal(0, 8, (300, 700)).astype(np.float32)
    found = detail(FP16, x)
    assert found == detail(FP16, np.asfortranarray(x)) == detail(FP16, x.T)
    assert found.overflow == pytest.approx(np.isinf(FP16.round(x)).mean(), rel=1e-2)
    assert sum(found.histogram.counts) == x.size


def test_no_elements():
    found = detail(FP16, np.zeros((0, 3), np.float32))
    assert found.smallest_nonzero == math.inf
    assert (found.overflow, found.flush, found.subnormal) == (0, 0, 0)
    assert (found.histogram.first, found.histogram.counts, found.histogram.zeros) == (0, (), 0)


def test_scalar():
    assert detail(FP16, np.array(-3, np.float32)).histogram.first == 1


small = st.floats(-1000, 1000, width=32)


def f32(values):
    return np.array(values, np.float32)


def inner(body, opset, *samples):
    text = f'<ir_version: 8, opset_import: ["" : {opset}]>\n{body}'
    network = network_from_proto(parser.parse_model(text))
    given_samples = Samples(tuple(map(str, range(len(samples)))), lambda i: samples[i])
    found, _ = observe_network(network, given_samples, FP16, roles=roles_of(network))
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
