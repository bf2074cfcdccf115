"""Products and additions rounded one by one, against NumPy."""

import numpy as np
import pytest

from halfwise.formats import FP16
from tests.unit.emulation.test_accumulate import compute, direct_conv, dyadic, make


def each_rounded(products):
    """Add products along the last axis; they and all sums are rounded."""
    total = np.zeros(products.shape[:-1], np.float32)
    for term in np.moveaxis(products, -1, 0):
        total = FP16.round(total + FP16.round(term))
    return total


def values(*shape: int, seed: int):
    drawn = np.random.default_rng(seed).normal(size=shape)
    return FP16.round(drawn.astype(np.float32))


def matmul(a, b):
    return each_rounded(a[..., :, None, :] * np.swapaxes(b, -1, -2)[..., None, :, :])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("a", "b"), [((5, 33), (33, 7)), ((2, 3, 4, 64), (64, 6)), ((1, 2), (2, 1))]
)
def test_matmul(a, b, dynamic) -> None:
    x, y = values(*a, seed=0), values(*b, seed=1)
    result = compute("MatMul", [x, y], each=True, dynamic=dynamic)
    np.testing.assert_array_equal(result, matmul(x, y))


def test_gemm_and_einsum_sum_like_matmul() -> None:
    x, y = values(4, 50, seed=0), values(50, 6, seed=1)
    for result in (
        compute("Gemm", [x, y.T.copy()], {"transB": 1}, each=True),
        compute("Einsum", [x, y], {"equation": "ij,jk->ik"}, each=True),
        compute("Einsum", [x, y], {"equation": "ij, jk -> ki"}, each=True).T,
    ):
        np.testing.assert_array_equal(result, matmul(x, y))


@pytest.mark.parametrize("equation", ["ij,jk", "ij,jk->ijk", "ij,jj->ij", "...j,jk->...k"])
def test_other_einsums_stay_wide(equation) -> None:
    operands = [values(4, 4, seed=0), values(4, 4, seed=1)]
    assert make("Einsum", operands, {"equation": equation}, each=True)[1] is None


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_conv_rounds_each_tap(groups) -> None:
    x, w = values(2, 4, 9, 8, seed=0), values(8, 4 // groups, 3, 3, seed=1)
    attributes = {"pads": [1, 1, 1, 1], "strides": [2, 2], "group": groups}
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    expected = []
    for output, kernel in enumerate(w):
        first = output // (8 // groups) * (4 // groups)
        own = windows[:, first : first + 4 // groups].transpose(0, 2, 3, 1, 4, 5)
        terms = (own * kernel).reshape(*own.shape[:3], -1)
        expected.append(each_rounded(terms))
    result = compute("Conv", [x, w], attributes, each=True)
    np.testing.assert_array_equal(result, np.stack(expected, 1))


def test_exact_sums_are_those_of_an_ordinary_conv() -> None:
    x, w, b = dyadic(1, 2, 9, 8, scale=1), dyadic(3, 2, 3, 3, seed=1, scale=1, low=0), dyadic(3)
    attributes = {"pads": [1, 1, 1, 1], "strides": [2, 2], "kernel_shape": [3, 3]}
    exact = direct_conv(x, w / 16) + b[:, None, None]
    result = compute("Conv", [x, FP16.round(w / 16), b], attributes, each=True)
    np.testing.assert_allclose(result, exact, atol=0.2)


def test_conv_transpose_rounds_each_channel() -> None:
    x, w, b = values(2, 20, 4, 3, seed=0), values(20, 5, 1, 1, seed=1), values(5, seed=2)
    expected = matmul(x.transpose(0, 2, 3, 1), w[:, :, 0, 0]).transpose(0, 3, 1, 2)
    result = compute("ConvTranspose", [x, w, b], each=True)
    np.testing.assert_array_equal(result, expected + b[:, None, None])
    assert make("ConvTranspose", [x, w], {"group": 2}, each=True)[1] is None
