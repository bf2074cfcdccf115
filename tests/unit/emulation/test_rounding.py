import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halfwise.emulation.ort import Session
from halfwise.emulation.rounding import (
    Elements,
    cast,
    limit_value,
    round_value,
)
from halfwise.emulation.switched import emulate_switched
from halfwise.emulation.typed import emulate_tf32
from halfwise.formats import BF16, FP16
from halfwise.graph.roles import roles_of
from tests.unit.emulation.test_switched import names
from tests.unit.graph.sketch import Sketch, f32

FULL = ir.DataType.FLOAT
LEVELS = ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]


def model(nodes, x: ir.Value, y: ir.Value) -> ir.Model:
    y.shape = x.shape
    graph = ir.Graph([x], [y], nodes=nodes, opset_imports={"": 17}, name="g")
    return ir.Model(graph, ir_version=8)


def run(nodes, y: ir.Value, array, x: ir.Value):
    return Session(model(nodes, x, y)).run({"x": array}, [str(y.name)]).popitem()[1]


def rounding(fmt, size=8):
    x = ir.val("x", FULL, ir.Shape([size]))
    rounded = round_value(x, fmt, "x::in")
    return x, rounded


# --- the Cast pair ----------------------------------------------------------------------------

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("fmt", [FP16, BF16])
@given(st.lists(finite, min_size=8, max_size=8))
@example([65504, 65519.996, 65520, -65520, 2**-25, -(2**-25), 2**-24, 3e-8])
@example([np.nan, -np.inf, np.inf, 0.0, -0.0, 1e-45, 3.4e38, 1 + 2**-11])
def test_a_value_is_rounded_to_the_format(fmt, values):
    array = np.array(values, np.float32)
    x, rounded = rounding(fmt)
    result = run(rounded.nodes, rounded.wide, array, x)
    np.testing.assert_array_equal(result, fmt.round(array))
    np.testing.assert_array_equal(np.signbit(result), np.signbit(array))


def test_every_bf16_number_and_what_lies_around_it_is_rounded_on_the_cpu():
    """Ties go to even, subnormals stay, overflow is infinite, NaN stays NaN."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    around = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    array = (upper[:, None] | around).ravel().view(np.float32)
    x, rounded = rounding(BF16, array.size)
    result = run(rounded.nodes, rounded.wide, array, x)
    bits = array.view(np.uint32).astype(np.uint64)
    even = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)
    number = ~np.isnan(array)
    np.testing.assert_array_equal(result[number].view(np.uint32), even[number])
    assert np.isnan(result[~number]).all()


def test_names_start_with_the_prefix_and_types_are_known():
    _, rounded = rounding(BF16)
    assert [n.name for n in rounded.nodes] == ["x::in::half", "x::in::wide"]
    assert rounded.nodes[0].outputs[0].dtype is ir.DataType.BFLOAT16
    assert rounded.wide.dtype is FULL
    assert cast(rounded.wide, ir.DataType.BOOL, "c").outputs[0].dtype is ir.DataType.BOOL


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fmt", [FP16, BF16])
@pytest.mark.parametrize("around", ["input", "between", "constant"])
def test_onnx_runtime_leaves_the_pair_alone(tmp_path, level, fmt, around):
    """Everything rests on this: a Cast pair must round however much ONNX Runtime optimises."""
    x = ir.val("x", FULL, ir.Shape([4]))
    third = ir.val("third", const_value=ir.tensor(np.full(4, 1 / 3, np.float32), name="third"))
    source, before = x, []
    if around == "between":
        before = [ir.node("Mul", [x, third], outputs=[ir.val("product", FULL)])]
        source = before[0].outputs[0]
    elif around == "constant":
        source = third
    rounded = round_value(source, fmt, "r")
    after = ir.node("Add", [rounded.wide, x], outputs=[ir.val("y", FULL, ir.Shape([4]))])
    built = model([*before, *rounded.nodes, after], x, after.outputs[0])
    if around != "input":
        built.graph.register_initializer(third)

    array = np.array([1 / 3, 1e-9, 1e5, 1 + 2**-12], np.float32)
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    proto = ir.serde.serialize_model(built).SerializeToString()
    session = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    [result] = session.run(None, {"x": array})

    exact = {"input": array, "constant": np.full(4, 1 / 3, np.float32)}
    stored = exact.get(around, array * np.float32(1 / 3))
    np.testing.assert_array_equal(result, fmt.round(stored) + array)
    # The example tells rounding from none, and the optimiser has been at work.
    assert (fmt.round(stored) != stored).any()
    assert onnx.load(tmp_path / "optimised.onnx").graph.node


# --- a smaller range --------------------------------------------------------------------------


def limited(array, limit):
    x = ir.val("x", FULL, ir.Shape([len(array)]))
    nodes, value = limit_value(x, limit, "x::in")
    return run(nodes, value, np.array(array, np.float32), x)


def test_what_is_beyond_the_limit_becomes_infinite_and_nothing_else_changes():
    nan, inf = np.nan, np.inf
    values = [0.0, -0.0, 1e-45, 7.5, -7.5, 7.500001, -7.500001, 3e38, inf, -inf, nan]
    expected = [0.0, -0.0, 1e-45, 7.5, -7.5, inf, -inf, inf, inf, -inf, nan]
    result = limited(values, 7.5)
    np.testing.assert_array_equal(result, np.array(expected, np.float32))
    np.testing.assert_array_equal(np.signbit(result[:2]), [False, True])


@given(
    st.lists(st.floats(width=32), min_size=1, max_size=8),
    st.floats(0, 2.0**100, width=32),
)
def test_a_limit_is_what_a_comparison_says(values, limit):
    array = np.array(values, np.float32)
    beyond = np.abs(array) > np.float32(limit)
    expected = np.where(beyond, np.copysign(np.float32(np.inf), array), array)
    np.testing.assert_array_equal(limited(array, limit), expected)


def test_a_limited_value_overflows_early_and_rounds_as_before():
    x = ir.val("x", FULL, ir.Shape([4]))
    nodes, value = limit_value(x, 32752.0, "x::in")
    rounded = round_value(value, FP16, "x::in")
    array = np.array([32752, 32753, 1 / 3, -40000], np.float32)
    result = run([*nodes, *rounded.nodes], rounded.wide, array, x)
    expected = [32752, np.inf, FP16.round(np.array(1 / 3, np.float32)), -np.inf]
    np.testing.assert_array_equal(result, np.array(expected, np.float32))


W = np.eye(4, dtype=np.float32)
NOTHING = names()


def fp16(array):
    with np.errstate(over="ignore"):
        return np.asarray(array, np.float32).astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("count", [1, 127, 128, 129, 300])
def test_each_element_is_handed_out_once_in_order(count):
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 17})
    elements = Elements(graph, "which", count)
    graph.inputs.append(elements.input)
    for i in range(count):
        graph.extend(taken := elements.at(i, f"is_{i}"))
        graph.outputs.append(taken[-1].outputs[0])
    which = np.random.default_rng(count).random(count) < 0.5
    found = Session(ir.Model(graph, ir_version=8)).run({"which": which})
    assert [bool(found[f"is_{i}"]) for i in range(count)] == which.tolist()


@pytest.mark.parametrize(
    "emulate",
    [
        lambda network: emulate_switched(network, roles_of(network), FP16).model,
        emulate_tf32,
    ],
)
def test_few_nodes_of_an_emulation_could_run_at_once(emulate):
    """ONNX Runtime walks through the list of those whenever it adds to it."""
    s = Sketch()
    value = s.input("x", [2, 2])
    for _ in range(300):
        value = s.op("MatMul", value, f32(np.eye(2)))
    model = emulate(s.network(value))
    computed = [n for n in model.graph if n.op_type != "Constant"]
    made = {v for n in computed for v in n.outputs}
    ready = [n for n in computed if not made & set(n.inputs)]
    assert 1 <= len(ready) <= 6
