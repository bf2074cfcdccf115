import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import constant_array
from halfwise.graph.scaling import relations, rescale
from halfwise.records import TensorName
from tests.control import MATRIX, graph
from tests.graph_rules import EVERY_OPSET, rules_at
from tests.graphs import Drawn, graphs
from tests.unit.graph.scaling.solving import check, random_exponents
from tests.unit.graph.sketch import Sketch, f32

SAMPLE = {"x": f32([[1, -5, 7, 3e3], [2, 0, 0.1, -1]])}


def told(exponents: Mapping[str, int]) -> dict[TensorName, int]:
    return {TensorName(name): e for name, e in exponents.items()}


@given(graphs(opsets=EVERY_OPSET, rules=rules_at), st.integers(0, 2**16))
def test_any_exponents_that_fit_leave_every_output_as_it_is(drawn: Drawn, seed: int):
    net = network_from_proto(drawn.proto)
    # ONNX Runtime's MaxPool makes of nothing but NaN the lowest FP32 number.
    assume(not any(n.op_type == "MaxPool" for n in net.nodes()) or _is_finite(drawn))
    try:
        Session(net.copy())
    except CaseError:
        return
    exponents = random_exponents(relations(net.model), np.random.default_rng(seed), cuts=0.6)
    check(net, exponents, drawn.sample)


def _is_finite(drawn: Drawn) -> bool:
    arrays = [numpy_helper.to_array(t) for t in drawn.proto.graph.initializer]
    return all(np.isfinite(a).all() for a in (*arrays, *drawn.sample.values()))


def stream() -> tuple[Sketch, str]:
    """A stream of two parts that share a weight, up to a norm."""
    sketch = Sketch()
    x = sketch.input("x", ["batch", 4])
    weight = sketch.constant(f32(np.eye(4) * 3), "weight")
    hidden = sketch.op("MatMul", x, weight, name="embed")
    wider = sketch.op("MatMul", sketch.op("Tanh", x, name="tanh"), weight, name="wider")
    sketch.op("Add", hidden, wider, name="stream")
    return sketch, sketch.op("LayerNormalization", "stream_out", f32([1, 2, 3, 4]), name="norm")


def test_a_stream_up_to_a_norm_needs_no_node_and_the_norm_another_eps():
    sketch, norm = stream()
    names = ("embed_out", "wider_out", "stream_out")
    model = check(sketch.network(norm), told(dict.fromkeys(names, -6)), SAMPLE)
    assert [n.name for n in model.graph] == ["embed", "tanh", "wider", "stream", "norm"]
    eps = model.graph[-1].attributes["epsilon"].as_float()
    assert eps == float(np.float32(1e-5)) * 2.0**-12
    assert list(model.graph.initializers) == list(sketch.network(norm).graph.initializers)
    assert constant_array(model.graph.initializers["weight"])[0, 0] == 3 * 2.0**-6


def test_a_shared_weight_gets_a_copy_where_a_reader_needs_another_multiple():
    sketch, norm = stream()
    told_ = told({"embed_out": -6, "stream_out": -6, "wider_out@stream:1": -6})
    model = check(sketch.network(norm), told_, SAMPLE)
    assert [n.inputs[1].name for n in model.graph if n.op_type == "MatMul" and n.inputs[1]] == [
        "weight_scaled",
        "weight",
    ]
    assert [n.name for n in model.graph if n.op_type == "Mul"] == ["wider_out/Mul"]
    assert constant_array(model.graph.initializers["weight"])[0, 0] == 3


def test_outputs_and_readers_that_need_the_value_read_one_mul():
    sketch, norm = stream()
    end = sketch.op("Softmax", "stream_out", name="softmax")
    exponents = told(
        {
            **dict.fromkeys(("embed_out", "wider_out", "stream_out"), -6),
            **dict.fromkeys(("stream_out@output", "stream_out@softmax:0"), 0),
        }
    )
    model = check(sketch.network(norm, "stream_out", end), exponents, SAMPLE)
    (mul,) = (n for n in model.graph if n.op_type == "Mul")
    assert mul.outputs[0].name == "stream_out"
    assert [use.node.name for use in mul.outputs[0].uses()] == ["softmax"]
    assert mul.inputs[0] is not None
    assert {use.node.name for use in mul.inputs[0].uses()} == {"norm", mul.name}


def test_bodies_read_what_they_read():
    sketch, norm = stream()
    sketch.input("flag", [], 9)
    nodes = [helper.make_node("Exp", ["stream_out"], ["inside"])]
    other = [helper.make_node("Neg", ["weight"], ["otherwise"])]
    branches = {
        "then_branch": graph("then", nodes, (), [("inside", MATRIX)]),
        "else_branch": graph("else", other, (), [("otherwise", MATRIX)]),
    }
    chosen = sketch.op("If", "flag", name="if", **branches)
    net = sketch.network(norm, chosen)
    assert "stream_out@if:body" in relations(net.model).fixed
    exponents = dict.fromkeys(("embed_out", "wider_out", "stream_out"), -6)
    for flag in (True, False):
        sample = SAMPLE | {"flag": np.array(flag)}
        model = check(net, told(exponents | {"stream_out@if:body": 0}), sample)
    assert constant_array(model.graph.initializers["weight"])[0, 0] == 3
    with pytest.raises(CaseError, match="do not fit"):
        rescale(net.copy(), told(exponents))


def test_a_variance_may_be_scaled_into_the_scale():
    sketch = Sketch()
    x = sketch.input("x", ["batch", 4])
    parameters = (f32([1, 2, 3, 4]), f32([0.5] * 4), f32([9, 8, 7, 6]), f32([2e10] * 4))
    y = sketch.op("BatchNormalization", x, *parameters, name="norm")
    model = check(sketch.network(y), told({"constant_3@norm:4": -20}), SAMPLE)
    variance, scale = (model.graph.initializers[f"constant_{i}"] for i in (3, 0))
    assert constant_array(variance).max() == np.float32(2e10) * 2.0**-20
    assert constant_array(scale).max() == 4 * 2.0**-10
    with pytest.raises(CaseError, match="do not fit"):
        rescale(sketch.network(y).model, told({"constant_3@norm:4": -21}))


def test_what_is_scaled_under_a_logarithm_is_added_behind_it():
    sketch = Sketch()
    power = sketch.op("Pow", sketch.input("x", ["batch", 4]), f32(2.0), name="power")
    safe = sketch.op("Add", power, f32(1e-5), name="safe")
    end = sketch.op("Neg", sketch.op("Log", safe, name="log"), name="end")
    net = sketch.network(end, "log_out")
    exponents = told({"x@power:0": -8, "power_out": -16, "safe_out": -16})
    model = check(net, exponents, SAMPLE, close=True)
    names = ["x/Mul", "power", "safe", "log", "log_out/Add", "end"]
    assert [n.name for n in model.graph] == names
    assert constant_array(model.graph.initializers["log_out/operand"]) == np.float32(
        16 * math.log(2)
    )


def test_a_multiple_that_is_not_exact_is_refused():
    sketch = Sketch()
    x = sketch.input("x", ["batch", 4])
    net = sketch.network(sketch.op("Add", x, f32([1, 2.0**-120, 1, 1]), name="add"))
    with pytest.raises(CaseError, match=r"2\^-7 is not exact"):
        rescale(net.copy(), told({"x@add:0": -7, "add_out": -7, "add_out@output": 0}))
