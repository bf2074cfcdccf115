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


def known(found: Polynomial | None) -> Polynomial:
    assert found is not None
    return found


def numbers(*values: float) -> Polynomial:
    return known(constant(np.array(values)))


x = Polynomial({X: np.array(1.0)})


def test_the_variance_comes_out():
    mean = known(x.mean())
    assert mean.terms == {MEAN: 1.0}
    centred = known(x + mean.scaled(-1))
    variance = known(known(centred * centred).mean())
    assert variance.terms == {SQUARES: 1.0, MEAN_SQUARED: -1.0}
    assert variance.number(SQUARES) == 1.0
    assert variance.number(ONE) == 0.0
    assert variance.is_statistic
    assert not centred.is_statistic


def test_a_root_and_its_reciprocal_cancel():
    inverse = Polynomial({INVERSE: np.array(0.5)})
    assert known(known(inverse.reciprocal()) * inverse).is_number
    assert known(x * inverse).terms == {SCALED: 0.5}
    assert x.reciprocal() is None
    assert known(x + inverse).reciprocal() is None
    assert numbers(0.0, 1.0).reciprocal() is None


def test_what_is_no_polynomial():
    cube = known(known(x * x) * x)
    assert cube.mean() is None
    weighted = known(x * numbers(0, 1, 2))
    assert weighted.mean() is None
    assert weighted.number(X) is None
    assert known(cube * x) * x is None
    assert constant(np.zeros((1 << 20) + 1)) is None


def test_terms_that_cancel_are_gone():
    assert known(x + x.scaled(-1)).terms == {}


@pytest.mark.parametrize("values", [(2.0,), (1.0, 2.0)])
def test_tensors_without_the_axes_meet_numbers_only(values):
    flat = Polynomial({MEAN: np.array(1.0)}, flat=True)
    product = flat * numbers(*values)
    assert (product is not None and product.flat) == (len(values) == 1)
    assert flat + x is None
