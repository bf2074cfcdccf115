import math
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from halfwise.emulation.ort import Session
from halfwise.fixing.attribute.evidence import Band, Evidence, graded, rescaling, weight_scaling
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.records import Observations
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.reporting.runs import observations

RATIOS = st.floats(min_value=0.0, allow_nan=False)


@given(st.sampled_from(Band), RATIOS, RATIOS)
def test_bands_never_overlap_and_grow_inside(band, one, other) -> None:
    assert band <= graded(band, one) < band + 1
    assert (one <= other) <= (graded(band, one) <= graded(band, other))


def test_infinity_is_the_gravest() -> None:
    assert graded(Band.OVERFLOW, math.inf) == graded(Band.OVERFLOW, 1e9)


def evidence(sketch: Sketch, output: str) -> Evidence:
    network = sketch.network(output)
    nothing = Observations(tensors=(), inner=(), samples=())
    return Evidence(network, roles_of(network), nothing, FP16, 2.0, "fp32")


def test_relative_error_of_storing_a_value() -> None:
    s = Sketch()
    facts = evidence(s, s.op("Relu", s.input("x", [1])))
    assert facts.relative_error(1.0) == 2.0**-11
    assert facts.relative_error(2.0**-24) == 0.5
    assert facts.relative_error(2.0**-25) == 1.0


def test_a_guard_names_free_compute_nodes_in_graph_order_or_is_none() -> None:
    s = Sketch()
    first = s.op("Relu", s.input("x", [4]), name="first")
    moved = s.op("Reshape", first, [2, 2], name="moved")
    facts = evidence(s, s.op("Exp", moved, name="last"))
    nodes = list(facts.nodes.values())
    words: dict[str, Any] = {"facts": {"value": 3.0, "sample": ""}, "fix": "", "severity": 1.0}
    (guard,) = facts.guard("overflow", nodes[1], None, nodes=reversed(nodes), **words)
    assert (guard.node, guard.nodes) == ("moved", ("first", "last"))
    assert facts.guard("overflow", nodes[1], None, nodes=nodes[1:2], **words) == []


def test_the_repair_of_the_norm_a_node_belongs_to() -> None:
    s = Sketch()
    x = s.input("x", [2, 4])
    root = s.op("Sqrt", s.op("ReduceMean", s.op("Mul", x, x), axes=[-1]), name="root")
    facts = evidence(s, s.op("Tanh", s.op("Div", x, root), name="outside"))
    assert "RMSNormalization" in facts.norm_fix(facts.nodes["root"], "otherwise")  # type: ignore[index]
    assert facts.norm_fix(facts.nodes["outside"], "otherwise") == "otherwise"  # type: ignore[index]


S = 2.0**-4
GENERATOR = np.random.default_rng(21)
W, V, BIAS = (f32(GENERATOR.normal(size=shape)) for shape in ((8, 8), (8, 8), (8,)))


def advice(proto, tensor: str, *, up: bool = False) -> str:
    network = network_from_proto(proto)
    evidence = Evidence(network, roles_of(network), observations(), FP16, 2.0, "fp32")
    [value] = [v for n in network.nodes() for v in n.outputs if v.name == tensor]
    return rescaling(evidence, value, up=up)


def chain(*middle: str, last: str = "Gemm", eps: float = 1e-5):
    """A Gemm, what hands a factor on, and what reads it."""
    s = Sketch()
    value = s.op("Gemm", s.input("x", [4, 8]), s.constant(W, "w"), s.constant(BIAS, "b"), name="a")
    for op in middle:
        value = s.op(op, value, name=op.lower())
    if last == "Gemm":
        y = s.op("Gemm", value, s.constant(V, "v"), s.constant(BIAS, "c"), name="z")
    elif last == "LayerNormalization":
        y = s.op(last, value, f32(np.ones(8)), name="z", epsilon=eps)
    else:
        y = s.op(last, value, name="z")
    return s.proto(y)


def scaled(proto, **factors: float):
    """Return the model with constants times factors, and with `eps` that of the norm."""
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    for tensor in found.graph.initializer:
        factor = factors.get(tensor.name, 1.0)
        array = f32(numpy_helper.to_array(tensor) * factor)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for node in found.graph.node:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f *= factors.get("eps", 1.0)
    return found


def largest_difference(a, b) -> float:
    x = {"x": f32(GENERATOR.normal(size=(4, 8)) * 1e-2)}
    runs = [Session(network_from_proto(p).model).run(x) for p in (a, b)]
    one, other = (f32(*outputs.values()) for outputs in runs)
    return float(np.abs(one - other).max() / np.abs(one).max())


@pytest.mark.parametrize("middle", [(), ("Relu",), ("Relu", "Neg"), ("Flatten", "Relu")])
def test_what_is_advised_between_products_leaves_the_function(middle):
    proto = chain(*middle)
    assert advice(proto, "a_out") == (
        "Scale weights and bias of a down by a power of two, and the weights alone of z up by it."
    )
    assert largest_difference(proto, scaled(proto, w=S, b=S, v=1 / S)) < 1e-6
    assert largest_difference(proto, scaled(proto, w=S, b=S, v=1 / S, c=1 / S)) > 1e-2


def test_before_a_norm_the_epsilon_has_to_be_scaled_too():
    proto = chain("Relu", last="LayerNormalization", eps=1e-3)
    assert advice(proto, "a_out") == (
        "Scale weights and bias of a down by a power of two, and the epsilon of z down by its "
        "square."
    )
    assert largest_difference(proto, scaled(proto, w=S, b=S, eps=S * S)) < 1e-5
    assert largest_difference(proto, scaled(proto, w=S, b=S)) > 1e-3


@pytest.mark.parametrize("proto", [chain(last="Tanh"), chain("Sigmoid"), chain("Relu", last="Exp")])
def test_where_no_scaling_leaves_the_function_none_is_advised(proto):
    assert advice(proto, "a_out") == ""


def test_another_reader_or_an_output_forbids_it():
    s = Sketch()
    value = s.op("Gemm", s.input("x", [4, 8]), W, name="a")
    y = s.op("Gemm", value, V, name="z")
    assert advice(s.proto(y), "a_out", up=True).startswith("Scale weights and bias of a up")
    assert advice(s.proto(y, value), "a_out") == ""
    assert advice(s.proto(y, s.op("Exp", value, name="other")), "a_out") == ""


def test_what_is_made_beside_weights_forbids_it():
    s = Sketch()
    x = s.input("x", [4, 8])
    both = s.op("Concat", s.op("Gemm", x, W, name="a"), x, name="both", axis=0)
    assert advice(s.proto(s.op("Gemm", both, V, name="z")), "both_out") == ""


def test_a_weight_is_scaled_only_where_it_is_a_factor():
    s = Sketch()
    weight = s.constant(W, "w")
    y = s.op("Add", s.op("MatMul", s.input("x", [8, 8]), weight, name="a"), weight, name="plus")
    network = network_from_proto(s.proto(y))
    value = network.graph.initializers["w"]
    first, second = network.nodes()
    assert weight_scaling([first], value).startswith(f"Scale {value.name} by a power of two")
    assert weight_scaling([first, second], value) == ""
