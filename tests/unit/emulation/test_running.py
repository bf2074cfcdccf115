"""What is known of a sum's length, and how a long one is divided."""

import numpy as np
import onnx_ir as ir

from halfwise.emulation.running import MOST, Call
from tests.unit.emulation.test_accumulate import compute


def test_the_least_size_that_is_known_counts() -> None:
    values = [ir.val("a", ir.DataType.FLOAT, shape) for shape in (["n", None], [12, 3])]
    call = Call(ir.node("MatMul", values), values)
    assert call.terms((0, [-1]), (1, [-2])) == 12
    assert call.terms((0, [-1])) is None
    assert call.is_short((1, [-2]))
    assert not Call(call.node, values, shortest=1).is_short((1, [-2]))


def test_a_longer_sum_is_rounded_as_often_as_the_longest() -> None:
    # 1 more is lost from 2048 on; two at a time are not, up to 4096.
    for terms, total in ((MOST, 2048), (2 * MOST, 4096)):
        ones = np.ones((1, terms), np.float32)
        assert compute("MatMul", [ones, ones.T.copy()], each=True) == total
