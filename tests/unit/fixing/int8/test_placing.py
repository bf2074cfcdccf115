"""Q and DQ stand before the nodes asked for, and nowhere else."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper, parser
from onnxruntime import quantization as theirs
from onnxruntime.quantization import calibrate as calibrators
from onnxruntime.quantization.calibrate import TensorData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from halfwise.api import fix
from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.probe import observable
from halfwise.errors import CaseError
from halfwise.fixing.int8.placing import (
    quantisable,
    quantised,
    quantised_start,
    scale_of,
)
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, constant_array
from halfwise.graph.quantised import QUANTISABLE, quantised_nodes
from halfwise.graph.weights import weight_bytes
from halfwise.records import TensorName
from tests.unit.casing import names
from tests.unit.fixing.int8.products import outlier, peaks_of
from tests.unit.graph.qdq import Reader
from tests.unit.graph.sketch import Sketch, f32

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


def ranged(network: Network, width: float = 3.0) -> dict[TensorName, float]:
    return {
        name: float(np.float32(width / (1 + i))) for i, name in enumerate(observable(network.model))
    }


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
        name: TensorData(lowest=np.float32(-peak), highest=np.float32(peak / 2))
        for name, peak in ranged(network, width).items()
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
        v = Gemm <transB = 1> (x, w)
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
    made = quantised(network, nodes, peaks_of(network, Samples(("0",), lambda _: sample)))
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
    made = quantised(network, quantisable(network), {TensorName("x"): 1.0})
    assert operators(made).count("QuantizeLinear") == 1
    assert operators(quantised(network, (), ranged(network))) == operators(network)
    assert made.sha256 == network.sha256


def test_a_scale_is_never_zero_or_subnormal():
    found = scale_of(np.array([0.0, 1e-44, 127.0]))
    assert found.tolist() == [1.0, 1.0, 1.0]
    assert scale_of(254.0).tolist() == 2.0


ORIGINAL = network_from_proto(outlier().proto)
RANGES = dict.fromkeys(observable(ORIGINAL.model), 4.0)
GIVEN = quantised(ORIGINAL, quantisable(ORIGINAL), RANGES)


def test_what_is_placed_has_int8_and_the_rest_floats_of_the_original():
    given = quantised_start(ORIGINAL, GIVEN)
    assert given is not None
    assert given.pairs.keys() == names(*(f"product{i}" for i in range(4)))
    assert not quantised_nodes(given.floats)
    some = names("product1", "product3")
    assert quantised_nodes(given.place(some)).keys() == some
    before = {n.name: n.inputs[-1] for n in ORIGINAL.nodes()}
    for node in (n for n in given.floats.nodes() if n.op_type == "MatMul"):
        weight, own = node.inputs[1], before[node.name]
        assert weight is not None
        assert own is not None
        assert (constant_array(weight) == constant_array(own)).all()


@pytest.mark.parametrize("start", [None, ORIGINAL])
def test_other_starts_are_none_of_a_quantised_model(start):
    assert quantised_start(ORIGINAL, start) is None


def everywhere(*, quantised: bool) -> Network:
    """Two products and a Relu between; quantised, each tensor has a pair, and no Relu is needed."""
    s = Sketch()
    zero, scale = np.array(0, np.uint8), 0.125

    def paired(value: str) -> str:
        codes = s.op("QuantizeLinear", value, scale, zero)
        return s.op("DequantizeLinear", codes, scale, zero, name=f"{value}/dq")

    weight = f32(np.diag([1, -2, 3, -4]))
    x = s.input("x", [2, 4])
    for name in ("first", "second"):
        given = s.constant(np.rint(weight / scale).astype(np.int8))
        given = s.op("DequantizeLinear", given, scale) if quantised else s.constant(weight)
        x = s.op("MatMul", paired(x) if quantised else x, given, name=name)
        x = x if quantised else s.op("Relu", x, name=f"{name}/relu")
        s.nodes[-1].output[0] = x = f"{name}/y"
    s.op("Identity", paired(x) if quantised else x, name="end")
    s.nodes[-1].output[0] = "y"
    return s.network("y")


def test_a_placed_convolution_states_its_kernel():
    def convolution(*, paired: bool) -> Network:
        s = Sketch()
        x, w = s.input("x", [1, 2, 4, 4]), s.constant(f32(np.ones((3, 2, 3, 1))), "w")
        for name in ("x", "w") if paired else ():
            codes = s.op("QuantizeLinear", name, 0.1, np.array(0, np.int8))
            value = s.op("DequantizeLinear", codes, 0.1, np.array(0, np.int8))
            x, w = (value, w) if name == "x" else (x, value)
        return s.network(s.op("Conv", x, w, name="conv"))

    given = quantised_start(convolution(paired=False), convolution(paired=True))
    assert given is not None
    conv = given.place(names("conv")).graph.node("conv")
    assert conv.attributes.get_ints("kernel_shape") == (3, 1)


def test_pairs_of_no_product_go_and_what_they_cut_off_is_made_again():
    original, start = everywhere(quantised=False), everywhere(quantised=True)
    given = quantised_start(original, start)
    assert given is not None
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    plain, whole, quantised = (
        Session(network.model).run({"x": x})["y"]
        for network in (original, given.place(names("first", "second")), start)
    )
    for network in (given.floats, given.place(frozenset())):
        np.testing.assert_array_equal(Session(network.model).run({"x": x})["y"], plain)
        assert not any("Quantize" in n.op_type for n in network.nodes())
    ops = [n.op_type for n in given.place(names("second")).nodes()]
    assert (ops.count("QuantizeLinear"), ops.count("Relu")) == (1, 2)
    np.testing.assert_allclose(f32(whole), f32(quantised), atol=0.0625)


def test_a_quantised_model_without_products_that_read_pairs_is_no_start():
    s = Sketch()
    x, weight = s.input("x", [2, 4]), s.constant(np.eye(4, dtype=np.int8))
    product = s.op("MatMul", x, s.op("DequantizeLinear", weight, 0.5))
    with pytest.raises(CaseError, match="and DQ of at most 8 bits") as raised:
        quantised_start(ORIGINAL, s.network(product))
    assert "INT4 weights alone and INT16 data cannot be used" in str(raised.value.hint)


X = TensorName("x")


def net() -> Network:
    body = "h = MatMul (x, w)\n r = Relu (h)\n y = MatMul (r, w)"
    weights = np.random.default_rng(0).normal(size=(8, 8))
    return model(body, "float[n, 8] x", "float[n, 8] y", w=weights)


def samples(*arrays: np.ndarray) -> Samples:
    names = tuple(map(str, range(len(arrays))))
    return Samples(names, lambda i: {"x": arrays[i].astype(np.float32)})


def their_ranges(folder: Path, network: Network, given: Samples) -> dict[str, tuple[float, float]]:
    path, made = folder / "m.onnx", folder / "augmented.onnx"
    onnx.save(ir.serde.serialize_model(network.model), path)
    kind = calibrators.CalibrationMethod.MinMax
    calibrator = calibrators.create_calibrator(path, ["MatMul"], made, kind)
    calibrator.collect_data(Reader(given))
    data = calibrator.compute_data()
    ends = {name: data[name].range_value for name in data}
    return {name: (float(low.item()), float(high.item())) for name, (low, high) in ends.items()}


def test_ranges_are_theirs(tmp_path):
    rng = np.random.default_rng(1)
    given = samples(*(rng.standard_t(2, (500, 8)) for _ in range(5)))
    found, theirs = peaks_of(net(), given), their_ranges(tmp_path, net(), given)
    both = {TensorName(name): max(map(abs, theirs[name])) for name in ("x", "r")}
    assert both.items() <= found.items()


def test_order_does_not_matter():
    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=(50, 8)) * scale for scale in (1e-12, 0.0, 1.0, 1e6)]
    assert peaks_of(net(), samples(*arrays)) == peaks_of(net(), samples(*arrays[::-1]))


def test_what_is_not_finite_counts_nothing():
    bad = np.full((2, 8), np.nan)
    bad[0, 0], bad[0, 1], bad[1, 0] = np.inf, -3.0, 2.0
    assert peaks_of(net(), samples(bad, np.zeros((0, 8)))) == {"x": 3.0}
    assert peaks_of(net(), samples(np.zeros((2, 8)))) == {}


def test_what_is_zero_or_one_has_a_range():
    assert peaks_of(net(), samples(np.eye(8)))[TensorName("x")] == 1
    assert "x" not in peaks_of(net(), samples(np.ones((2, 8))))


SIZE = 8
DATA = np.cumsum(np.random.default_rng(1).uniform(0.1, 1, (12, 1, 4, SIZE)), axis=0)


def two_products():
    """One of the first input, and one of the second; both are added."""
    s = Sketch(17)
    ends: list[str] = []
    for name in ("x", "z"):
        weight = f32(np.random.default_rng(len(ends)).normal(size=(SIZE, SIZE)))
        ends.append(s.op("MatMul", s.input(name, [1, 4, SIZE]), weight, name=f"of_{name}"))
    return s, s.op("Add", *ends, name="sum")


def test_what_reads_a_tensor_without_a_range_is_left_out():
    s, end = two_products()
    inputs = {"x": f32(DATA), "z": f32(np.zeros_like(DATA))}
    run = fix(s.proto(end), inputs, to="int8", rel_max=0.05, allow_random=True).run
    assert run.plan is not None
    assert run.plan.int8 == ("of_x",)
