import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from halfwise.emulation.ort import Session
from halfwise.emulation.tf32 import (
    SWITCH_INPUT,
    TF32_PRECISION,
    emulate_tf32,
    round_tf32,
    tf32_nodes,
)
from tests.unit.graph.qdq import chain, last
from tests.unit.graph.sketch import Sketch, f32


def rounder(rounding):
    x = ir.val("x", ir.DataType.FLOAT, ir.Shape(["n"]))
    nodes, rounded = round_tf32(x, "r", rounding=rounding)
    graph = ir.Graph([x], [rounded], nodes=nodes, opset_imports={"": 17}, name="g")
    rounded.shape = ir.Shape(["n"])
    made = Session(ir.Model(graph, ir_version=8))
    (name,) = made.outputs
    return lambda array: np.asarray(made.run({"x": array})[name], np.float32)


@pytest.fixture(scope="module")
def session():
    return rounder("nearest")


@pytest.fixture(scope="module")
def truncating():
    return rounder("zero")


def by_bits(array, *, up):
    """Round to TF32 by its bits: to nearest, ties to the even or the farther neighbour."""
    bits = array.view(np.uint32)
    dropped = 24 - TF32_PRECISION
    half = np.uint32(1 << (dropped - 1))
    even = (bits >> np.uint32(dropped)) & np.uint32(1)
    offset = half if up else half - np.uint32(1) + even
    return ((bits + offset) & ~np.uint32((1 << dropped) - 1)).view(np.float32)


NORMAL = st.floats(2.0**-100, 2.0**99, width=32)


@given(arrays(np.float32, 64, elements=NORMAL), st.sampled_from([1, -1]))
def test_it_is_what_the_bits_say(session, values, sign):
    values = np.float32(sign) * values
    found = session(values)
    either = (found == by_bits(values, up=False)) | (found == by_bits(values, up=True))
    assert either.all()


@given(arrays(np.float32, 64, elements=NORMAL), st.sampled_from([1, -1]))
def test_toward_zero_is_what_the_first_bits_say(truncating, values, sign):
    values = np.float32(sign) * values
    kept = (
        values.view(np.uint32) & np.uint32(0xFFFFFFFF << (24 - TF32_PRECISION) & 0xFFFFFFFF)
    ).view(np.float32)
    np.testing.assert_array_equal(truncating(values), kept)


def test_half_the_spacing_is_the_largest_error(session):
    rng = np.random.default_rng(0)
    values = rng.normal(size=100_000).astype(np.float32) * np.float32(2.0) ** rng.integers(
        -60, 60, 100_000
    )
    values = values.astype(np.float32)
    found = session(values)
    spacing = 2.0 ** (np.frexp(values)[1].astype(np.float64) - TF32_PRECISION)
    assert (np.abs(found.astype(np.float64) - values) <= spacing / 2).all()
    mantissas = np.frexp(found)[0].astype(np.float64) * 2**TF32_PRECISION
    assert (mantissas == np.round(mantissas)).all()


@pytest.mark.parametrize("rounding", ["nearest", "zero"])
def test_what_it_leaves_alone(rounding):
    special = f32([0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1, 2, 0.5, 1 + 2.0**-10])
    np.testing.assert_array_equal(rounder(rounding)(special), special)


@pytest.mark.parametrize("rounding", ["nearest", "zero"])
def test_weights_are_rounded_as_other_factors_are(rounding):
    rng = np.random.default_rng(2)
    large = f32(rng.normal(size=(8, 8)) * 2.0 ** rng.integers(-130, 110, (8, 8)))
    sketch = Sketch()
    eye = sketch.input("eye", [8, 8])
    weight = sketch.constant(large)
    first = sketch.op("MatMul", eye, weight, name="first")
    network = sketch.network(first, sketch.op("MatMul", eye, weight, name="second"))
    session = Session(emulate_tf32(network, switched=True, rounding=rounding))
    rounded = rounder(rounding)(large.ravel()).reshape(8, 8)
    for row in range(8):
        # One row at a time, so that an infinity does not spoil others.
        unit = f32(np.eye(8)[[row] * 8])
        outputs = session.run({"eye": unit, SWITCH_INPUT: np.array([True, False])})
        np.testing.assert_array_equal(outputs["first_out"][0], rounded[row])
        np.testing.assert_array_equal(outputs["second_out"][0], large[row])


def test_products_round_both_factors():
    sketch = Sketch()
    x = sketch.input("x", [4, 64])
    rng = np.random.default_rng(1)
    weight = f32(rng.normal(size=(64, 8)))
    y = sketch.op("Add", sketch.op("MatMul", x, weight, name="product"), f32(1.0001), name="sum")
    network = sketch.network(y)
    sample = f32(rng.normal(size=(4, 64)))
    found = np.asarray(Session(emulate_tf32(network)).run({"x": sample})[y], np.float64)
    exact = sample.astype(np.float64) @ weight + np.float64(np.float32(1.0001))
    rounded = by_bits(sample, up=False).astype(np.float64) @ by_bits(weight, up=False)
    np.testing.assert_allclose(found, rounded + np.float64(np.float32(1.0001)), rtol=0, atol=2e-5)
    assert 1e-5 < np.abs(found - exact).max() < 0.05
    assert [n.op_type for n in network.nodes()] == ["MatMul", "Add"]


def test_products_of_integers_stay():
    s = chain(["second"])
    network = s.network(last(s))
    assert tf32_nodes(network) == ("first", "third")
    names = [str(n.name) for n in emulate_tf32(network).graph]
    assert any(name.startswith("first::tf32") for name in names)
    assert not any(name.startswith("second::tf32") for name in names)
