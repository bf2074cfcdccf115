"""Low sums against NumPy, which rounds with np.float16 after every block."""

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.emulation.accumulate import Expansion, sums_in_low
from halfwise.emulation.blocks import BLOCK, Call
from halfwise.errors import CaseError
from halfwise.formats import BF16, FP16, Format

# --- the reference ----------------------------------------------------------------------------


def low_sum(blocks, fmt: Format = FP16):
    """Add f32 block sums to an accumulator that is rounded each time."""
    first, *rest = blocks
    total = fmt.round(np.asarray(first, np.float32))
    for block in rest:
        with np.errstate(over="ignore", invalid="ignore"):
            total = fmt.round(total + np.asarray(block, np.float32))
    return total


def low_matmul(a, b, fmt: Format = FP16):
    blocks = [
        a[..., s : s + BLOCK] @ b[..., s : s + BLOCK, :] for s in range(0, a.shape[-1], BLOCK)
    ]
    return low_sum(blocks, fmt)


def low_reduce(x, axes: Sequence[int], *, keepdims: bool):
    axes = sorted(axis % x.ndim for axis in axes)
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    flat = x.transpose([*kept, *axes]).reshape(*(x.shape[axis] for axis in kept), -1)
    total = low_sum([flat[..., s : s + BLOCK].sum(-1) for s in range(0, flat.shape[-1], BLOCK)])
    return np.expand_dims(total, tuple(axes)) if keepdims else total


def direct_conv(x, w):
    """f32[n,c,h,w] * f32[m,c,3,3], stride 2, one row and column of zeros all round."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    return np.einsum("nchwij,mcij->nmhw", windows, w).astype(np.float32)


# --- running an expansion ---------------------------------------------------------------------


def as_input(name: str, array, *, dynamic: bool) -> ir.Value:
    shape = [f"{name}_{i}" for i in range(array.ndim)] if dynamic else list(array.shape)
    return ir.val(name, ir.DataType.from_numpy(array.dtype), shape)


def make(
    op_type, arrays, attributes=None, *, opset=20, dynamic=False, axes=None, fmt=FP16, each=False
):
    """Return the node's inputs and its expansion; `axes` becomes a constant second input."""
    values = [
        None if a is None else as_input("abc"[i], a, dynamic=dynamic) for i, a in enumerate(arrays)
    ]
    # Rounded copies come without shapes and constants: these are known of the node's own inputs.
    read = [v if dynamic or v is None else ir.val(v.name, v.dtype) for v in values]
    if axes is not None:
        constant = ir.tensor(np.array(axes, np.int64))
        values.append(ir.val("axes", ir.DataType.INT64, [len(axes)], const_value=constant))
        read.append(ir.val("not_read", ir.DataType.INT64))
    node = ir.node(op_type, values, attributes, name="op")
    return [v for v in read[: len(arrays)] if v], sums_in_low(
        node, read, fmt, "op::sum", opset, each=each
    )


def in_branch(inputs: list[ir.Value], expansion: Expansion) -> tuple[list[ir.Node], ir.Value]:
    """Return the expansion as one branch of an If that is taken."""
    yes, result = ir.val("yes", ir.DataType.BOOL, []), ir.val("result", ir.DataType.FLOAT)
    taken = ir.node("Constant", [], {"value": ir.tensor(np.array(True))}, outputs=[yes])
    other = ir.node("Identity", [inputs[0]], outputs=[ir.val("other", ir.DataType.FLOAT)])
    branches = {
        "then_branch": ir.Graph([], [expansion.output], nodes=expansion.nodes, name="then"),
        "else_branch": ir.Graph([], other.outputs, nodes=[other], name="else"),
    }
    return [taken, ir.node("If", [yes], branches, outputs=[result])], result


def run(inputs, expansion, arrays, *, opset=20, branch=False, level=None):
    assert expansion is not None
    nodes, output = list(expansion.nodes), expansion.output
    if branch:
        nodes, output = in_branch(inputs, expansion)
    imports = {"": opset}
    graph = ir.Graph(inputs, [output], nodes=nodes, opset_imports=imports, name="g")
    proto = ir.serde.serialize_model(ir.Model(graph, ir_version=8))
    options = ort.SessionOptions()
    options.graph_optimization_level = level or ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    feeds = {value.name: array for value, array in zip(inputs, arrays, strict=True)}
    return session.run(None, feeds)[0]


def compute(op_type, arrays, attributes=None, *, branch=False, level=None, **how):
    inputs, expansion = make(op_type, arrays, attributes, **how)
    present = [a for a in arrays if a is not None]
    opset = how.get("opset", 20)
    return run(inputs, expansion, present, opset=opset, branch=branch, level=level)


def dyadic(*shape: int, seed: int = 0, scale: float = 0.125, low: int = -16):
    """Multiples of `scale`: sums of a block are exact in FP32, sums of many are not in FP16."""
    rng = np.random.default_rng(seed)
    return (rng.integers(low, 17, shape) * scale).astype(np.float32)


# --- MatMul, Gemm, Conv -----------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5, 100), (100, 7)),
        ((2, 3, 4, 33), (33, 6)),
        ((3, 1, 4, 64), (2, 64, 5)),
        ((1, 17), (17, 1)),
    ],
)
def test_matmul_rounds_after_each_block(a, b, dynamic) -> None:
    x, y = dyadic(*a, low=0), dyadic(*b, seed=1, scale=8, low=0)
    result = compute("MatMul", [x, y], dynamic=dynamic)
    np.testing.assert_array_equal(result, low_matmul(x, y))
    if a[-1] > 2 * BLOCK:
        assert not np.array_equal(result, FP16.round(x @ y))


@pytest.mark.parametrize("terms", [0, 1, BLOCK, BLOCK + 1])
def test_matmul_of_a_length_known_only_at_run_time(terms) -> None:
    x, y = dyadic(3, terms), dyadic(terms, 2)
    expected = low_matmul(x, y) if terms else np.zeros((3, 2), np.float32)
    np.testing.assert_array_equal(compute("MatMul", [x, y], dynamic=True), expected)


def test_matmul_of_ordinary_data() -> None:
    rng = np.random.default_rng(0)
    x, y = (FP16.round(rng.normal(size=s).astype(np.float32)) for s in ((9, 500), (500, 8)))
    np.testing.assert_allclose(compute("MatMul", [x, y]), low_matmul(x, y), rtol=5e-3, atol=5e-2)


def test_matmul_in_bfloat16() -> None:
    x, y = dyadic(5, 100, low=0), dyadic(100, 7, seed=1, low=0)
    np.testing.assert_array_equal(compute("MatMul", [x, y], fmt=BF16), low_matmul(x, y, BF16))


@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_rounding_survives_a_branch_and_the_optimiser(branch, level) -> None:
    x, y = dyadic(5, 100, low=0), dyadic(100, 7, seed=1, scale=8, low=0)
    level = getattr(ort.GraphOptimizationLevel, level)
    result = compute("MatMul", [x, y], branch=branch, level=level)
    np.testing.assert_array_equal(result, low_matmul(x, y))


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gemm(trans_a, trans_b, dynamic) -> None:
    a, b, c = dyadic(4, 50, low=0), dyadic(50, 6, seed=1, scale=8, low=0), dyadic(6, seed=2)
    attributes = {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 2.0}
    stored = [a.T.copy() if trans_a else a, b.T.copy() if trans_b else b, c]
    result = compute("Gemm", stored, attributes, dynamic=dynamic)
    np.testing.assert_array_equal(result, low_matmul(a, b) * np.float32(0.5) + c * 2)


def test_gemm_adds_no_bias_where_there_is_none() -> None:
    a, b, infinite = dyadic(4, 50), dyadic(50, 6, seed=1), np.full(6, np.inf, np.float32)
    for arrays, attributes in (([a, b], {}), ([a, b, infinite], {"beta": 0.0})):
        np.testing.assert_array_equal(compute("Gemm", arrays, attributes), low_matmul(a, b))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_conv_sums_blocks_of_channels(bias, dynamic) -> None:
    x, w = dyadic(2, 40, 9, 8, low=0), dyadic(5, 40, 3, 3, seed=1, low=0)
    b = dyadic(5, seed=2) if bias else None
    attributes = {"pads": [1, 1, 1, 1], "strides": [2, 2]}
    expected = low_sum(
        [direct_conv(x[:, s : s + BLOCK], w[:, s : s + BLOCK]) for s in range(0, 40, BLOCK)]
    )
    if b is not None:
        expected = expected + b[:, None, None]
    result = compute("Conv", [x, w, b], attributes, dynamic=dynamic)
    np.testing.assert_array_equal(result, expected)


def test_conv_over_one_axis() -> None:
    x, w, b = dyadic(2, 33, 10), dyadic(4, 33, 1, seed=1), dyadic(4, seed=2)
    expected = low_matmul(x.transpose(0, 2, 1), w[:, :, 0].T).transpose(0, 2, 1) + b[:, None]
    np.testing.assert_array_equal(compute("Conv", [x, w, b]), expected)


# --- reductions and Softmax -------------------------------------------------------------------

AXES = [(1,), (-1,), (0, 2), (-1, -3), (2, 1), (0, 1, 2), ()]


# Each two of these three together.
@pytest.mark.parametrize(
    ("keepdims", "dynamic", "opset"),
    [(0, False, 13), (0, True, 18), (1, False, 18), (1, True, 13)],
)
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize(
    "op_type",
    ["ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum"],
)
def test_reductions(op_type, axes, keepdims, dynamic, opset) -> None:
    x = dyadic(20, 30, 40, scale=0.5, low=0)
    over = axes or (0, 1, 2)
    terms = np.float32(np.prod([x.shape[axis] for axis in over]))
    squares = op_type in ("ReduceSumSquare", "ReduceL2")
    expected = low_reduce(x * x if squares else x, over, keepdims=bool(keepdims))
    if op_type == "ReduceMean":
        expected = expected / terms
    if op_type == "ReduceL2":
        expected = np.sqrt(expected)
    if op_type == "ReduceLogSum":
        expected = np.log(expected)
    attributes: dict[str, object] = {"keepdims": keepdims}
    by_input = op_type == "ReduceSum" or opset >= 18
    if axes and not by_input:
        attributes["axes"] = list(axes)
    how = {"axes": axes if by_input else None, "opset": opset, "dynamic": dynamic}
    result = compute(op_type, [x], attributes, **how)
    np.testing.assert_allclose(result, expected, rtol=1e-6 if op_type == "ReduceLogSum" else 0)
    whole = x.sum(over, keepdims=True) if keepdims else x.sum(over)
    assert result.shape == np.shape(whole)


@pytest.mark.parametrize("dynamic", [False, True])
def test_global_average_pool(dynamic) -> None:
    x = dyadic(2, 3, 14, 15, low=0)
    expected = low_reduce(x, (2, 3), keepdims=True) / np.float32(14 * 15)
    np.testing.assert_array_equal(compute("GlobalAveragePool", [x], dynamic=dynamic), expected)
    empty = compute("GlobalAveragePool", [x[:0]], dynamic=dynamic)
    assert empty.shape == (0, 3, 1, 1)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("axis", [None, 1, -2])
def test_softmax_sums_its_denominator(axis, opset) -> None:
    x = dyadic(3, 50, 60)
    over = -1 if axis is None else axis
    exps = np.exp(x - x.max(over, keepdims=True))
    expected = exps / low_reduce(exps, (over,), keepdims=True)
    result = compute("Softmax", [x], {} if axis is None else {"axis": axis}, opset=opset)
    np.testing.assert_allclose(result, expected, rtol=2**-10)
    assert np.abs(result.sum(over) - 1).max() > 1e-5


def test_a_softmax_stores_its_denominator() -> None:
    even = compute("Softmax", [np.zeros((1, 60_000), np.float32)], each=True)
    np.testing.assert_allclose(even, 1 / 60_000, rtol=1e-3)
    beyond = compute("Softmax", [np.zeros((1, 66_000), np.float32)], each=True)
    assert not beyond.any(), "its sum is infinite in FP16"


# --- range and spacing ------------------------------------------------------------------------


def test_sum_of_ones_stagnates() -> None:
    ones = np.ones(70_000, np.float32)
    result = compute("ReduceSum", [ones], {"keepdims": 0})
    # From 32768 on the spacing is 32, so 16 more is a tie that goes back to even.
    assert result == low_reduce(ones, (0,), keepdims=False) == 32768


def test_overflow_on_the_way_stays() -> None:
    x = np.repeat(np.array([[40_000, -40_000]], np.float32), 32, axis=1)
    assert compute("ReduceSum", [x], {"keepdims": 0}) == np.inf
    mean = compute("ReduceMean", [np.full((1, 100), 1000, np.float32)], axes=(1,))
    np.testing.assert_array_equal(mean, [[np.inf]])
    x[0, -1] = -np.inf
    assert np.isnan(compute("ReduceSum", [x])).all()


@given(
    terms=st.integers(1, 70),
    rows=st.integers(1, 3),
    exponent=st.integers(-8, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_matmul_matches_the_reference(terms, rows, exponent, seed) -> None:
    # Integers below 2**5 times 2**5, 16 of them: exact in FP32's 24 bits in any order. From
    # exponent 4 on some sums overflow.
    a = dyadic(2, rows, terms, seed=seed, scale=2.0**exponent)
    b = dyadic(2, terms, 3, seed=seed + 1, scale=2.0**exponent)
    np.testing.assert_array_equal(compute("MatMul", [a, b], dynamic=True), low_matmul(a, b))


# --- what is not expanded, and names ----------------------------------------------------------


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes"),
    [
        ("MatMul", [(3, 16), (16, 4)], {}),
        ("Gemm", [(16, 3), (16, 4)], {"transA": 1}),
        ("Conv", [(1, 16, 9, 9), (4, 16, 3, 3)], {}),
        ("Conv", [(1, 64, 9, 9), (4, 32, 3, 3)], {"group": 2}),
        ("ReduceSum", [(99, 99)], {"noop_with_empty_axes": 1}),
        ("ConvTranspose", [(1, 64, 9, 9), (64, 4, 3, 3)], {"group": 2}),
        ("AveragePool", [(1, 99, 4, 4)], {"kernel_shape": [2, 2], "ceil_mode": 1}),
        ("ScatterElements", [(99, 99), (99, 99), (99, 99)], {}),
        ("Softmax", [(99, 16)], {}),
        ("Relu", [(99, 99)], {}),
    ],
)
def test_sums_that_stay_wide(op_type, shapes, attributes) -> None:
    inputs, expansion = make(op_type, [dyadic(*shape) for shape in shapes], attributes)
    assert expansion is None
    assert not any(value.uses() for value in inputs), "a refusal leaves nodes behind"


def test_unknown_axes_other_domains_and_one_short_length_stay_wide() -> None:
    x, axes = ir.val("x", ir.DataType.FLOAT, [99, 99]), ir.val("axes", ir.DataType.INT64, [1])
    node = ir.node("ReduceSum", [x, axes], name="op")
    assert sums_in_low(node, node.inputs, FP16, "op", 20) is None
    foreign = ir.node("MatMul", [x, x], domain="other", name="op2")
    assert sums_in_low(foreign, foreign.inputs, FP16, "op2", 20) is None
    unknown, short = (ir.val("v", ir.DataType.FLOAT, shape) for shape in (["n", None], [12, 3]))
    product = ir.node("MatMul", [unknown, short], name="op3")
    assert sums_in_low(product, product.inputs, FP16, "op3", 20) is None


def test_old_opsets_are_refused() -> None:
    with pytest.raises(CaseError, match="needs opset 13 or later; the model has 12") as caught:
        make("MatMul", [dyadic(3, 99), dyadic(99, 4)], opset=12)
    assert "later opset" in caught.value.hint


def test_names_are_unique_and_start_with_the_prefix() -> None:
    _, expansion = make("ReduceMean", [dyadic(20, 30, 40)], axes=(0, 2))
    assert expansion is not None
    nodes = list(expansion.nodes)
    loops = [node for node in nodes if node.op_type == "Loop"]
    bodies = [loop.attributes["body"].as_graph() for loop in loops]
    nodes += [node for body in bodies for node in body]
    values = [v for n in nodes for v in n.outputs] + [v for body in bodies for v in body.inputs]
    for names in ([node.name for node in nodes], [value.name for value in values]):
        assert len(set(names)) == len(names)
        assert all(name is not None and name.startswith("op::sum") for name in names)


@pytest.mark.parametrize("op_type", ["MatMul", "Gemm", "Softmax", "ReduceMean"])
@pytest.mark.parametrize("opset", [13, 20])
def test_nodes_pass_the_onnx_checker(op_type, opset) -> None:
    arrays = [dyadic(50, 60), dyadic(60, 40)] if op_type in ("MatMul", "Gemm") else [dyadic(50, 60)]
    inputs, expansion = make(op_type, arrays, opset=opset, dynamic=True)
    assert expansion is not None
    expansion.output.shape = ir.Shape([None, None])
    graph = ir.Graph(inputs, [expansion.output], nodes=expansion.nodes, name="g")
    graph.opset_imports[""] = opset
    model = ir.serde.serialize_model(ir.Model(graph, ir_version=8))
    onnx.checker.check_model(model, full_check=True)


def each_rounded(products):
    """Add products along the last axis; they and all sums are rounded."""
    total = np.zeros(products.shape[:-1], np.float32)
    for term in np.moveaxis(products, -1, 0):
        total = FP16.round(total + FP16.round(term))
    return total


def values(*shape: int, seed: int):
    drawn = np.random.default_rng(seed).normal(size=shape)
    return FP16.round(drawn.astype(np.float32))


def matmul(a, b):
    return each_rounded(a[..., :, None, :] * np.swapaxes(b, -1, -2)[..., None, :, :])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("a", "b"), [((5, 33), (33, 7)), ((2, 3, 4, 64), (64, 6)), ((1, 2), (2, 1))]
)
def test_matmul(a, b, dynamic) -> None:
    x, y = values(*a, seed=0), values(*b, seed=1)
    result = compute("MatMul", [x, y], each=True, dynamic=dynamic)
    np.testing.assert_array_equal(result, matmul(x, y))


def test_gemm_and_einsum_sum_like_matmul() -> None:
    x, y = values(4, 50, seed=0), values(50, 6, seed=1)
    for result in (
        compute("Gemm", [x, y.T.copy()], {"transB": 1}, each=True),
        compute("Einsum", [x, y], {"equation": "ij,jk->ik"}, each=True),
        compute("Einsum", [x, y], {"equation": "ij, jk -> ki"}, each=True).T,
    ):
        np.testing.assert_array_equal(result, matmul(x, y))


@pytest.mark.parametrize("equation", ["ij,jk", "ij,kl->il", "ij,jj->ij", "...j,jk->...k"])
def test_other_einsums_are_not_emulated_with_low_sums(equation) -> None:
    operands = [values(4, 4, seed=0), values(4, 4, seed=1)]
    with pytest.raises(CaseError):
        make("Einsum", operands, {"equation": equation}, each=True)
    assert make("Einsum", operands, {"equation": equation})[1] is None


def test_an_einsum_without_a_sum_is_exact() -> None:
    x, y = values(5, seed=0), values(6, seed=1)
    result = compute("Einsum", [x, y], {"equation": "i,j->ij"}, each=True)
    np.testing.assert_array_equal(result, np.outer(x, y))


def test_vectors() -> None:
    x, y = values(50, seed=0), values(50, seed=1)
    total = each_rounded(x * y)
    assert compute("MatMul", [x, y], each=True) == total
    np.testing.assert_array_equal(compute("MatMul", [x[None], y], each=True), [total])
    np.testing.assert_array_equal(compute("MatMul", [x, y[:, None]], each=True), [total])
    assert compute("Einsum", [x], {"equation": "i->"}, each=True) == each_rounded(x)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_conv_rounds_each_tap(groups) -> None:
    x, w = values(2, 4, 9, 8, seed=0), values(8, 4 // groups, 3, 3, seed=1)
    attributes = {"pads": [1, 1, 1, 1], "strides": [2, 2], "group": groups}
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    expected = []
    for output, kernel in enumerate(w):
        first = output // (8 // groups) * (4 // groups)
        own = windows[:, first : first + 4 // groups].transpose(0, 2, 3, 1, 4, 5)
        terms = (own * kernel).reshape(*own.shape[:3], -1)
        expected.append(each_rounded(terms))
    result = compute("Conv", [x, w], attributes, each=True)
    np.testing.assert_array_equal(result, np.stack(expected, 1))


def test_exact_sums_are_those_of_an_ordinary_conv() -> None:
    x, w, b = dyadic(1, 2, 9, 8, scale=1), dyadic(3, 2, 3, 3, seed=1, scale=1, low=0), dyadic(3)
    attributes = {"pads": [1, 1, 1, 1], "strides": [2, 2], "kernel_shape": [3, 3]}
    exact = direct_conv(x, w / 16) + b[:, None, None]
    result = compute("Conv", [x, FP16.round(w / 16), b], attributes, each=True)
    np.testing.assert_allclose(result, exact, atol=0.2)


def test_a_conv_transpose_is_not_rounded_product_by_product() -> None:
    x, w = values(2, 20, 4, 3, seed=0), values(20, 5, 1, 1, seed=1)
    with pytest.raises(CaseError, match="cannot be emulated in FP16"):
        make("ConvTranspose", [x, w], each=True)


def exact(op_type, arrays, attributes, opset=20):
    """Compute a node as ONNX Runtime does."""
    inputs = [as_input("abc"[i], a, dynamic=False) for i, a in enumerate(arrays)]
    node = ir.node(op_type, inputs, attributes)
    node.outputs[0].dtype = ir.DataType.FLOAT
    return run(inputs, Expansion((node,), node.outputs[0]), arrays, opset=opset)


POOLS = [
    {},
    {"pads": [1, 0, 1, 1]},
    {"pads": [1, 0, 1, 1], "count_include_pad": 1},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"dilations": [1, 2]},
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("attributes", POOLS)
def test_average_pools(attributes, dynamic) -> None:
    x, attributes = dyadic(2, 3, 9, 8), {"kernel_shape": [3, 2], **attributes}
    result = compute("AveragePool", [x], attributes, dynamic=dynamic)
    np.testing.assert_allclose(result, exact("AveragePool", [x], attributes), rtol=1e-6)


@pytest.mark.parametrize(("wide", "each"), [(1024, True), (1025, False)])
def test_kernels_of_up_to_1024_taps_are_taken_apart(wide, each) -> None:
    x = dyadic(1, 1, 1, wide)
    expansion = make("AveragePool", [x], {"kernel_shape": [1, wide]})[1]
    assert (expansion is not None) is each


def test_an_average_pool_sums_before_it_divides() -> None:
    x = np.full((1, 1, 3, 3), 14_000, np.float32)
    result = compute("AveragePool", [x], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]})
    expected = np.full((3, 3), np.inf)  # of nine and six; of four at the corners it is 56,000
    expected[::2, ::2] = 14_000
    np.testing.assert_array_equal(result[0, 0], expected)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumulative_sums(axis, exclusive, reverse) -> None:
    x = values(3, 40, 5, seed=0)
    turned = np.moveaxis(x, axis, 0)[:: -1 if reverse else 1]
    sums = np.stack([each_rounded(np.moveaxis(turned[:i], 0, -1)) for i in range(len(turned) + 1)])
    expected = (sums[:-1] if exclusive else sums[1:])[:: -1 if reverse else 1]
    attributes = {"exclusive": exclusive, "reverse": reverse}
    result = compute("CumSum", [x], attributes, axes=(axis,))
    np.testing.assert_array_equal(result, np.moveaxis(expected, 0, axis))


@pytest.mark.parametrize("each", [False, True])
def test_what_is_scattered_is_added_one_by_one(each) -> None:
    data, updates = np.array([[2048, 0, 1]], np.float32), np.ones((1, 2000), np.float32)
    indices, add = np.zeros((1, 2000), np.int64), {"reduction": "add"}
    indices[:, 1000:] = 1
    arrays = [data, indices, updates]
    result = compute("ScatterElements", arrays, add | {"axis": 1}, each=each)
    np.testing.assert_array_equal(result, [[2048, 1000, 1]])
    rows = [data.T.copy(), indices.reshape(40, 50, 1), updates.reshape(40, 50, 1)]
    np.testing.assert_array_equal(compute("ScatterND", rows, add, each=each), result.T)


@pytest.mark.parametrize("each", [False, True])
def test_exponentials_are_summed_without_a_shift(each) -> None:
    x = np.array([[1, 2, 3], [9, 9, 9], [11, 11, 11]], np.float32)
    result = compute("ReduceLogSumExp", [x], axes=(1,), each=each)[:, 0]
    np.testing.assert_allclose(result[:2], np.log(np.exp(x[:2]).sum(1)), rtol=1e-3)
    assert result[2] == np.inf


def test_log_softmax_stores_its_denominator() -> None:
    x = values(3, 50, seed=0)
    result = compute("LogSoftmax", [x], each=True)
    np.testing.assert_allclose(result, exact("LogSoftmax", [x], {}), atol=1e-3)
    assert np.isneginf(compute("LogSoftmax", [np.zeros((1, 66_000), np.float32)], each=True)).all()


def test_the_least_size_that_is_known_counts() -> None:
    values = [ir.val("a", ir.DataType.FLOAT, shape) for shape in (["n", None], [12, 3])]
    call = Call(ir.node("MatMul", values), values)
    assert call.terms((0, [-1]), (1, [-2])) == 12
    assert call.terms((0, [-1])) is None
    assert call.is_short((1, [-2]))
    assert not Call(call.node, values, shortest=1).is_short((1, [-2]))


def test_a_longer_sum_is_rounded_as_often_as_the_longest() -> None:
    # 1 more is lost from 2048 on; two at a time are not, up to 4096.
    for terms, total in ((4096, 2048), (4097, 4096)):
        ones = np.ones((1, terms), np.float32)
        assert compute("MatMul", [ones, ones.T.copy()], each=True) == total
