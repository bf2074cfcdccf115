import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from halfwise.metrics import BUILT_IN, rises, usual
from halfwise.metrics.task import epe


@given(st.floats(allow_nan=False))
def test_errors_are_written_without_their_minus(value):
    assert usual("epe", -value) == value
    assert usual("top1", value) == value
    assert math.copysign(1, usual("epe", -0.0)) == 1
    assert math.copysign(1, usual("file.py:function", -0.0)) == 1


def test_what_rises_is_an_error_of_a_worse_flow():
    assert [name for name in BUILT_IN if rises(name)] == ["epe"]
    flow = np.zeros((1, 2, 8, 8), np.float32)
    assert usual("epe", epe([{"y": flow}], [{"y": flow + 3}], None)) > 0
    assert not rises("file.py:function")
