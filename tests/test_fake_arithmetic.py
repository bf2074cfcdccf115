"""The stand-in for TensorRT has an arithmetic of its own: halfwise cannot confirm itself."""

import ast
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from tests.fake_tensorrt.model import read_model
from tests.fake_tensorrt.operators import KNOWN, kernel
from tests.fake_tensorrt.plan import Plan
from tests.fake_tensorrt.precision import compute_nodes
from tests.fake_tensorrt.program import Program
from tests.fake_tensorrt.rounding import BF16, FLOAT, HALF, rounded, rounded_weights, tf32

FOLDER = Path(__file__).parent / "fake_tensorrt"
_LIBRARIES = {"numpy", "onnx", "onnx_ir", "ml_dtypes", "google"}  # google.protobuf, onnx's own
_MODULES = sorted(FOLDER.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports, those that it names in a string too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} & {f"halfwise.{rest}" for rest in [node.value[9:]]}
    return found


@pytest.mark.parametrize("path", _MODULES, ids=lambda path: path.name)
def test_it_imports_nothing_of_halfwise(path: Path) -> None:
    others = {
        name
        for name in imported(path)
        if name.partition(".")[0] not in sys.stdlib_module_names | _LIBRARIES
        and not f"{name}.".startswith("tests.fake_tensorrt.")
    }
    assert not others


def test_imports_are_found(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text("import a.b\nfrom c.d import e\nimport_module('halfwise.f')\n'text'\n")
    assert imported(path) == {"a.b", "c.d", "halfwise.f"}


# Rounding.


def nearest(number: float, digits: int, least: int) -> Fraction:
    """Return a number with so many significant bits, none worth less than 2**least."""
    exact = Fraction(number)
    exponent = np.frexp(number)[1] - digits
    unit = Fraction(2) ** max(int(exponent), least)
    return round(exact / unit) * unit  # to nearest, ties to even


NUMBERS = st.floats(-6e4, 6e4) | st.floats(-1e-4, 1e-4) | st.integers(-5000, 5000).map(float)


@given(NUMBERS)
def test_types_round_to_nearest(number: float) -> None:
    assert rounded(number, HALF) == nearest(number, 11, -24)
    assert rounded(number, FLOAT) == nearest(number, 24, -149)
    single = float(np.float32(number))
    assert rounded(single, BF16) == nearest(single, 8, -133)
    assert tf32(single) == nearest(single, 11, -136)


@np.errstate(over="ignore")
def test_the_ends_of_the_ranges() -> None:
    ends = np.array([65519.9, 65520.0, -65520.0, np.inf, np.nan, 3e38, 4e38])
    inf = np.inf
    halves = [65504.0, inf, -inf, inf, np.nan, inf, inf]
    np.testing.assert_array_equal(rounded(ends, HALF), halves)
    assert np.isinf(rounded(ends, FLOAT)).tolist() == [0, 0, 0, 1, 0, 0, 1]
    largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    assert rounded(largest, BF16) == largest
    assert tf32(np.array([inf, -inf, np.nan]))[:2].tolist() == [inf, -inf]
    assert np.isnan(tf32(np.nan))


@np.errstate(over="ignore")
def test_weights_stay_finite_and_do_not_vanish() -> None:
    weights = np.array([1e6, -1e6, 1e-12, -1e-12, 0.0, 1.0, np.inf])
    kept = rounded_weights(weights, HALF)
    assert kept.tolist() == [65504, -65504, 2.0**-24, -(2.0**-24), 0, 1, np.inf]
    assert np.isnan(rounded_weights(np.array(np.nan), HALF))
    assert rounded_weights(np.array(1e-12), BF16) == rounded(1e-12, BF16) != 0


# Operators, against another implementation.

RNG = np.random.default_rng(0)
_X = RNG.uniform(0.5, 2.0, (2, 3, 4))
_I = np.array([[1, 0], [0, 2]])
_IMAGE = RNG.normal(size=(2, 4, 9, 8))


def _recurrent(gates: int) -> Sequence[Any]:
    """Return a sequence f[7, 2, 4], weights and biases of 5 hidden units, one direction."""
    rows = gates * 5
    sizes = (7, 2, 4), (1, rows, 4), (1, rows, 5), (1, 2 * rows)
    return tuple(RNG.normal(size=size, scale=0.5) for size in sizes)


_CASES: dict[str, tuple[Sequence[Any], Mapping[str, Any]]] = {
    **{op: ((_X - 1.2,), {}) for op in ("Abs", "Cos", "Erf", "Exp", "Identity", "Neg")},
    **{op: ((_X - 1.2,), {}) for op in ("Relu", "Sigmoid", "Sin", "Tanh")},
    **{op: ((_X,), {}) for op in ("Log", "Reciprocal", "Shape", "Sqrt")},
    **{op: ((_X, _X[0] + 0.1), {}) for op in ("Add", "Div", "Greater", "Mul", "Pow", "Sub")},
    "ArgMax": ((_X,), {"axis": 1}),
    "Cast": ((_X * 3,), {"to": onnx.TensorProto.INT64}),
    "AveragePool": ((_IMAGE,), {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 0, 0, 1]}),
    "BatchNormalization": ((_IMAGE, *RNG.uniform(0.5, 2.0, (4, 4))), {}),
    "Clip": ((_X, np.array(0.9), np.array(1.1)), {}),
    "Concat": ((_X, _X), {"axis": -1}),
    "Conv": (
        (RNG.normal(size=(2, 4, 9, 8)), RNG.normal(size=(6, 2, 3, 2)), RNG.normal(size=6)),
        {"group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]},
    ),
    "DequantizeLinear": (
        (np.arange(-12, 12, dtype=np.int8).reshape(2, 3, 4), _X[0, :, 0], np.zeros(3, np.int8)),
        {"axis": -2},
    ),
    "Expand": ((_X, np.array([5, 1, 1, 1])), {}),
    "Gather": ((_X, _I), {"axis": 2}),
    "GatherND": ((_X, _I), {}),
    "Gemm": ((_X[0], _X[1], _X[0, :, 0]), {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    "GRU": (_recurrent(3), {"hidden_size": 5, "linear_before_reset": 1}),
    "GlobalAveragePool": ((_IMAGE,), {}),
    "HannWindow": ((np.array(16),), {}),
    "InstanceNormalization": ((_IMAGE, *RNG.uniform(0.5, 2.0, (2, 4))), {}),
    "LSTM": (_recurrent(4), {"hidden_size": 5}),
    "LayerNormalization": ((_X, *RNG.uniform(0.5, 2.0, (2, 4))), {}),
    "LeakyRelu": ((_X - 1.2,), {"alpha": 0.2}),
    "MatMul": ((_X, np.swapaxes(_X, 1, 2)), {}),
    "MaxPool": ((_IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "NonZero": ((np.maximum(_X - 1, 0),), {}),
    "Not": ((_X > 1,), {}),
    "QuantizeLinear": ((_X * 90, np.array(0.7), np.array(0, np.int8)), {}),
    "ReduceMean": ((_X,), {"axes": [1, -1], "keepdims": 0}),
    "ReduceSum": ((_X, np.array([-1])), {}),
    "Reshape": ((_X, np.array([0, -1])), {}),
    "Round": ((np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.4999998]),), {}),
    "Slice": ((_X, np.array([-1]), np.array([0]), np.array([2]), np.array([-1])), {}),
    "Softmax": ((_X * 9,), {"axis": 1}),
    "Split": ((_X, np.array([4])), {"axis": 2}),
    "Squeeze": ((_X[:, :1], np.array([1])), {}),
    "TopK": ((_X, np.array([2])), {"axis": 1}),
    "Transpose": ((_X,), {"perm": [2, 0, 1]}),
    "Unsqueeze": ((_X, np.array([0, -1])), {}),
    "Where": ((_X > 1, _X, -_X), {}),
}


@pytest.mark.parametrize("op", sorted(KNOWN - {"Constant"}))
def test_an_operator_computes_what_onnx_runtime_does(op: str) -> None:
    arrays, attributes = _CASES[op]
    names = [f"x{i}" for i in range(len(arrays))]
    outputs = [f"y{i}" for i in range(2 if op == "TopK" else 1)]
    node = helper.make_node(op, names, outputs, "one", **attributes)
    singles = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in map(np.asarray, arrays)]
    ends = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, singles, strict=True)
    ]
    graph = helper.make_graph([node], "g", ends, [onnx.ValueInfoProto(name=y) for y in outputs])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    expected = session.run(None, dict(zip(names, singles, strict=True)))
    own = ir.serde.deserialize_graph(graph)[0]
    wide = [a.astype(float) if a.dtype.kind == "f" else a for a in singles]
    for found, wanted in zip(kernel(own, 17)(*wide), expected, strict=True):
        assert np.asarray(found).dtype.kind == np.asarray(wanted).dtype.kind
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


# What is stored and read in which type.

_CHAIN = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y)
    <float[1] w = {0.1}>
    { [scale] a = Mul(x, w) [up] b = Cast<to = 10>(a) [root] c = Sqrt(b)
      [down] d = Cast<to = 1>(c) [double] y = Add(d, d) }"""


def program(text: str = _CHAIN, **plan: Any) -> Program:
    model = read_model(onnx.parser.parse_model(text))
    asked = [str(v.name) for v in (*model.graph.outputs, *model.graph[0].outputs)]
    defaults = {"version": "8.6.1", "typing": "weak", "low": None, "tf32": False, "fp32": ()}
    proto = ir.serde.serialize_model(model).SerializeToString()
    return Program(Plan(**{**defaults, "outputs": asked, **plan}), proto)


X = np.array([1000.0 / 3, 0.1], np.float32)
HALVES = X.astype(np.float16).astype(np.float64)


def half(array: Any) -> Any:
    return np.asarray(array).astype(np.float16).astype(np.float64)


def test_weak_typing_without_a_low_format_is_fp32_whatever_the_casts_say() -> None:
    found = program().run({"x": X})
    product = (X.astype(float) * np.float32(0.1)).astype(np.float32)
    np.testing.assert_array_equal(found["a"], product)
    root = np.sqrt(product.astype(float)).astype(np.float32)
    np.testing.assert_array_equal(found["y"], root + root)


def test_layers_without_a_constraint_read_and_give_the_low_format() -> None:
    found = program(low="fp16").run({"x": X})
    product = half(HALVES * half(0.1))
    np.testing.assert_array_equal(found["a"], product)
    np.testing.assert_array_equal(found["y"], half(2 * half(np.sqrt(product))))


def test_a_constraint_makes_a_layer_read_and_give_fp32() -> None:
    found = program(low="fp16", fp32=["scale", "root"]).run({"x": X})
    product = (X.astype(float) * np.float32(0.1)).astype(np.float32)
    np.testing.assert_array_equal(found["a"], product)
    root = np.sqrt(product.astype(float)).astype(np.float32)
    np.testing.assert_array_equal(found["y"], half(2 * half(root)))
    assert program(low="fp16", fp32=["scale", "root"]).precision.low_nodes == {"double"}


def test_strong_typing_is_what_the_file_says() -> None:
    found = program(typing="strong").run({"x": X})
    product = (X.astype(float) * np.float32(0.1)).astype(np.float32)
    np.testing.assert_array_equal(found["a"], product)
    np.testing.assert_array_equal(found["y"], 2 * half(np.sqrt(half(product))))


_PRODUCT = """<ir_version: 8, opset_import: ["": 17]> g (float[1, 2] x) => (float[1, 1] y)
    <float[2, 1] w = {0.1, 0.7}> { [product] y = MatMul(x, w) }"""


@pytest.mark.parametrize("kept", [True, False])
def test_tf32_rounds_what_fp32_products_read(kept: bool) -> None:
    fp32 = ["product"] if kept else []
    low = program(_PRODUCT, low="fp16", tf32=True, fp32=fp32).run({"x": X[None]})["y"]
    weights = np.array([0.1, 0.7], np.float32)
    exact = tf32(X) @ tf32(weights) if kept else half(HALVES @ half(weights))
    np.testing.assert_array_equal(low[0, 0], np.float32(exact))


_QUANTISED = """<ir_version: 8, opset_import: ["": 17]> g (float[1, 2] x) => (float[1, 1] y)
    <float s = {0.01}, float[1] t = {0.003}, int8 z = {0}, int8[1] zs = {0},
     int8[1, 2] w = {33, -77}>
    { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
      v = DequantizeLinear<axis = 0>(w, t, zs) u = Transpose<perm = [1, 0]>(v)
      [product] p = MatMul(d, u) [double] y = Add(p, p) }"""


@pytest.mark.parametrize("typing", ["weak", "strong"])
def test_a_product_of_integers_rounds_nothing_but_what_is_quantised(typing: str) -> None:
    given = np.array([[0.123, -3.0]], np.float32)
    low = "fp16" if typing == "weak" else None
    made = program(_QUANTISED, low=low, typing=typing, tf32=True)
    product = np.float32((12 * 33 + 128 * 77) * float(np.float32(0.01)) * float(np.float32(0.003)))
    expected = half(2 * half(product)) if low else 2 * product
    np.testing.assert_allclose(made.run({"x": given})["y"], [[expected]], rtol=1e-7)
    assert made.precision.int8_nodes == {"product"}


def test_what_may_be_chosen_is_what_computes() -> None:
    text = _CHAIN.replace("[double] y = Add(d, d)", "[move] y = Identity(d)")
    assert compute_nodes(program(text).graph) == ("scale", "root")
