import numpy as np
import onnx_ir as ir
import pytest

from halfwise.graph.roles import Role, roles_of
from halfwise.graph.taken import Feature, Refused, features, taken, why_not_low, why_refused
from tests.unit.graph.sketch import Sketch, f32

FP16, BF16 = ir.DataType.FLOAT16, ir.DataType.BFLOAT16


def node_of(sketch, *outputs):
    return list(sketch.network(*outputs).nodes())[-1]


def test_features_tell_constants_inputs_and_what_is_computed():
    s = Sketch(18)
    x, axes = s.input("x", [2, 3]), s.input("axes", [1], 7)
    fixed = features(node_of(s, s.op("ReduceSum", x, [1], keepdims=0)), 18)
    assert fixed["input 0"] == "input"
    assert (fixed["input 1"], fixed["value of input 1"]) == ("constant", 1)
    assert (fixed["rank of input 0"], fixed["type of output 0"]) == (2, "float")
    assert (fixed["attribute keepdims"], fixed["attribute noop_with_empty_axes"]) == (0, 0)
    s.nodes.clear()
    assert features(node_of(s, s.op("ReduceSum", x, axes)), 18)["input 1"] == "input"
    s.nodes.clear()
    axes = s.op("Neg", axes)
    assert features(node_of(s, s.op("ReduceSum", x, axes)), 18)["input 1"] == "computed"
    s.nodes.clear()
    shape = s.op("Shape", x)
    assert features(node_of(s, s.op("Expand", x, shape)), 18)["input 1"] == "shape"


def test_a_low_input_of_the_graph_comes_from_a_cast():
    s = Sketch(17)
    node = node_of(s, s.op("Add", s.input("x", [4]), f32([1.0])))
    found = features(node, 17, FP16, [True, True], [True])
    assert (found["input 0"], found["input 1"]) == ("computed", "constant")
    kinds = {found[f"type of {what}"] for what in ("input 0", "input 1", "output 0")}
    assert kinds == {"float16"}


@pytest.mark.parametrize(
    ("test", "value", "fits"),
    [
        *((["a", 2], "a", True), (["a", 2], 3, False), ({"not": [1, None]}, 2, True)),
        *(({"not": [1, None]}, None, False), ({"above": 9}, 10, True), ({"above": 9}, 9, False)),
        *(({"above": 9}, "computed", False), ({"not": []}, "input", True)),
    ],
)
def test_values_of_a_feature(test, value, fits):
    assert Refused({"f": test}).fits({"f": value}) is fits


def test_a_feature_that_a_node_lacks_refuses_nothing():
    assert not Refused({"input 7": {"not": []}}).fits({"input 0": "input"})


SEEN: dict[str, list[Feature]] = {
    "input 0": ["input"],
    "type of input 0": ["float"],
    "rank of input 0": [3, 4],
}


@pytest.mark.parametrize(
    ("form", "certain"),
    [
        ({"input 0": "input", "type of input 0": "float", "rank of input 0": 4}, True),
        ({"input 0": "input", "type of input 0": "float16", "rank of input 0": 4}, False),
        ({"input 0": "input", "type of input 0": "float", "rank of input 0": 2}, False),
        ({**dict.fromkeys(("input 0", "input 1"), "input"), "type of input 0": "float"}, False),
        ({"input 0": "input", "attribute axis": 5}, True),
        ({"input 0": "input", "attribute mode": "cubic"}, False),
    ],
)
def test_a_refusal_is_certain_of_forms_that_were_refused(form, certain):
    assert Refused({}, SEEN).certain(form) is certain
    assert not Refused({}).certain(form)


def test_an_output_that_nothing_reads_counts():
    s = Sketch(17)
    y = s.op("MaxPool", s.input("x", [1, 2, 8, 8]), kernel_shape=[2, 2])
    s.nodes[-1].output.append("indices")
    assert features(node_of(s, y), 17)["output 1"] == "unread"
    s.nodes[-1].output[1] = ""
    assert "output 1" not in features(node_of(s, y), 17)


def test_each_refusal_has_words():
    for op, refusals in taken().refused.items():
        for refused in refusals:
            assert refused.words(op).startswith("with ")
            assert refused.remedy(op)


def test_what_was_asked_is_consistent():
    known = taken()
    assert not set(known.never) & (set(known.refused) | set(known.unknown))
    assert "float" not in known.types
    assert {"Unique", "Det", "Compress"} <= set(known.never)
    assert known.first_opset == 7


def test_what_fp32_is_refused_too_is_no_reason_to_pin():
    s = Sketch(13)
    node = node_of(s, s.op("ReduceSum", s.input("x", [2, 3]), s.input("axes", [1], 7)))
    assert taken().why("ReduceSum", features(node, 13)) is not None
    assert why_not_low(node, 13, FP16, [True, False], [True]) is None


def one(op, opset, *more, **attributes):
    s = Sketch(opset)
    x = s.op("Mul", s.input("x", [1, 3, 4, 4]), f32([2.0]))
    return s.network(s.op(op, x, *more, name="n", **attributes))


def attention(*mask, **attributes):
    s = Sketch(23)
    q, k, v = (s.op("Mul", s.input(n, [1, 2, 8, 16]), f32([2.0])) for n in "qkv")
    return s.network(s.op("Attention", q, k, v, *mask, name="n", **attributes))


@pytest.mark.parametrize("mask", [[], [f32(np.zeros((8, 8)))]])
def test_how_many_heads_attention_has_is_no_reason(mask):
    """Builds of the tests' small heads are refused for their sizes, those of usual ones are not."""
    s = Sketch(23)
    q, k, v = (s.op("Cast", s.input(n, [1, 8, 256]), to=10) for n in "qkv")
    low = [s.op("Cast", m, to=10) for m in mask]
    node = node_of(s, s.op("Attention", q, k, v, *low, q_num_heads=4, kv_num_heads=4, scale=0.2))
    assert why_refused(node, 23) is None
    assert why_refused(node_of(s, s.op("Attention", q, k, v, softcap=2.0)), 23) is not None


WEIGHTS = f32(np.ones((3, 4, 2, 2)))


@pytest.mark.parametrize(
    ("network", "low", "role"),
    [
        *((one("Mish", 22), BF16, Role.PINNED), (one("Mish", 22), FP16, Role.COMPUTE)),
        *((one("HardSwish", 22), BF16, Role.PINNED), (one("HardSwish", 22), FP16, Role.COMPUTE)),
        (one("LpNormalization", 22), BF16, Role.PINNED),
        (one("LpNormalization", 22), FP16, Role.COMPUTE),
        (one("ConvTranspose", 22, WEIGHTS), BF16, Role.PINNED),
        (one("ConvTranspose", 22, WEIGHTS), FP16, Role.COMPUTE),
        *((attention(), FP16, Role.COMPUTE), (attention(is_causal=1), FP16, Role.COMPUTE)),
        (attention(f32(np.zeros((8, 8)))), FP16, Role.COMPUTE),
        *((one("Relu", 22), BF16, Role.COMPUTE), (one("Sin", 22), BF16, Role.COMPUTE)),
    ],
)
def test_nodes_are_low_only_in_types_that_the_builder_takes(network, low, role):
    found = list(roles_of(network, low).values())[-1]
    assert found.role is role
    assert bool(found.reason) is (role is Role.PINNED)
    assert list(roles_of(network, low, by_schema=True).values())[-1].role is Role.COMPUTE


def recurrent(op, gates, *more):
    s = Sketch(14)
    x = s.op("Mul", s.input("x", [5, 2, 6]), f32([2.0]))
    weights = (f32(np.ones((1, gates * 8, n))) for n in (6, 8))
    return s.network(s.op(op, x, *weights, *more, name="n", hidden_size=8))


LENGTHS = ("", np.array([5, 3], np.int32))


@pytest.mark.parametrize(
    ("network", "low", "role"),
    [
        (recurrent("LSTM", 4), FP16, Role.COMPUTE),
        (recurrent("LSTM", 4, *LENGTHS), FP16, Role.PINNED),
        (recurrent("GRU", 3), FP16, Role.COMPUTE),
    ],
)
def test_optional_inputs_decide_too(network, low, role):
    assert list(roles_of(network, low).values())[-1].role is role
