"""QOperator files as Q/DQ pairs."""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

from halfwise.emulation.ort import Session
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.graph.qoperators import as_pairs
from halfwise.graph.quantised import census, pairs_of, quantised_nodes
from tests.unit.graph.qdq import Reader
from tests.unit.graph.sketch import Sketch, f32

RNG = np.random.default_rng(0)
X = f32(RNG.normal(size=(6, 1, 3, 16, 16)))


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
        Reader({"x": image} for image in X),
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


def scaled(*, alpha: float = 1.0, computed: bool = False) -> onnx.ModelProto:
    """A QGemm with a bias whose factor, or the scale of its data, is not the usual."""
    s = Sketch(17)
    x = s.input("x", [1, 8])
    scale, zero, one = s.constant(0.03), s.constant(np.zeros((), np.int8)), s.constant([0])
    if computed:
        scale = s.op("Squeeze", s.op("Mul", s.op("ReduceMax", s.op("Abs", x)), 0.008), one)
    codes = s.op("QuantizeLinear", x, scale, zero)
    weights = RNG.integers(-127, 127, (8, 4)).astype(np.int8)
    bias = RNG.integers(-4000, 4000, 4).astype(np.int32)
    s.op("QGemm", codes, scale, zero, weights, 0.01, zero, bias, alpha=alpha)
    ends = [helper.make_tensor_value_info(s.nodes[-1].output[0], onnx.TensorProto.FLOAT, [1, 4])]
    s.nodes[-1].domain = "com.microsoft"
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(s.nodes, "scaled", s.inputs, ends, s.constants)
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def test_a_factor_scales_the_bias_too():
    network = network_from_proto(scaled(alpha=0.5))
    written = as_pairs(network)
    assert "QGemm" not in {node.op_type for node in written.nodes()}
    x = {"x": f32(RNG.normal(size=(1, 8)))}
    (expected,), (given,) = (Session(n.model).run(x).values() for n in (network, written))
    np.testing.assert_allclose(f32(given), f32(expected), rtol=1e-5)


def test_a_node_with_a_computed_scale_stays():
    network = network_from_proto(scaled(computed=True))
    assert "QGemm" in {node.op_type for node in as_pairs(network).nodes()}


def test_integers_may_have_two_scales():
    """Tools merge stored integers that are equal."""
    s = Sketch(17)
    zero, weights = np.zeros((), np.int8), s.constant(RNG.integers(-9, 9, (8, 8)).astype(np.int8))
    x = s.op("QuantizeLinear", s.input("x", [1, 8]), 0.03, zero)
    products = (
        s.op("QLinearMatMul", x, 0.03, zero, weights, w, zero, 0.1, zero) for w in (1.0, 0.1)
    )
    network = s.network(*(s.op("DequantizeLinear", y, 0.1, zero) for y in products))
    fed = {"x": f32(RNG.normal(size=(1, 8)))}
    theirs, ours = (Session(n.model).run(fed).values() for n in (network, as_pairs(network)))
    for expected, given in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(f32(given), f32(expected), atol=0.101)
        assert np.abs(f32(expected)).max() > 0.2


def test_other_models_stay():
    s = Sketch(17)
    network = s.network(s.op("Relu", s.input("x", [2])))
    assert as_pairs(network) is network
