"""Operators that read values to their own scale, at operator sets that lack later conveniences."""

import numpy as np
import onnx
import pytest

from halfwise.errors import PASSED, VERDICT_FAILED
from tests.end_to_end.test_opsets import Writer
from tests.models import Ill, signals, weights

OPSETS = range(7, 12)


def logarithm(w, x):
    return w.op("Log", w.op("Add", w.op("Exp", x), np.float32(1)))


def reciprocal(w, x):
    return w.op("Reciprocal", w.op("Add", w.op("Abs", x), np.float32(0.5)))


def division(w, x):
    return w.op("Div", x, w.op("ReduceMax", x, axes=[1], keepdims=1))


def power(w, x):
    return w.op("Pow", w.op("Add", w.op("Abs", x), np.float32(0.5)), np.float32(-2))


def log_of_softmax(w, x):
    return w.op("Log", w.op("Softmax", x, axis=1))


def log_softmax(w, x):
    return w.op("LogSoftmax", x, axis=1)


def softmax(w, x):
    return w.op("Div", w.op("Softmax", x, axis=1), w.op("ReduceSum", x, axes=[1], keepdims=1))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(
    "head", [logarithm, reciprocal, division, power, log_of_softmax, log_softmax, softmax]
)
def test_probes_run_at_old_opsets(fix, call, head, opset):
    w = Writer(opset)
    x = w.op("MatMul", "x", weights(8, 8, seed=1, scale=0.3))
    proto = w.model(("x", [2, 8]), (head(w, x), [2, 8]))
    onnx.checker.check_model(proto, full_check=True)
    ended = fix(Ill(proto, {"x": signals(2, 8, seed=3)}))
    # Whether a plan passes is not asked here.
    assert ended.code in (PASSED, VERDICT_FAILED), ended.err
    assert ended.record["plan"] is not None
    assert call("observe", "model.onnx", "--inputs", "model.npz").code == 0
