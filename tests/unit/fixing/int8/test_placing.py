"""Q and DQ stand before the nodes asked for, and nowhere else."""

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper, parser
from onnxruntime import quantization as theirs
from onnxruntime.quantization.calibrate import TensorData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.fixing.int8.placing import activations, quantisable, quantised, scale_of
from halfwise.fixing.int8.ranges import Ranges, ranges
from halfwise.graph.model import Network, network_from_proto
from halfwise.graph.quantisation.pairs import QUANTISABLE
from halfwise.graph.weights import weight_bytes
from halfwise.records import TensorName

DOCUMENTED = {
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    "QuantizeBias": False,
    "DedicatedQDQPair": True,
    "OpTypesToExcludeOutputQuantization": [*QUANTISABLE],
    "QDQOpTypePerChannelSupportToAxis": {"MatMul": 1},
    "QDQDisableWeightAdjustForInt32Bias": True,
}
"""What its documentation gives for TensorRT; weights are stored as INT8."""
CHAIN = """
    c = Conv <pads = [1, 1, 1, 1]> (x, wc, bc)
    r = Relu (c)
    t = ConvTranspose (r, wt)
    f = Flatten (t)
    g = Gemm <transB = 1> (f, wg, bg)
    a = Sigmoid (g)
    y = MatMul (a, wm)
"""


def model(body: str, given: str, gives: str, opset: int = 17, **weights: np.ndarray) -> Network:
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> m ({given}) => ({gives}) {{{body}}}'
    proto = parser.parse_model(text)
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    for node in proto.graph.node:
        node.name = node.output[0]
    return network_from_proto(proto)


def chain(seed: int = 0, opset: int = 17) -> Network:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        # Channels differ widely, as those behind a BatchNorm do.
        return rng.normal(size=shape) * 10.0 ** rng.integers(-6, 3, shape[0]).reshape(
            -1, *[1] * (len(shape) - 1)
        )

    return model(
        CHAIN,
        "float[1, 2, 4, 4] x",
        "float[1, 4] y",
        opset,
        wc=normal(3, 2, 3, 3),
        bc=normal(3),
        wt=normal(3, 2, 1, 1),
        wg=normal(5, 32),
        bg=normal(5),
        wm=normal(5, 4),
    )


def ranged(network: Network, width: float = 3.0) -> Ranges:
    return {name: (-width * i, width) for i, name in enumerate(activations(network))}


def reads(node: ir.Node) -> list[str]:
    return [str(v.name) for v in node.inputs if v is not None]


def operators(network: Network) -> list[str]:
    return [node.op_type for node in network.nodes()]


@given(seed=st.integers(0, 1000), width=st.sampled_from((0.0, 1e-42, 1e-3, 7.0, 1e38)))
def test_where_theirs_does_what_tensorrt_wants_both_make_the_same_numbers(seed, width):
    network = chain(seed)
    proto = ir.serde.serialize_model(network.model)
    proto.metadata_props.add(key="onnx.infer", value="onnxruntime.quant")
    data = {
        name: TensorData(lowest=np.float32(low), highest=np.float32(high))
        for name, (low, high) in ranged(network, width).items()
    }
    int8 = theirs.QuantType.QInt8
    other = QDQQuantizer(proto, True, False, int8, int8, data, [], [], [*QUANTISABLE], DOCUMENTED)
    expected = {t.name: numpy_helper.to_array(t) for t in other.quantize_model().graph.initializer}
    made = quantised(network, quantisable(network), ranged(network, width)).graph
    assert len(expected) == 4 * 2 + 4 * 3 + 2
    for name, array in expected.items():
        found = made.initializers[name].const_value
        assert found is not None
        assert (found.numpy().dtype, found.numpy().tolist()) == (array.dtype, array.tolist())


@pytest.mark.parametrize("opset", [11, 17])
def test_all_read_pairs_and_the_file_holds_a_quarter(opset):
    network = chain(opset=opset)
    before = ir.serde.serialize_model(network.model)
    made = quantised(network, quantisable(network), ranged(network))
    assert quantisable(network) == ("c", "t", "g", "y")
    assert operators(made).count("QuantizeLinear") == 4
    assert operators(made).count("DequantizeLinear") == 8
    assert {n.name for n in network.nodes()} < {n.name for n in made.nodes()}
    assert {v.name for n in network.nodes() for v in n.outputs} < set(tensors(made))
    assert made.opset == max(opset, 13)
    assert made.graph.node("c").attributes.get_ints("kernel_shape") == (3, 3)
    assert {"wc", "wt", "wg", "wm"}.isdisjoint(made.graph.initializers)
    assert weight_bytes(made.model) < 0.6 * weight_bytes(network.model)
    assert ir.serde.serialize_model(network.model) == before
    x = {"x": np.random.default_rng(1).normal(size=(1, 2, 4, 4)).astype(np.float32)}
    assert np.isfinite(Session(made.model).run(x)["y"]).all()


def tensors(network: Network) -> list[str | None]:
    return [v.name for n in network.nodes() for v in n.outputs]


def test_other_readers_outputs_biases_and_attributes_are_as_before():
    rng = np.random.default_rng(0)
    network = model(
        """
        h = MatMul (x, w)
        s = Add (x, h)
        p = MatMul (x, w)
        q = MatMul (h, h)
        g = Gemm <alpha = 0.5, beta = 2.0> (h, w, b)
        k = Gemm <beta = 3.0> (q, w, b)
        m = MatMul (w, x)
        u = Transpose (w)
        v = MatMul (x, u)
        e = Mul (w, x)
        """,
        "float[4, 4] x",
        "float[4, 4] h, float[4, 4] s, float[4, 4] p, float[4, 4] k, float[4, 4] g, float[4, 4] m, "
        "float[4, 4] v, float[4, 4] e",
        w=rng.normal(size=(4, 4)),
        b=rng.normal(size=4),
    )
    nodes = quantisable(network)
    assert nodes == ("h", "p", "q", "g", "k", "m", "v")
    sample = {"x": rng.normal(size=(4, 4)).astype(np.float32)}
    made = quantised(network, nodes, ranges(network, Samples(("0",), lambda _: sample), "minmax"))
    by_name = {n.name: n for n in made.nodes()}
    for name in ("s", "e"):
        before = next(n for n in network.nodes() if n.name == name)
        assert reads(by_name[name]) == reads(before)
    # h is read by q, once for both slots, and g; x by h, p, m and v.
    read = [reads(n)[0] for n in made.nodes() if n.op_type == "QuantizeLinear"]
    assert sorted(read) == ["h", "h", "q", "x", "x", "x", "x"]
    assert by_name["g"].attributes.get_float("beta") == 2.0
    assert by_name["g"].inputs[2] is by_name["k"].inputs[2]
    int8 = [v for v in made.graph.initializers.values() if "_quantized" in str(v.name)]
    # By columns, by columns of its transpose, and as a first matrix with one scale.
    axes = {n.attributes.get_int("axis", None) for n in made.nodes() if n.inputs[0] in int8}
    assert axes == {0, 1, None}
    assert len(int8) == 3
    assert reads(by_name["u"])[0].startswith("w_DequantizeLinear")
    wide, low = Session(network.model).run(sample), Session(made.model).run(sample)
    assert all(
        np.allclose(wide[name], low[name], atol=0.1 * np.abs(wide[name]).max()) for name in wide
    )
    assert np.array_equal(low["s"], np.add(sample["x"], low["h"]))
    assert np.array_equal(wide["e"], low["e"])


def test_what_has_no_range_or_constants_that_are_not_finite_stays():
    weights = np.ones((4, 4))
    network = model(
        "h = MatMul (x, w)\n y = MatMul (h, i)\n z = MatMul (h, w)\n l = MatMul (w, w)",
        "float[4, 4] x",
        "float[4, 4] y, float[4, 4] z, float[4, 4] l",
        w=weights,
        i=weights * np.inf,
    )
    assert quantisable(network) == ("h", "z")
    made = quantised(network, quantisable(network), {TensorName("x"): (0.0, 1.0)})
    assert operators(made).count("QuantizeLinear") == 1
    assert operators(quantised(network, (), ranged(network))) == operators(network)
    assert made.sha256 == network.sha256


def test_a_scale_is_never_zero_or_subnormal():
    found = scale_of(np.array([0.0, 1e-44, 127.0]))
    assert found.tolist() == [1.0, 1.0, 1.0]
    assert scale_of(254.0).tolist() == 2.0
