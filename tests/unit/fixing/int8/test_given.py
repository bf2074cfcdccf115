import numpy as np
import pytest

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.fixing.int8.given import given_start
from halfwise.fixing.int8.placing import activations, quantisable, quantised
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, constant_array
from halfwise.graph.quantised import quantised_nodes
from tests.unit.casing import names
from tests.unit.fixing.int8.products import outlier
from tests.unit.graph.sketch import Sketch, f32

ORIGINAL = network_from_proto(outlier().proto)
RANGES = dict.fromkeys(activations(ORIGINAL), (-4.0, 4.0))
GIVEN = quantised(ORIGINAL, quantisable(ORIGINAL), RANGES)


def test_what_is_placed_has_int8_and_the_rest_floats_of_the_original():
    given = given_start(ORIGINAL, GIVEN)
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
    assert given_start(ORIGINAL, start) is None


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

    given = given_start(convolution(paired=False), convolution(paired=True))
    assert given is not None
    conv = given.place(names("conv")).graph.node("conv")
    assert conv.attributes.get_ints("kernel_shape") == (3, 1)


def test_pairs_of_no_product_go_and_what_they_cut_off_is_made_again():
    original, start = everywhere(quantised=False), everywhere(quantised=True)
    given = given_start(original, start)
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
        given_start(ORIGINAL, s.network(product))
    assert "INT4 weights alone and INT16 data cannot be used" in str(raised.value.hint)
