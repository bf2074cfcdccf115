from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, bodies, node_name
from halfwise.graph.quantised import pairs_of
from halfwise.graph.roles import is_float
from halfwise.records import (
    BuildConfig,
    BuildOutcome,
    EngineResult,
    Latency,
    NodeName,
    OutputError,
    Side,
    Verdict,
    replace,
)
from halfwise.tensorrt.constrain import (
    builder_flags,
    constraints,
    quantised_types,
    readable,
    refused,
    same_outputs,
    unmatched,
)
from tests import graph_rules
from tests.graphs import graphs, plans
from tests.unit.graph.sketch import Sketch

F32 = TensorProto.FLOAT
DIGITS = Path(__file__).resolve().parents[3] / "examples" / "digits" / "model.onnx"


def names(*values: str) -> frozenset[NodeName]:
    return frozenset(map(NodeName, values))


def node(op_type, inputs, outputs, name, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def network(nodes, outputs="y", kind=F32) -> Network:
    inputs = [
        helper.make_tensor_value_info("x", F32, [2, 4]),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
    ]
    infos = [helper.make_tensor_value_info(n, kind, [None] * 2) for n in outputs.split()]
    constants = [
        numpy_helper.from_array(np.ones((4, 4), np.float32), "proj.weight"),
    ]
    graph = helper.make_graph(nodes, "g", inputs, infos, constants)
    imports = [helper.make_opsetid("", 17)]
    return network_from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


# --- constraints ------------------------------------------------------------------------------


def test_casts_integers_booleans_and_shapes_take_no_constraint() -> None:
    nodes = [
        node("Exp", "x", "a", "exp"),
        node("ArgMax", "a", "best", "argmax", axis=1),
        node("Cast", "best", "f", "cast", to=F32),
        node("Shape", "a", "s", "shape"),
        node("Reshape", "a s", "r", "reshape"),
        node("Greater", "r f", "g", "greater"),
        node("Where", "g r f", "y", "where"),
    ]
    net = network(nodes)
    everything = names("exp", "argmax", "cast", "shape", "reshape", "greater", "where")
    assert constraints(net, everything) == ("exp", "reshape", "where")
    assert constraints(net, names("where", "exp")) == ("exp", "where")
    assert constraints(net, frozenset()) == ()


def test_bodies_are_constrained_in_place_of_their_node() -> None:
    value = helper.make_tensor_value_info("v", F32, [None] * 2)
    inner = [node("Exp", "x", "e", "exp"), node("Cast", "e", "v", "cast", to=F32)]
    branch = helper.make_graph(inner, "b", [], [value])
    other = helper.make_graph([node("Neg", "x", "v", "neg")], "o", [], [value])
    net = network([node("If", "flag", "y", "if", then_branch=branch, else_branch=other)])
    assert set(constraints(net, names("exp", "neg"))) == {"exp", "neg"}
    assert constraints(net, frozenset()) == ()


@given(graphs(opsets=graph_rules.EVERY_OPSET, rules=graph_rules.rules_at), st.data())
def test_constraints_are_of_fp32_nodes_with_float_results(drawn, data) -> None:
    net = network_from_proto(drawn.proto)
    fp32 = data.draw(plans(net))
    found = constraints(net, fp32)
    assert len(set(found)) == len(found)
    nodes = {node_name(n): n for n in net.model.graph.all_nodes()}
    for name in found:
        assert name in fp32
        assert any(is_float(v) for v in nodes[name].outputs)
        assert nodes[name].op_type not in ("Cast", "Constant", "Shape", "If", "Loop", "Scan")
    # And nothing else is left out.
    for name in fp32 - frozenset(found):
        rest = nodes[name]
        assert bodies(rest) or rest.op_type == "Cast" or not any(map(is_float, rest.outputs))


# --- what has no layer ------------------------------------------------------------------------


def test_nodes_without_a_layer_are_told_with_the_reason() -> None:
    nodes = [
        node("Transpose", "proj.weight", "w", "turn"),
        node("MatMul", "x w", "a", "product"),
        node("Identity", "a", "b", "same"),
        *(node("Exp", "b", f"y{i}", f"exp{i}") for i in range(7)),
    ]
    net = network(nodes, " ".join(f"y{i}" for i in range(7)))
    told = dict.fromkeys(names("turn", "same", *(f"exp{i}" for i in range(7))), "no layer names it")
    assert unmatched(net, told) == (
        "No constraint reached turn: it is computed from constants while the model is parsed.",
        "No constraint reached same: it only passes its input through.",
        "No constraint reached exp{0–6}: no layer names it.",
    )
    assert unmatched(net, {}) == ()


def result(error, median_ms=None, kept=0, snr_db=60.0):
    measured = OutputError(
        max_abs=error,
        rel_max=error,
        mean_abs=0.0,
        snr_db=snr_db,
        cosine=1.0,
        agreement=None,
        nonfinite=0,
        reference=Side(),
        worst_sample="0",
        passed=True,
    )
    verdict = Verdict(
        passed=True,
        level="engine",
        samples=("0",),
        unseen=True,
        outputs={} if error is None else {"y": measured},
        worst_sample="0",
    )
    build = BuildOutcome(
        number=1,
        purpose="",
        status="built",
        config=BuildConfig(model_sha256="0", typing="weak"),
        seconds=1.0,
    )
    latency = None
    if median_ms is not None:
        latency = Latency(
            shapes={},
            iterations=10,
            median_ms=median_ms,
            p99_ms=median_ms,
            device_bytes=1,
        )
    return EngineResult(name="", build=build, verdict=verdict, latency=latency, kept=kept)


def test_the_same_outputs_by_every_measure():
    one, again = result(2.3245811462402344e-06).verdict, result(2.3245811462402344e-06).verdict
    assert one is not None
    assert again is not None
    assert same_outputs(one, again)
    assert not same_outputs(one, result(2.33e-06).verdict)
    other = replace(one.outputs["y"], mean_abs=1e-9)
    assert not same_outputs(one, replace(one, outputs={"y": other}))
    assert not same_outputs(one, replace(one, samples=("1",)))


def test_outputs_without_any_error_prove_nothing():
    exact = result(0.0).verdict
    assert not same_outputs(exact, exact)
    broken = result(float("inf")).verdict
    assert not same_outputs(broken, broken)


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
    assert {*refused(network, version).values()} == reasons
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
    found = refused(network, (10, 0))
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
    assert constraints(network, everything) == ("relu",)
