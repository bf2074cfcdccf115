"""How much larger than its result the operands of a subtraction are."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from halfwise.observing.cancelling import cancellation
from tests.unit.observing.test_inner import close, f32, inner, rng, small


def test_cancellation_of_activations():
    body = """g (float[2,3] x, float[3] y) => (float[2,3] a, float[2,3] s)
        { a = Add (x, y) s = Sub (x, y) }"""
    y = f32([1000, 2000, 3000])
    near, far = f32([y + 1, y + 1]), f32([-y / 8, -y / 8])
    found = inner(body, 17, {"x": far, "y": y}, {"x": near, "y": y})
    assert found == [("Add", "cancellation", close(8 / 7), 0), ("Sub", "cancellation", 2001.0, 1)]


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


def test_differences_that_readers_clamp_away_do_not_count():
    """Of pairs of boxes, few overlap; those that do are tiny beside their coordinates."""
    body = """g (float[4] x, float[4] y) => (float[4] r, float[4] k, float[4] both, float[4] t)
        <float zero = {0}, float none = {}>
        { s = Sub (x, y) r = Relu (s) c = Sub (x, y) k = Max (c, zero)
          both = Sub (x, y) t = Relu (both) }"""
    sample = {"x": f32([1000, 1, 1, 1]), "y": f32([999, 900, 900, 900])}
    found = [value for op, kind, value, _ in inner(body, 17, sample) if kind == "cancellation"]
    assert found == [1000, 1000, close(900 / 899)]


@pytest.mark.parametrize("reader", ["Clip (x, zero, d)", "Clip (d, zero, d)", "Max (x, d)"])
def test_only_what_is_clamped_counts_as_clamped(reader):
    """The upper bound of a Clip passes on negative values."""
    body = f"""g (float x, float y) => (float r) <float zero = {{0}}>
        {{ d = Sub (x, y) r = {reader} }}"""
    found = inner(body, 17, {"x": f32(100), "y": f32(300)})
    assert found == [("Sub", "cancellation", 1.5, 0)]


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
    found = cancellation(a, b, -1)
    assert found == (np.median(ratios) if ratios else pytest.approx(math.nan, nan_ok=True))


@given(
    hnp.arrays(np.float32, st.integers(1, 40), elements=small),
    st.floats(0.0, 10.0) | st.just(math.inf) | st.none(),
)
def test_a_median_is_told_where_it_is_beyond_what_is_known(a, known):
    b = f32([3.0])
    median = cancellation(a, b, -1)
    # The median itself is the case that a count may get wrong.
    beyond = median if known is None else known
    found = cancellation(a, b, -1, beyond=beyond)
    assert found == median if median > beyond else math.isnan(found)


def test_what_is_drawn_is_where_the_whole_has_it():
    a = rng.standard_normal((3, 1, 257, 100)).astype(np.float32)
    b = rng.standard_normal((257, 1)).astype(np.float32)
    drawn = np.random.default_rng(0).integers(a.size, size=1 << 16)
    x, y = (np.broadcast_to(each, a.shape).ravel()[drawn].astype(np.float64) for each in (a, b))
    expected = np.median(np.maximum(np.abs(x), np.abs(y)) / np.abs(x + y))
    for _ in range(2):
        assert cancellation(a, b, 1) == expected


def test_cancellation_ignores_what_is_not_a_number():
    a = f32([np.nan, np.inf, 0, 4])
    assert cancellation(a, f32([1, 1, 0, -2]), 1) == 2.0
    assert math.isnan(cancellation(a[:3], f32([1, 1, 0]), 1))
    assert math.isnan(cancellation(a[:0], a[:0], 1))
    assert cancellation(np.ones(3, np.float32), np.ones(3, np.float32), -1) == math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(cancellation(f32([np.inf]), f32([np.inf]), -1))


def test_cancellation_of_very_large_tensors_is_drawn():
    # Both kinds of columns are seen although they alternate.
    a = np.ones((1 << 11, 1 << 11), np.float32)
    a[:, ::2] = 3
    found = cancellation(a, f32([[2.0]]), -1)
    assert 2.0 <= found <= 3.0


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
