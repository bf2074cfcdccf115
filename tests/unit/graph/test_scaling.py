import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, constant_array
from halfwise.graph.scaling import (
    HOMOGENEOUS,
    INVARIANT,
    RULES,
    Relations,
    at_once,
    completed,
    relations,
    rescale,
)
from halfwise.graph.weights import binades
from halfwise.records import TensorName
from tests.control import MATRIX, graph
from tests.graph_rules import EVERY_OPSET, rules_at
from tests.graphs import Drawn, graphs
from tests.unit.graph.sketch import Operand, Sketch, f32
from tests.unit.graph.solving import check, random_exponents


def test_every_operator_has_the_places_that_its_equations_name():
    schemas: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        schemas.setdefault(schema.name, []).append(schema)
    assert schemas.keys() >= {*RULES, *HOMOGENEOUS, *INVARIANT}
    for op_type, rules in RULES.items():
        attributes = {name for s in schemas[op_type] for name in s.attributes}
        inputs = max(s.max_input for s in schemas[op_type])
        outputs = max(s.max_output for s in schemas[op_type])
        for place in (p for equation in rules for p in equation):
            if isinstance(place, str):
                assert place in attributes
            else:
                assert -outputs <= place < inputs


RNG = np.random.default_rng(0)
W = f32(RNG.standard_normal((2, 2)))
FLAT, IMAGE, SERIES = (4, 4), (1, 2, 4, 4), (1, 16, 1)
FILTER, OFFSET = f32(RNG.random((2, 2, 2, 2))), f32(RNG.random((1, 8, 3, 3)))
GRID = f32(RNG.uniform(-1, 1, (1, 3, 3, 2)))
OUTSIDE = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 0.3}
CASES: list[tuple[int, str, tuple[int, ...], tuple[Operand, ...], dict[str, Any]]] = [
    (17, "CumSum", FLAT, (np.array(0),), {}),
    (17, "DFT", SERIES, (), {"axis": 1}),
    (17, "STFT", SERIES, (np.array(4), f32([0.5, 1, 1, 0.5])), {}),
    (17, "STFT", SERIES, (np.array(4), "", np.array(4)), {}),
    (16, "GridSample", IMAGE, (GRID,), {}),
    (18, "Col2Im", (1, 4, 4), ([4, 4], [2, 2]), {"strides": [2, 2]}),
    (17, "ReduceMin", FLAT, (), {"axes": [1]}),
    (17, "ReduceLogSum", FLAT, (), {"axes": [1]}),
    (17, "ScatterND", FLAT, (np.array([[0], [2]]), f32(np.ones((2, 4)))), {}),
    (17, "ScatterElements", FLAT, (np.array([[0, 1, 2, 3]]), f32(np.ones((1, 4)))), {"axis": 1}),
    (16, "ScatterND", FLAT, (np.array([[0], [2]]), f32(np.ones((2, 4)))), {"reduction": "mul"}),
    (17, "Mod", FLAT, (f32(0.75),), {"fmod": 1}),
    (17, "Trilu", FLAT, (), {}),
    (17, "DepthToSpace", (1, 4, 2, 2), (), {"blocksize": 2}),
    (17, "GlobalMaxPool", IMAGE, (), {}),
    (17, "GlobalLpPool", IMAGE, (), {}),
    (17, "MaxRoiPool", IMAGE, (f32([[0, 0, 0, 2, 2]]),), {"pooled_shape": [2, 2]}),
    (16, "RoiAlign", IMAGE, (f32([[0, 0, 2, 2]]), [0]), {"output_height": 2, "output_width": 2}),
    (9, "Upsample", IMAGE, (f32([1, 1, 2, 2]),), {"mode": "linear"}),
    (10, "Resize", IMAGE, (f32([1, 1, 0.5, 2]),), {"mode": "linear"}),
    (13, "Resize", IMAGE, ("", f32([1, 1, 2, 2])), {"mode": "cubic"}),
    (13, "Resize", IMAGE, (f32([0, 0, 0, 0, 1, 1, 2, 2]), f32([1, 1, 2, 2])), OUTSIDE),
    (10, "Pad", FLAT, (), {"pads": [0, 1, 0, 1], "value": 0.3}),
    (10, "Clip", FLAT, (), {"min": -0.5}),
    (10, "Clip", FLAT, (), {"max": 0.25}),
    (17, "Div", FLAT, (f32(0.3),), {}),
    (17, "Conv", IMAGE, (FILTER, W[0]), {}),
    (17, "Dropout", FLAT, (f32(0.5),), {}),
    (17, "Unique", FLAT, (), {}),
    (17, "Pow", FLAT, (f32(3.0),), {}),
    (17, "Pow", FLAT, (f32(-1.0),), {}),
    (17, "Pow", FLAT, (f32(0.3),), {}),
    (17, "Sign", FLAT, (), {}),
    (17, "ArgMax", FLAT, (), {"axis": 1}),
    (17, "Cast", FLAT, (), {"to": onnx.TensorProto.BOOL}),
    (17, "Cast", FLAT, (), {"to": onnx.TensorProto.DOUBLE}),
    (17, "Equal", FLAT, (f32(0.0),), {}),
    (17, "Equal", FLAT, (f32(RNG.random(FLAT)),), {}),
    (17, "LessOrEqual", FLAT, (f32(0.3),), {}),
    (17, "GreaterOrEqual", FLAT, (f32(0.4),), {}),
    (19, "DeformConv", IMAGE, (FILTER, OFFSET, W[0], f32(RNG.random((1, 4, 3, 3)))), {}),
    (17, "LayerNormalization", FLAT, (f32([1, 2, 3, 4]), f32([4, 3, 2, 1])), {"epsilon": 0.1}),
    (21, "GroupNormalization", IMAGE, (W[0], W[1]), {"num_groups": 2, "epsilon": 0.1}),
    (23, "Attention", IMAGE, (f32(RNG.random(IMAGE)), f32(RNG.random(IMAGE))), {}),
    (23, "RMSNormalization", FLAT, (f32([1, 2, 3, 4]),), {"epsilon": 0.1}),
    (17, "LpNormalization", FLAT, (), {"axis": 1}),
    (17, "MeanVarianceNormalization", IMAGE, (), {}),
    (17, "Hardmax", FLAT, (), {}),
    (17, "Einsum", FLAT, (), {"equation": "ij->ji"}),
]


@pytest.mark.parametrize(("opset", "op", "shape", "operands", "attributes"), CASES)
def test_one_operator_between_two_that_are_scaled(opset, op, shape, operands, attributes):
    sketch = Sketch(opset)
    x = sketch.op("Identity", sketch.input("x", list(shape)), name="before")
    y = sketch.op(op, x, *operands, name="it", **attributes)
    tell(sketch.network(y), shape, close=op == "ReduceLogSum")


@pytest.mark.parametrize("given", [["mean"], ["", "inverse"], ["mean", "inverse"]])
def test_what_a_norm_gives_besides_is_scaled_with_what_it_reads(given):
    sketch = Sketch()
    x = sketch.op("Identity", sketch.input("x", list(FLAT)), name="before")
    y = sketch.op("LayerNormalization", x, f32([1, 2, 3, 4]), epsilon=0.1)
    sketch.nodes[-1].output.extend(given)
    every = (y, *filter(None, given))
    ends = [sketch.op("Identity", name) for name in every]
    constraints = tell(sketch.network(*ends), FLAT)
    assert not constraints.fixed.intersection(every)


def tell(net: Network, shape: tuple[int, ...], *, close: bool = False) -> Relations:
    """Store tensors times random powers of two that fit, and compare the outputs."""
    constraints = relations(net.model)
    for seed in (0, 3):
        powers = random_exponents(constraints, np.random.default_rng(seed), cuts=1.0)
        check(
            net,
            powers,
            {"x": f32(RNG.random(shape) - 0.5 * (not close))},
            close=close,
        )
    return constraints


def names(**exponents: int) -> dict[TensorName, int]:
    return {TensorName(name): e for name, e in exponents.items()}


def product(weight: np.ndarray) -> Sketch:
    sketch = Sketch()
    x = sketch.input("x", ["batch", 2])
    sketch.op("Relu", sketch.op("MatMul", x, sketch.constant(weight, "w"), name="mm"), name="end")
    return sketch


def test_what_a_model_asks_for():
    constraints = relations(product(f32([[1, -4], [0, 2]])).network("end_out").model)
    assert [*constraints.tensors] == ["x", "mm_out", "end_out"]
    assert constraints.fixed == {"x", "end_out@output"}
    assert [(r.node, r.terms, r.absorber) for r in constraints.equations] == [
        ("mm", {"x@mm:0": 1, "w@mm:1": 1, "mm_out": -1}, "w@mm:1"),
        ("end", {"mm_out@end:0": 1, "end_out": -1}, None),
    ]
    assert constraints.edges[TensorName("mm_out@end:0")].tensor == "mm_out"


def test_what_is_not_told_follows():
    constraints = relations(product(f32([[1, -4], [0, 2]])).network("end_out").model)
    full = completed(constraints, names(mm_out=-3, end_out=-3) | {TensorName("end_out@output"): 0})
    assert full["w@mm:1"] == full["mm_out@end:0"] == -3  # type: ignore[index]


@pytest.mark.parametrize(
    "powers", [{"mm_out": 1}, {"x": 1}, {"end_out": 1}, {"nothing": 1}, {"mm_out@end:0": 300}]
)
def test_exponents_that_do_not_fit_are_refused(powers):
    constraints = relations(product(f32([[1]] * 2)).network("end_out").model)
    with pytest.raises(CaseError):
        completed(constraints, powers)


def test_how_far_a_constant_may_go():
    constraints = relations(product(f32([[1, -4], [0, 2.0**-14]])).network("end_out").model)
    (weight,) = constraints.constants.values()
    assert list(weight.magnitudes) == [2.0**-14, 4]
    assert binades(weight.array) == {-14: 1, 0: 1, 2: 1}
    assert list(weight.exponents()) == [-112, 125]


SAMPLE = {"x": f32([[1, -5, 7, 3e3], [2, 0, 0.1, -1]])}


def powers(exponents: Mapping[str, int]) -> dict[TensorName, int]:
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
    model = check(sketch.network(norm), powers(dict.fromkeys(names, -6)), SAMPLE)
    assert [n.name for n in model.graph] == ["embed", "tanh", "wider", "stream", "norm"]
    eps = model.graph[-1].attributes["epsilon"].as_float()
    assert eps == float(np.float32(1e-5)) * 2.0**-12
    assert list(model.graph.initializers) == list(sketch.network(norm).graph.initializers)
    assert constant_array(model.graph.initializers["weight"])[0, 0] == 3 * 2.0**-6


def test_a_shared_weight_gets_a_copy_where_a_reader_needs_another_multiple():
    sketch, norm = stream()
    told_ = powers({"embed_out": -6, "stream_out": -6, "wider_out@stream:1": -6})
    model = check(sketch.network(norm), told_, SAMPLE)
    assert [n.inputs[1].name for n in model.graph if n.op_type == "MatMul" and n.inputs[1]] == [
        "weight_scaled",
        "weight",
    ]
    assert [n.name for n in model.graph if n.op_type == "Mul"] == ["wider_out/Mul"]
    assert constant_array(model.graph.initializers["weight"])[0, 0] == 3


def test_outputs_and_readers_that_need_the_value_read_one_mul():
    sketch, norm = stream()
    end = sketch.op("Sigmoid", "stream_out", name="gate")
    exponents = powers(
        {
            **dict.fromkeys(("embed_out", "wider_out", "stream_out"), -6),
            **dict.fromkeys(("stream_out@output", "stream_out@gate:0"), 0),
        }
    )
    model = check(sketch.network(norm, "stream_out", end), exponents, SAMPLE)
    (mul,) = (n for n in model.graph if n.op_type == "Mul")
    assert mul.outputs[0].name == "stream_out"
    assert [use.node.name for use in mul.outputs[0].uses()] == ["gate"]
    assert mul.inputs[0] is not None
    assert {use.node.name for use in mul.inputs[0].uses()} == {"norm", mul.name}


def test_bodies_read_what_they_read():
    sketch, norm = stream()
    sketch.input("flag", [], 9)
    nodes = [helper.make_node("Exp", ["stream_out"], ["inside"], "exp")]
    other = [helper.make_node("Neg", ["weight"], ["otherwise"])]
    branches = {
        "then_branch": graph("then", nodes, (), [("inside", MATRIX)]),
        "else_branch": graph("else", other, (), [("otherwise", MATRIX)]),
    }
    chosen = sketch.op("If", "flag", name="if", **branches)
    net = sketch.network(norm, chosen)
    assert "stream_out@exp:0" in relations(net.model).fixed
    exponents = dict.fromkeys(("embed_out", "wider_out", "stream_out"), -6)
    for flag in (True, False):
        sample = SAMPLE | {"flag": np.array(flag)}
        model = check(net, powers(exponents | {"stream_out@exp:0": 0}), sample)
    assert constant_array(model.graph.initializers["weight"])[0, 0] == 3
    with pytest.raises(CaseError, match="do not fit"):
        rescale(net.copy(), powers(exponents))


def test_a_variance_may_be_scaled_into_the_scale():
    sketch = Sketch()
    x = sketch.input("x", ["batch", 4])
    parameters = (f32([1, 2, 3, 4]), f32([0.5] * 4), f32([9, 8, 7, 6]), f32([2e10] * 4))
    y = sketch.op("BatchNormalization", x, *parameters, name="norm")
    model = check(sketch.network(y), powers({"constant_3@norm:4": -20}), SAMPLE)
    variance, scale = (model.graph.initializers[f"constant_{i}"] for i in (3, 0))
    assert constant_array(variance).max() == np.float32(2e10) * 2.0**-20
    assert constant_array(scale).max() == 4 * 2.0**-10
    with pytest.raises(CaseError, match="do not fit"):
        rescale(sketch.network(y).model, powers({"constant_3@norm:4": -21}))


def test_what_is_scaled_under_a_logarithm_is_added_behind_it():
    sketch = Sketch()
    power = sketch.op("Pow", sketch.input("x", ["batch", 4]), f32(2.0), name="power")
    safe = sketch.op("Add", power, f32(1e-5), name="safe")
    end = sketch.op("Neg", sketch.op("Log", safe, name="log"), name="end")
    net = sketch.network(end, "log_out")
    exponents = powers({"x@power:0": -8, "power_out": -16, "safe_out": -16})
    model = check(net, exponents, SAMPLE, close=True)
    names = ["x/Mul", "power", "safe", "log", "log_out/Add", "end"]
    assert [n.name for n in model.graph] == names
    assert constant_array(model.graph.initializers["log_out/operand"]) == np.float32(
        16 * math.log(2)
    )


def test_what_an_exponential_gives_scaled_is_added_before_it():
    sketch = Sketch()
    x = sketch.op("Tanh", sketch.input("x", ["batch", 4]), name="tanh")
    exp = sketch.op("Exp", x, name="exp")
    end = sketch.op("Log", sketch.op("Add", exp, f32(1.0), name="one"), name="log")
    exponents = powers({"exp_out": -3, "one_out": -3})
    model = check(sketch.network(end), exponents, SAMPLE, close=True)
    names = ["tanh", "exp_out/Add", "exp", "one", "log", "log_out/Add"]
    assert [n.name for n in model.graph] == names


def test_where_a_softmax_reads_more_than_is_stored_its_maximum_is_subtracted():
    sketch = Sketch()
    x = sketch.input("x", ["batch", 4])
    scores = sketch.op("Mul", sketch.op("Neg", x, name="neg"), f32(3.0), name="scores")
    net = sketch.network(sketch.op("Softmax", scores, name="softmax", axis=-1))
    model = check(net, powers({"scores_out": -12, "scores_out@softmax:0": 0}), SAMPLE)
    ops = ["Neg", "Mul", "ReduceMax", "Sub", "Mul", "Softmax"]
    assert [n.op_type for n in model.graph] == ops


def test_a_multiple_that_is_not_exact_is_refused():
    sketch = Sketch()
    x = sketch.input("x", ["batch", 4])
    net = sketch.network(sketch.op("Add", x, f32([1, 2.0**-120, 1, 1]), name="add"))
    with pytest.raises(CaseError, match=r"2\^-7 is not exact"):
        rescale(net.copy(), powers({"x@add:0": -7, "add_out": -7, "add_out@output": 0}))


def test_scalings_are_made_at_once_unless_one_changes_what_another_made() -> None:
    s = Sketch()
    x = s.op("MatMul", s.input("x", [1, 4]), f32(np.eye(4)), name="a")
    x = s.op("MatMul", s.op("Tanh", x, name="t"), f32(np.eye(4)), name="b")
    network = s.network(s.op("MatMul", x, f32(np.eye(4)), name="c"))
    constraints = relations(network.model)
    first, apart, again, unknown = map(
        powers, ({"a_out": 2, "a_out@t:0": 0}, {"b_out": 1}, {"a_out": 1}, {"a_out_Mul_out": 3})
    )
    full, later = at_once(constraints, [first, apart])
    assert ({n: e for n, e in full.items() if n in {**first, **apart}}, later) == (
        {**first, **apart},
        (),
    )
    for other in (again, unknown):
        full, later = at_once(constraints, [first, other, apart])
        assert ({n: e for n, e in full.items() if n in first}, later) == (first, [other, apart])
    together, in_turn = network.copy(), network.copy()
    rescale(together, first, apart)
    for scaling in (first, apart):
        rescale(in_turn, scaling)
    assert [n.name for n in together.graph] == [n.name for n in in_turn.graph]
