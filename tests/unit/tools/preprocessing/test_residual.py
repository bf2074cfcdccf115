import numpy as np

from halfwise.tools.preprocessing.residual import Residual, measure


def test_what_is_left():
    a, b = [np.zeros((2, 2))] * 2, [np.ones((2, 2)), np.full((2, 2), 3.0)]
    assert measure(a, b, lambda x: x + 1) == Residual(3.0, 2.0, np.sqrt(2.0))


def test_other_shapes():
    found = measure([np.zeros((2, 3))], [np.zeros((3, 2))], lambda x: x.T)
    assert found == Residual(None, 0.0, 0.0)
    found = measure([np.zeros((2, 3))], [np.zeros((3, 2))], lambda x: x)
    assert found.largest == np.inf


def test_only_what_both_show_counts():
    found = measure([np.zeros(3)], [np.array([9.0, 0, 0])], lambda x: x, lambda x: x[1:])
    assert (found.before, found.largest) == (9.0, 0.0)
