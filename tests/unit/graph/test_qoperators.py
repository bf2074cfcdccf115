"""QOperator files as Q/DQ pairs."""

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from halfwise.emulation.ort import Session
from halfwise.graph.loading import load_network
from halfwise.graph.qoperators import as_pairs
from halfwise.graph.quantised import census, pairs_of, quantised_nodes
from tests.unit.graph.sketch import Sketch, f32

RNG = np.random.default_rng(0)
X = f32(RNG.normal(size=(6, 1, 3, 16, 16)))


class Images(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self):
        self.left = iter({"x": image} for image in X)

    def get_next(self):
        return next(self.left, None)


def every_operator() -> onnx.ModelProto:
    def kernel(*shape):
        return f32(RNG.normal(size=shape) * np.sqrt(2 / np.prod(shape[1:])))

    s = Sketch(17)
    x = s.input("x", [1, 3, 16, 16])
    x = s.op("Relu", s.op("Conv", x, kernel(8, 3, 3, 3), kernel(8), pads=[1] * 4))
    pooled = s.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = s.op("LeakyRelu", s.op("Conv", pooled, kernel(8, 8, 3, 3), pads=[1] * 4), alpha=0.1)
    x = s.op("AveragePool", s.op("Add", x, pooled), kernel_shape=[2, 2], strides=[2, 2])
    x = s.op("GlobalAveragePool", s.op("Transpose", x, perm=[0, 1, 3, 2]))
    x = s.op("Gemm", s.op("Reshape", x, [0, -1]), kernel(8, 10), kernel(10))
    y = s.op("MatMul", x, kernel(10, 10))
    ends = s.op("Sigmoid", s.op("Mul", y, x)), s.op("Softmax", y, axis=-1)
    return s.proto(s.op("Concat", *ends, axis=1))


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("activations", [QuantType.QUInt8, QuantType.QInt8])
def test_pairs_compute_what_the_operators_do(tmp_path, per_channel, activations):
    onnx.save(every_operator(), tmp_path / "float.onnx")
    quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "low.onnx",
        Images(),
        quant_format=QuantFormat.QOperator,
        per_channel=per_channel,
        activation_type=activations,
        weight_type=QuantType.QInt8,
    )
    network = load_network(tmp_path / "low.onnx")
    assert census(network).integers == 4
    written = as_pairs(network)
    assert len(quantised_nodes(written)) == census(written).products == 4
    assert not any(node.op_type.startswith(("QLinear", "QGemm")) for node in written.nodes())
    assert len(pairs_of(written)) >= 18
    theirs, ours = Session(network.model), Session(written.model)
    for image in X:
        for name, expected in theirs.run({"x": image}).items():
            step = 1 / 255
            given = f32(ours.run({"x": image})[name])
            np.testing.assert_allclose(given, f32(expected), atol=2 * step)


def test_other_models_stay():
    s = Sketch(17)
    network = s.network(s.op("Relu", s.input("x", [2])))
    assert as_pairs(network) is network
