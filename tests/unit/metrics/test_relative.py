import numpy as np

from halfwise.metrics import relative_error


def test_relative_error():
    one = np.array([1.0, -2.0], np.float32)
    assert relative_error(one, one) == 0
    assert relative_error(one, one + np.float32(0.5)) == 0.25
    assert relative_error(one, one[:1]) == np.inf
    assert relative_error(one, np.array([1.0, np.nan], np.float32)) == np.inf
    assert relative_error(np.array([np.inf]), np.array([np.inf])) == 0
    assert relative_error(np.array([1]), np.array([2])) == np.inf
    assert relative_error(np.zeros(2), np.ones(2)) == np.inf
    assert relative_error(np.zeros(0), np.zeros(0)) == 0
