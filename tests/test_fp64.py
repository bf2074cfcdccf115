"""FP64, which tests hold repairs to: convolutions, and what says FP32 somewhere."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from halfwise.emulation.ort import Session
from halfwise.errors import RunFailed
from tests.fp64 import in_fp64
from tests.unit.graph.sketch import Sketch, f32


@given(st.data(), st.sampled_from(("Conv", "ConvTranspose")), st.integers(1, 2))
def test_convolutions_are_those_of_onnx_runtime(data: Any, op: str, rank: int) -> None:
    def each(least: int, most: int, count: int = rank) -> list[int]:
        return [data.draw(st.integers(least, most)) for _ in range(count)]

    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    groups, kernel = data.draw(st.integers(1, 2)), each(1, 3)
    options: dict[str, Any] = {"strides": each(1, 3), "dilations": each(1, 2), "group": groups}
    options["pads"] = each(0, 1, 2 * rank)
    sizes, channels = each(4, 7), 2 * groups
    outer = (3 * groups, 2) if op == "Conv" else (channels, 3)
    weights = f32(generator.normal(size=(*outer, *kernel)))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, options["dilations"], strict=True)]
    assume(all(r <= n for r, n in zip(reach, sizes, strict=True)))
    assume(op == "Conv" or all(r > 2 for r in reach))
    x = (sketch := Sketch()).input("x", [2, channels, *sizes])
    network = sketch.network(sketch.op(op, x, weights, f32(np.arange(3 * groups)), **options))
    sample = {"x": f32(generator.normal(size=(2, channels, *sizes)))}
    (expected,) = Session(network.model).run(sample).values()
    (found,) = in_fp64(network.model, sample).values()
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, f32(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", ["runtime", "reference"])
def test_what_says_fp32_says_fp64(way: str) -> None:
    x = (sketch := Sketch(18)).input("x", [1, 4])
    filled = sketch.op("ConstantOfShape", sketch.op("Shape", x))
    counted = sketch.op("Cast", sketch.op("Cast", x, to=7), to=1)
    total = sketch.op("Add", sketch.op("Add", x, filled), counted)
    if way == "reference":
        total = sketch.op("Erf", total)
    network = sketch.network(sketch.op("Add", total, f32(1 / 3), name="last"))
    sample = {"x": f32([[1 / 3, 2.7, -1.2, 0]])}
    (expected,) = Session(network.model).run(sample).values()
    (found,) = in_fp64(network.model, sample).values()
    assert found.dtype == np.float64
    assert 0 < np.abs(found - expected).max() < 1e-6


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_largest_of_all_places_has_an_axis_for_each(rank: int) -> None:
    shape = [2, 3, *[4] * rank]
    x = (sketch := Sketch()).input("x", shape)
    network = sketch.network(sketch.op("GlobalMaxPool", x, name="last"))
    sample = {"x": f32(np.random.default_rng(0).normal(size=shape))}
    (expected,) = Session(network.model).run(sample).values()
    (found,) = in_fp64(network.model, sample).values()
    np.testing.assert_array_equal(found, f32(expected))


def test_a_norm_beside_a_convolution() -> None:
    """Only ONNX's reference has both, and its LayerNormalization computes inside in FP32 alone."""
    x = (sketch := Sketch()).input("x", [1, 2, 8])
    conv = sketch.op("Conv", x, f32(np.ones((2, 2, 1))), name="conv")
    network = sketch.network(
        sketch.op("LayerNormalization", conv, f32(np.ones(8)), axis=-1, name="last")
    )
    sample = {"x": f32(np.random.default_rng(0).normal(size=(1, 2, 8)))}
    (found,) = in_fp64(network.model, sample).values()
    total = sample["x"].astype(np.float64).sum(1, keepdims=True).repeat(2, 1)
    spread = ((total - total.mean(-1, keepdims=True)) ** 2).mean(-1, keepdims=True)
    right = (total - total.mean(-1, keepdims=True)) / np.sqrt(spread + np.float64(f32(1e-5)))
    np.testing.assert_allclose(found, right, rtol=1e-9)


def test_a_sample_that_fails_is_told():
    x = (sketch := Sketch()).input("x", [1, 2, "n"])
    made = sketch.op("Conv", x, f32(np.ones((3, 2, 3))))
    with pytest.raises(RunFailed, match="cannot be run in FP64"):
        in_fp64(sketch.network(made).model, {"x": f32([1])})
