import numpy as np
import pytest

from halfwise.graph.modern.algebra import (
    INVERSE,
    MEAN,
    MEAN_SQUARED,
    ONE,
    SCALED,
    SQUARES,
    Polynomial,
    X,
    constant,
)

x = Polynomial({X: np.array(1.0)})


def test_the_variance_comes_out():
    mean = x.mean()
    assert mean is not None
    assert mean.terms == {MEAN: 1.0}
    centred = x + mean.scaled(-1)
    assert centred is not None
    square = centred * centred
    assert square is not None
    variance = square.mean()
    assert variance is not None
    assert variance.terms == {SQUARES: 1.0, MEAN_SQUARED: -1.0}
    assert variance.number(SQUARES) == 1.0
    assert variance.number(ONE) == 0.0
    assert variance.is_statistic
    assert not centred.is_statistic


def test_a_root_and_its_reciprocal_cancel():
    inverse = Polynomial({INVERSE: np.array(0.5)})
    root = inverse.reciprocal()
    assert root is not None
    product = root * inverse
    assert product is not None
    assert product.is_number
    assert (x * inverse).terms == {SCALED: 0.5}
    assert x.reciprocal() is None
    assert (x + inverse).reciprocal() is None
    assert constant(np.zeros(3)).reciprocal() is None


def test_what_is_no_polynomial():
    assert (x * x * x).mean() is None
    weighted = x * constant(np.arange(3.0))
    assert weighted.mean() is None
    assert weighted.number(X) is None
    fourth = (x * x) * (x * x)
    assert fourth * x is None
    assert constant(np.zeros((1 << 20) + 1)) is None


def test_terms_that_cancel_are_gone():
    assert (x + x.scaled(-1)).terms == {}


@pytest.mark.parametrize("array", [np.array(2.0), np.arange(3.0)])
def test_tensors_without_the_axes_meet_numbers_only(array):
    flat = Polynomial({MEAN: np.array(1.0)}, flat=True)
    product = flat * constant(array)
    assert (product is not None and product.flat) == (array.size == 1)
    assert (flat + x) is None
