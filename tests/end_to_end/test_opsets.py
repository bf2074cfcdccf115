"""One tiny model per operator set, and one per operator that reads values to their own scale."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from halfwise.errors import PASSED, VERDICT_FAILED
from tests.models import Ill, signals, weights
from tests.unit.graph.sketch import f32

EDGES = (7, 9, 11, 13, 18, 25)
OPSETS = [
    pytest.param(opset, marks=() if opset in EDGES else pytest.mark.slow) for opset in range(7, 26)
]
IR_VERSIONS = {7: 3, 8: 3, 9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7}


class Writer:
    """A model in the making; constants are inputs too where the IR version demands it."""

    def __init__(self, opset):
        self.opset, self.nodes, self.constants = opset, [], []

    def constant(self, array):
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(self, op, *inputs, results=1, **attributes):
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        outputs = [f"{op}_{i}" for i in range(results)]
        self.nodes.append(helper.make_node(op, names, outputs, name=op.lower(), **attributes))
        return outputs[0]

    def model(self, x, y):
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (x, y)
        ]
        graph = helper.make_graph(self.nodes, "g", ends[:1], ends[1:], self.constants)
        if self.opset < 9:
            for tensor in self.constants:
                info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
                graph.input.append(info)
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=IR_VERSIONS.get(self.opset, 8 if self.opset < 19 else 10),
        )


def upsampled(w, x):
    scales = f32([1, 1, 2, 2])
    if w.opset < 9:
        return w.op("Upsample", x, scales=[1.0, 1.0, 2.0, 2.0], mode="nearest")
    if w.opset < 11:
        return w.op("Upsample" if w.opset == 9 else "Resize", x, scales, mode="nearest")
    return w.op("Resize", x, "" if w.opset >= 13 else f32([]), scales, mode="nearest")


def old_and_new(opset):
    w = Writer(opset)
    x = w.op("Conv", "x", weights(4, 3, 3, 3, seed=1, scale=0.2), np.zeros(4, np.float32))
    ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
    mode = {} if opset < 14 else {"training_mode": 0}
    mode |= {"spatial": 1} if opset < 9 else {}
    x = w.op("BatchNormalization", x, ones, zeros, zeros, ones, momentum=0.9, **mode)
    x = w.op("Relu", x)
    bounds = (np.float32(0), np.float32(6))
    x = w.op("Clip", x, min=0.0, max=6.0) if opset < 11 else w.op("Clip", x, *bounds)
    x = upsampled(w, x)
    if opset < 12:
        x = w.op("Dropout", x, results=2, ratio=0.5)
    else:
        x = w.op("Dropout", x, np.float32(0.5), np.bool_(False), results=2)
    x = w.op("Flatten", w.op("GlobalAveragePool", x))
    x = w.op("Gemm", x, weights(4, 5, seed=2, scale=0.5), np.zeros(5, np.float32))
    axes = {"axes": [1]} if opset < 13 else {}
    total = w.op("ReduceSum", x, *([np.array([1])] if opset >= 13 else []), **axes)
    y = w.op("Softmax", w.op("Sub", x, total), axis=1)
    return w.model(("x", [1, 3, 6, 6]), (y, [1, 5]))


@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset_ends_with_a_verdict(fix, opset):
    proto = old_and_new(opset)
    onnx.checker.check_model(proto, full_check=True)
    ended = fix(Ill(proto, {"x": signals(1, 3, 6, 6, seed=3)}))
    assert ended.code == 0, ended.err
    mixed = onnx.load(ended.model)
    onnx.checker.check_model(mixed, full_check=True)
    assert mixed.opset_import[0].version == opset
    low = [t.name for t in mixed.graph.initializer if t.data_type == TensorProto.FLOAT16]
    assert len(low) >= 2


OLD_OPSETS = [7, *(pytest.param(opset, marks=pytest.mark.slow) for opset in range(8, 12))]


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


@pytest.mark.parametrize("opset", OLD_OPSETS)
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
