"""Ranges are those that the samples have, however many there are and in whichever order."""

import math
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.quantization import calibrate as theirs

from halfwise.case import Samples
from halfwise.fixing.int8.ranges import (
    BINS,
    LEVELS,
    calibrate,
    entropy_bins,
    histogram,
    percentile_bins,
    ranges,
)
from halfwise.graph.model import Network
from halfwise.records import TensorName
from tests.unit.fixing.int8.test_placing import model

X = TensorName("x")


def net() -> Network:
    body = "h = MatMul (x, w)\n r = Relu (h)\n y = MatMul (r, w)"
    weights = np.random.default_rng(0).normal(size=(8, 8))
    return model(body, "float[n, 8] x", "float[n, 8] y", w=weights)


def samples(*arrays: np.ndarray) -> Samples:
    names = tuple(map(str, range(len(arrays))))
    return Samples(names, lambda i: {"x": arrays[i].astype(np.float32)})


class Reader(theirs.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, given: Samples) -> None:
        self._given = iter(given)

    def get_next(self):
        return next(self._given, None)


def their_ranges(
    folder: Path, network: Network, given: Samples, method: str
) -> dict[str, tuple[float, float]]:
    path, made = folder / "m.onnx", folder / "augmented.onnx"
    onnx.save(ir.serde.serialize_model(network.model), path)
    kind = theirs.CalibrationMethod[method]
    options = {"symmetric": method != "MinMax", "num_bins": BINS}
    calibrator = theirs.create_calibrator(path, ["MatMul"], made, kind, extra_options=options)
    calibrator.collect_data(Reader(given))
    data = calibrator.compute_data()
    ends = {name: data[name].range_value for name in data}
    return {name: (float(low.item()), float(high.item())) for name, (low, high) in ends.items()}


def test_minmax_and_percentile_are_theirs(tmp_path, capsys):
    rng = np.random.default_rng(1)
    given = samples(*(rng.standard_t(2, (500, 8)) for _ in range(5)))
    found = calibrate(net(), given, ("minmax", "percentile"))
    plain = their_ranges(tmp_path, net(), given, "MinMax")
    assert set(found["minmax"]) == {"x", "r"}
    for name, (low, high) in found["minmax"].items():
        assert (low, high) == plain[name]
    cut = their_ranges(tmp_path, net(), given, "Percentile")
    for name, (low, high) in found["percentile"].items():
        width = max(map(abs, plain[name])) / BINS
        assert max(-low, high) == pytest.approx(max(map(abs, cut[name])), abs=1.01 * width)
    assert capsys.readouterr().out


def test_order_does_not_matter_and_a_small_first_sample_takes_no_memory():
    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=(50, 8)) * scale for scale in (1e-12, 0.0, 1.0, 1e6)]
    one, other = calibrate(net(), samples(*arrays)), calibrate(net(), samples(*arrays[::-1]))
    assert one == other
    assert one["percentile"][X] == ranges(net(), samples(*arrays), "percentile")[X]


def test_what_is_not_finite_counts_nothing():
    bad = np.full((2, 8), np.nan)
    bad[0, 0], bad[0, 1], bad[1, 0] = np.inf, -3.0, 2.0
    found = calibrate(net(), samples(bad, np.zeros((0, 8))))
    assert found["minmax"] == {"x": (-3.0, 2.0)}
    assert found["entropy"][X] == found["percentile"][X] == (-3.0, 2.0)
    zeros = calibrate(net(), samples(np.zeros((2, 8))))
    assert all(found[X] == (0.0, 0.0) for found in zeros.values())


def test_a_histogram_counts_magnitudes():
    array = np.array([[-1.0, 0.0], [0.5, 1e-9]], np.float32)
    counts = histogram(array, 1.0)
    assert (counts.sum(), counts[0], counts[BINS // 2], counts[-1]) == (4, 2, 1, 1)
    assert histogram(array * 0, 0.0)[0] == 4


def divergence(counts: np.ndarray, size: int) -> float:
    """Return it as the slides tell it, element by element."""
    p = [float(c) for c in counts[:size]]
    p[-1] += float(counts[size:].sum())
    q = [0.0] * size
    for level in range(LEVELS):
        bins = [i for i in range(size) if i * LEVELS // size == level]
        filled = [i for i in bins if counts[i]]
        for i in filled:
            q[i] = sum(float(counts[j]) for j in bins) / len(filled)
    if any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
        return math.inf
    parts = [(a / sum(p), b / sum(q)) for a, b in zip(p, q, strict=True) if a]
    return sum(a * math.log(a / b) for a, b in parts)


@given(seed=st.integers(0, 1000), sparse=st.booleans(), tail=st.integers(1, 10**6))
def test_entropy_cuts_where_the_levels_lose_the_least(seed, sparse, tail):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(1000 * np.exp(-np.arange(168) / 20)) * (rng.random(168) > 0.5 * sparse)
    counts[-1] = tail
    cut = entropy_bins(counts)
    losses = {size: divergence(counts, size) for size in range(LEVELS, 169, 8)}
    assert losses[cut] == pytest.approx(min(losses.values()), rel=1e-9)


def test_both_cut_an_outlier_and_keep_what_is_even():
    even = np.full(BINS, 1000)
    assert entropy_bins(even) == BINS
    assert percentile_bins(even) == BINS
    outlier = (1e5 * np.exp(-((np.arange(BINS) / 100) ** 2))).astype(np.int64)
    outlier[-1] = 1
    assert 200 < entropy_bins(outlier) < 500
    assert 200 < percentile_bins(outlier) < 500
