"""What TensorRT refuses of a quantised model, and the same function as it is read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.graph.quantised import pairs_of
from halfwise.graph.roles import roles_of
from halfwise.records import NodeName
from halfwise.tensorrt.constrain import constraints
from halfwise.tensorrt.quantised import builder_flags, quantised_types, readable, refused
from tests.unit.graph.sketch import Sketch

ZERO, ZEROS = np.array(0, np.int8), np.zeros(3, np.int8)


def product(weights, scale=0.1, zero=ZERO, bias=None, given_zero=True):
    """Return x [n, 3] · weights + bias behind a Relu, with integers in the file."""
    s = Sketch()
    read = (scale, zero) if given_zero else (scale,)
    data = s.op("Relu", s.input("x", ["n", 3]), name="relu")
    one = zero.reshape(-1)[0]
    codes = s.op("QuantizeLinear", data, 0.1, one)
    data = s.op("DequantizeLinear", codes, 0.1, one, name="data")
    axis = {"axis": 1} if np.ndim(scale) else {}
    weight = s.op("DequantizeLinear", s.constant(weights, "w"), *read, name="weight", **axis)
    more = [] if bias is None else [s.op("DequantizeLinear", s.constant(bias, "b"), 0.01)]
    return s.network(s.op("Gemm", data, weight, *more, name="product"))


W = np.arange(-4, 5, dtype=np.int8).reshape(3, 3)


@pytest.mark.parametrize(
    ("network", "reasons"),
    [
        (product(W), set()),
        (product(W, zero=np.array(3, np.int8)), {"zero-point"}),
        (product(W.astype(np.uint8), zero=np.array(0, np.uint8)), {"type"}),
        (product(W, scale=-0.1), {"scale"}),
        (product(W, scale=np.array([0.1, 0.2, 0.4]), zero=ZERO), set()),
        (product(W, bias=np.array([3, 4, 5], np.int32)), set()),
    ],
)
@pytest.mark.parametrize("version", [(8, 6), (11, 4)])
def test_what_is_refused(network, reasons, version):
    assert {each.reason for each in refused(network, version)} == reasons
    if reasons:
        with pytest.raises(CaseError, match=r"rejects this quantised model: .+ in .+"):
            readable(network, "8.6.1")


_READ = np.array(0.1, np.float32), ZERO
_PRODUCT = (W, *_READ, W, *_READ, *_READ)


def test_what_is_computed_or_dynamic_is_refused():
    s = Sketch()
    x = s.input("x", [2, 3])
    codes = s.op("QuantizeLinear", x, np.ones(3), ZEROS, axis=1, name="channels")
    most = s.op("ReduceMax", x, keepdims=0)
    computed = s.op("QuantizeLinear", x, most, ZERO, name="computed")
    network = s.network(codes, computed, s.op("QLinearMatMul", *_PRODUCT, name="operator"))
    found = {each.node: each.reason for each in refused(network, (10, 0))}
    assert found[NodeName("channels")] == "channels"
    assert found[NodeName("computed")] == "computed"
    assert found[NodeName("operator")] == "operator"


@given(
    hnp.arrays(np.int8, (3, 3)),
    st.sampled_from([0.1, 3e-4, np.array([0.1, 7e-3, 2.0])]),
    hnp.arrays(np.int32, 3) | st.none(),
    st.sampled_from(["8.6.1", "9.0", "10.3"]),
)
def test_what_is_read_computes_the_same_numbers(weights, scale, bias, version):
    given_zero = np.ndim(scale) == 0
    network = product(weights, scale, ZERO if given_zero else ZEROS, bias, given_zero)
    made = readable(network, version)
    x = {"x": np.linspace(-20, 20, 30, dtype=np.float32).reshape(10, 3)}
    ours, theirs = (Session(n.model).run(x) for n in (made, network))
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array)
    stored = [p for p in pairs_of(made) if p.source is None]
    assert len(stored) == (version == "10.3")
    assert not refused(made, (8, 6))
    assert quantised_types(made) == quantised_types(network) == {NodeName("product"): "int8"}


def test_what_changes_nothing_stays():
    network = product(W)
    assert readable(network, "10.3") is network
    assert readable(network, None) is network
    assert builder_flags(network) == ("int8",)


def test_a_convolution_with_computed_weights_states_its_kernel():
    s = Sketch()
    codes = s.op("QuantizeLinear", s.input("x", [1, 2, 5, 5]), 0.1, ZERO)
    data = s.op("DequantizeLinear", codes, 0.1, ZERO)
    stored = s.constant(np.ones((3, 2, 3, 1), np.int8), "w")
    weight = s.op("DequantizeLinear", stored, 0.1, ZERO)
    network = s.network(s.op("Conv", data, weight, name="conv", pads=[1, 0, 1, 0]))
    for version in ("8.6.0", "10.3"):
        (made,) = (n for n in readable(network, version).nodes() if n.name == "conv")
        assert made.attributes.get_ints("kernel_shape") == (3, 1)
    x = {"x": np.linspace(-9, 9, 50, dtype=np.float32).reshape(1, 2, 5, 5)}
    ours, theirs = (Session(n.model).run(x) for n in (readable(network, "8.6.0"), network))
    np.testing.assert_array_equal(ours["conv_out"], theirs["conv_out"])


def test_constraints_forbid_no_integers():
    network = product(W)
    everything = frozenset(NodeName(str(n.name)) for n in network.nodes())
    assert constraints(network, roles_of(network), everything) == ("relu",)
