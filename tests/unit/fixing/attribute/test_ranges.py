import math

import numpy as np
import pytest
from onnx import TensorProto, helper

from halfwise.case import Samples
from halfwise.fixing.attribute import Attribution
from halfwise.formats import BF16, FP16
from halfwise.graph.roles import roles_of
from halfwise.observing import observe_network
from halfwise.records import Guard, InnerObservation
from halfwise.reporting.remarks import message
from tests import control
from tests.unit.fixing.attribute.observing import guards, inner, only
from tests.unit.graph.sketch import Sketch, f32


def full(value: float, *shape: int) -> np.ndarray:
    return np.full(shape, value, np.float32)


def scaled(factor: float) -> tuple[Sketch, str]:
    """x → Mul → Reshape → Exp(−…): the product is what may not fit."""
    s = Sketch()
    product = s.op("Mul", s.input("x", [2, 3]), factor, name="product")
    moved = s.op("Reshape", product, [3, 2], name="moved")
    return s, s.op("Tanh", moved, name="reader")


def test_overflow_names_producer_and_consumers_through_data_movement() -> None:
    s, y = scaled(100.0)
    guard = only(guards(s, y, {"x": full(1000.0, 2, 3)}), "overflow")
    assert (guard.node, guard.tensor) == ("product", "product_out")
    assert guard.nodes == ("product", "reader")
    assert 3.0 <= guard.severity < 4.0
    assert message(guard) == (
        "product_out reaches 100000, beyond FP16's 65504 (sample inputs.npz[3]), in 100 % "
        "of all its elements"
    )


def test_a_share_counted_on_some_samples_says_on_how_many_and_names_none_of_them() -> None:
    s, y = scaled(100.0)
    raised = guards(s, y, {"x": full(1000.0, 2, 3)}, samples=("in.npz[0]", "in.npz[1]"))
    assert message(only(raised, "overflow")) == (
        "product_out reaches 100000, beyond FP16's 65504 (sample in.npz[0]), in 100 % of the "
        "elements of 1 sample"
    )


@pytest.mark.parametrize(
    ("value", "kind"), [(65520.0, "overflow"), (65519.0, "headroom"), (32760.0, "headroom")]
)
def test_the_limit_is_where_rounding_reaches_infinity(value, kind) -> None:
    s, y = scaled(1.0)
    x = full(1.0, 2, 3)
    x[0, 0] = value
    raised = guards(s, y, {"x": x})
    assert {g.kind for g in raised} == {kind}
    assert {g.node for g in raised} == {"product"}


def test_headroom_is_a_factor_on_what_was_seen_and_never_certain() -> None:
    s, y = scaled(20.0)
    x = {"x": full(1000.0, 2, 3)}
    assert guards(s, y, x) == ()
    guard = only(guards(s, y, x, headroom=4.0), "headroom")
    assert guard.severity < 0.5
    assert "FP16's 65504 is 3.28 times that" in message(guard)


@pytest.mark.parametrize("peak", [1e6, 3.4e38])
def test_nothing_leaves_the_range_of_bf16(peak) -> None:
    s = Sketch()
    wide = s.op("Mul", s.input("x", [2, 3]), f32(peak), name="wide")
    y = s.op("Mul", wide, f32(0.5), name="reader")
    assert guards(s, y, {"x": full(1.0, 2, 3)}, fmt=BF16) == ()


def test_bf16_has_the_range() -> None:
    s, y = scaled(1e10)
    assert guards(s, y, {"x": full(1000.0, 2, 3)}, fmt=BF16) == ()


def test_an_input_out_of_range_concerns_its_readers() -> None:
    s = Sketch()
    y = s.op("Mul", s.input("x", [3]), 1e-6, name="reader")
    s.constants[-1] = type(s.constants[-1])(
        name=s.constants[-1].name, data_type=1, float_data=[1e-3]
    )
    guard = only(guards(s, y, {"x": full(1e6, 3)}), "overflow")
    assert (guard.node, guard.tensor, guard.nodes) == ("reader", "x", ("reader",))


def layer_norm() -> tuple[Sketch, str]:
    s = Sketch()
    x = s.input("x", [2, 16])
    centred = s.op("Sub", x, s.op("ReduceMean", x, axes=[-1]), name="sub")
    variance = s.op("ReduceMean", s.op("Pow", centred, 2.0, name="pow"), axes=[-1], name="mean")
    root = s.op("Sqrt", s.op("Add", variance, 1e-5, name="eps"), name="sqrt")
    return s, s.op("Div", centred, root, name="div")


def test_a_written_out_layer_norm_is_named_as_a_square_with_its_repair() -> None:
    s, y = layer_norm()
    x = np.tile(np.linspace(-4000, 4000, 16, dtype=np.float32), (2, 1))
    raised = guards(s, y, {"x": x})
    assert {(g.kind, g.node) for g in raised} == {
        ("square", "pow"),
        ("overflow", "mean"),
        ("overflow", "eps"),
    }
    square = only(raised, "square")
    assert message(square).startswith("the square of sub_out reaches 1.6e7, beyond FP16's 65504")
    assert "opset 17" in square.fix
    assert raised[0] == square
    assert {n for g in raised for n in g.nodes} == {"pow", "mean", "eps", "sqrt"}


def test_a_square_inside_an_op_is_possible_or_with_fp16_sums_certain() -> None:
    s = Sketch()
    y = s.op("ReduceL2", s.input("x", [2, 4]), axes=[-1], name="norm")
    x = {"x": full(200.0, 2, 4)}
    assert 0.5 < only(guards(s, y, x), "square").severity < 1
    assert only(guards(s, y, x, accumulate="fp16"), "square").severity > 3


def test_a_large_integer_cast_to_float_is_named_though_it_only_moves_data() -> None:
    s = Sketch()
    cast = s.op("Cast", s.input("n", [2], 7), to=1, name="cast")
    y = s.op("Mul", cast, 0.5, name="reader")
    guard = only(guards(s, y, {"n": np.array([1, 100000])}), "overflow")
    assert (guard.node, guard.nodes) == ("cast", ("reader",))


def test_a_selected_constant_has_no_headroom() -> None:
    s = Sketch()
    fill = s.op("Mul", s.input("mask", [4]), f32(-60_000), name="fill")
    inputs = {"mask": f32([0, 1, 1, 0])}
    assert not [g for g in guards(s, fill, inputs) if g.kind == "headroom"]
    inputs["mask"][0] = 0.5
    assert only(guards(s, fill, inputs), "headroom").node == "fill"


X = {"x": np.ones((2, 4), np.float32)}


def weighted(weight: np.ndarray, op: str = "MatMul") -> tuple[Sketch, str]:
    s = Sketch()
    constant = s.constant(weight.astype(np.float32), "weight")
    return s, s.op(op, s.input("x", [2, 4]), constant, name="reader")


def test_weights_out_of_range() -> None:
    weight = np.ones((4, 4))
    weight[0, 0], weight[1, 1] = -1e6, np.inf
    guard = only(guards(*weighted(weight), X), "constant-range")
    assert (guard.tensor, guard.nodes) == ("weight", ("reader",))
    assert message(guard) == (
        "1 of the 16 values of constant weight is beyond FP16's 65504, up to 1e6"
    )
    assert 3.0 < guard.severity < 4.0


def test_constants_in_a_body_are_the_concern_of_what_reads_them_there() -> None:
    s = Sketch()
    x, flag = s.input("x", [2, 4]), s.input("flag", [], TensorProto.BOOL)
    branches = control.branches("b", s.op("Relu", x, name="relu"), x)
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    y = s.op("Neg", "chosen", name="neg")
    guard = only(guards(s, y, {**X, "flag": np.array(True)}), "constant-range")
    assert message(guard).startswith("4 of the 4 values of constant b_then_own are beyond")
    assert guard.tensor == "b_then_own"
    assert guard.nodes == (guard.node,)
    assert guard.node != "choose"


def test_bf16_holds_them() -> None:
    assert guards(*weighted(np.full((4, 4), 1e6)), X, fmt=BF16) == ()


def test_weights_that_are_mostly_subnormal() -> None:
    weight = np.full((4, 4), 1e-8)
    weight[0] = 1e-5
    weight[1] = 0.0
    guard = only(guards(*weighted(weight), X), "constant-subnormal")
    assert "100 % of the non-zero values of constant weight" in message(guard)
    assert "67 % become zero" in message(guard)
    assert 1.0 < guard.severity < 2.0


def test_a_minority_of_tiny_weights_is_usual() -> None:
    weight = np.ones((4, 4))
    weight[0] = 1e-8
    assert guards(*weighted(weight), X) == ()


@pytest.mark.parametrize(("tiny", "kinds"), [(2e-6, ["constant-subnormal"]), (2**-20, [])])
def test_one_tiny_divisor_is_enough_if_it_is_stored_badly(tiny, kinds) -> None:
    raised = guards(*weighted(np.array([800.0, 12.0, 1.0, tiny]), "Div"), X)
    assert [g.kind for g in raised if g.tensor == "weight"] == kinds


def test_a_tiny_bias_is_lost_in_the_sum_anyway() -> None:
    assert guards(*weighted(np.full(4, 1e-6), "Add"), X) == ()


def batch_norm(variance: list[float], eps: float = 1e-5) -> tuple[Sketch, str]:
    s = Sketch()
    ones = np.ones(4, np.float32)
    variances = s.constant(f32(variance), "variance")
    y = s.op(
        "BatchNormalization", s.input("x", [2, 4]), ones, ones, ones, variances,
        name="norm", epsilon=eps,
    )  # fmt: skip
    return s, y


def test_a_variance_out_of_range_is_folded_away() -> None:
    guard = only(guards(*batch_norm([1.0, 1.0, 2e10, 1.0]), X), "constant-range")
    assert guard.nodes == ("norm",)
    assert "Fold the BatchNormalization" in guard.fix


@pytest.mark.parametrize(("eps", "lost"), [(1e-5, False), (1e-9, True)])
def test_a_tiny_variance_counts_unless_eps_outweighs_it(eps, lost) -> None:
    raised = [g.kind for g in guards(*batch_norm([1.0, 2e-7, 1.0, 1.0], eps), X)]
    assert raised == (["constant-subnormal"] if lost else [])


def test_a_constant_behind_data_movement_concerns_what_computes_with_it() -> None:
    s = Sketch()
    wide = s.op("Expand", s.constant(np.full((1, 4), 1e6, np.float32), "wide"), [2, 4])
    y = s.op("Mul", s.input("x", [2, 4]), wide, name="reader")
    guard = only(guards(s, y, {"x": np.full((2, 4), 1e-3, np.float32)}), "constant-range")
    assert guard.nodes == ("reader",)


def masked(constant: float, *, written: bool = False) -> tuple[Sketch, str]:
    s = Sketch()
    lowest = s.constant(f32([[0, 0, 0, constant]]), "mask")
    scores = s.op("Mul", s.input("x", [2, 4]), 0.5, name="scores")
    total = s.op("Add", scores, lowest, name="add")
    if not written:
        return s, s.op("Softmax", total, name="softmax")
    exp = s.op(
        "Exp",
        s.op("Sub", total, s.op("ReduceMax", total, axes=[-1], name="max"), name="sub"),
        name="exp",
    )
    return s, s.op("Div", exp, s.op("ReduceSum", exp, [-1], name="sum"), name="div")


@pytest.mark.parametrize("constant", [-65504.0, -3.4e38, -20000.0])
def test_a_mask_at_the_edge_of_the_range_replaces_guards_that_only_repeat_it(constant) -> None:
    (guard,) = guards(*masked(constant), X)
    assert (guard.kind, guard.node, guard.tensor) == ("mask", "add", "mask")
    assert guard.nodes == ("add", "softmax")
    assert guard.severity < 1
    assert "-1e4" in guard.fix


@pytest.mark.parametrize("constant", [-10000.0, float("-inf")])
def test_the_usual_masks_are_fine(constant) -> None:
    assert guards(*masked(constant), X) == ()


def test_a_written_out_softmax_counts() -> None:
    guard = only(guards(*masked(-1e9, written=True), X), "mask")
    assert guard.nodes == ("add", "max", "sub", "exp")


def test_a_mask_computed_from_an_input() -> None:
    s = Sketch()
    inverted = s.op("Sub", 1.0, s.input("keep", [2, 4]), name="invert")
    bias = s.op("Mul", inverted, s.constant(-3.4e38, "lowest"), name="bias")
    y = s.op("Softmax", s.op("Add", s.input("x", [2, 4]), bias, name="add"), name="softmax")
    keep = f32([[1, 1, 1, 0], [1, 1, 0, 0]])
    (guard,) = guards(s, y, {**X, "keep": keep})
    assert (guard.node, guard.nodes) == ("add", ("bias", "add", "softmax"))


def test_a_selected_constant_ranks_below_an_added_one() -> None:
    s = Sketch()
    lowest = s.constant(-1e9, "lowest")
    chosen = s.op("Where", s.input("keep", [2, 4], 9), s.input("x", [2, 4]), lowest)
    y = s.op("Softmax", chosen, name="softmax")
    (guard,) = guards(s, y, {**X, "keep": np.ones((2, 4), bool) & (X["x"] > 2)})
    assert (guard.kind, guard.node, guard.nodes) == ("mask", "softmax", ("softmax",))
    assert guard.severity < only(guards(*masked(-1e9), X), "mask").severity


def test_a_large_constant_that_reaches_no_softmax_is_no_mask() -> None:
    s = Sketch()
    y = s.op("Add", s.input("x", [2, 4]), s.constant(-30000.0, "offset"), name="add")
    assert not [g for g in guards(s, y, X) if g.kind == "mask"]


@pytest.mark.parametrize(("op", "raised"), [("Sub", True), ("Add", False)])
def test_a_positive_constant_is_a_mask_if_it_is_subtracted(op, raised) -> None:
    s = Sketch()
    hidden = s.constant(f32([[0, 0, 0, 1e9]]), "mask")
    scores = s.op("MatMul", s.input("x", [2, 4]), f32(np.eye(4)))
    y = s.op("Softmax", s.op(op, scores, hidden, name="below"), name="softmax")
    several = [g for g in guards(s, y, X) if g.kind == "mask"]
    assert [g.node for g in several] == (["below"] if raised else [])
    if raised:
        assert message(several[0]).startswith(
            "mask constant mask = 1e9 taken from a score goes beyond FP16's −65504 to -inf before "
            "softmax (Softmax)"
        )


def test_a_repeated_constant_that_is_chosen_before_a_softmax_is_a_mask() -> None:
    s = Sketch()
    x = s.op("MatMul", s.input("x", [2, 4]), f32(np.eye(4)), name="scores")
    filled = helper.make_tensor("fill", TensorProto.FLOAT, [1], [-3e38])
    low = s.op("ConstantOfShape", np.array([2, 4]), name="fill", value=filled)
    chosen = s.op("Where", np.array([True, False, False, True]), x, low, name="choose")
    y = s.op("Softmax", s.op("Div", chosen, f32(2.0), name="cool"), name="softmax")
    (guard,) = guards(s, y, X)
    assert (guard.kind, guard.nodes) == ("mask", ("cool", "softmax"))


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def averaged(terms: int = 4) -> tuple[Sketch, str]:
    s = Sketch()
    return s, s.op("ReduceMean", s.input("x", [2, terms]), axes=[-1], name="mean")


def test_sums_count_only_where_the_low_format_adds_up() -> None:
    x, inside = {"x": ones(2, 4)}, (inner("mean", "ReduceMean", "sum", 1e5),)
    assert guards(*averaged(), x, inside=inside) == ()
    guard = only(guards(*averaged(), x, inside=inside, accumulate="fp16"), "sum")
    assert (guard.nodes, guard.tensor) == (("mean",), None)
    assert "can reach 100000, beyond 65504" in message(guard)
    assert guard.severity < 1


@pytest.mark.parametrize(("terms", "named"), [(336, False), (337, True)])
def test_a_sum_that_fits_is_named_once_its_additions_may_lose_one_percent(terms, named) -> None:
    x, inside = {"x": ones(2, terms)}, (inner("mean", "ReduceMean", "sum", float(terms)),)
    raised = guards(*averaged(terms), x, inside=inside, accumulate="fp16")
    assert [g.kind for g in raised] == ["sum"] * named


def test_a_longer_sum_is_graver_and_an_overflow_the_gravest() -> None:
    def severity(terms: int, total: float) -> float:
        inside = (inner("mean", "ReduceMean", "sum", total),)
        x = {"x": ones(2, terms)}
        return only(guards(*averaged(terms), x, inside=inside, accumulate="fp16"), "sum").severity

    assert severity(1000, 1e3) < severity(10_000, 1e4) < severity(100_000, 6e4) < severity(4, 1e5)


def product(op: str, a: list[int], b: list[int], **attributes: int) -> tuple[Sketch, str]:
    s = Sketch()
    return s, s.op(op, s.input("x", a), s.input("w", b), name="product", **attributes)


@pytest.mark.parametrize(
    ("op", "a", "b", "attributes"),
    [
        ("MatMul", [2, 2048], [2048, 3], {}),
        ("Gemm", [2, 2048], [2048, 3], {}),
        ("Gemm", [2048, 2], [3, 2048], {"transA": 1, "transB": 1}),
        ("Conv", [1, 2048, 1, 1], [2, 2048, 1, 1], {}),
    ],
)
def test_the_terms_of_products(op, a, b, attributes) -> None:
    inside = (inner("product", op, "sum", 2048.0),)
    inputs = {"x": ones(*a), "w": ones(*b)}
    raised = guards(*product(op, a, b, **attributes), inputs, inside=inside, accumulate="fp16")
    # 127 additions of half a spacing each.
    assert "is rounded 128 times and may lose up to 6.2 %" in message(only(raised, "sum"))


@pytest.mark.parametrize("op", ["Softmax", "GlobalAveragePool"])
def test_the_terms_of_what_sums_inside(op) -> None:
    s = Sketch()
    y = s.op(op, s.input("x", [1, 2, 2048]), name="sum")
    inside = (inner("sum", op, "sum", 2048.0),)
    raised = guards(s, y, {"x": ones(1, 2, 2048)}, inside=inside, accumulate="fp16")
    assert only(raised, "sum").nodes == ("sum",)


def test_without_known_shapes_only_the_size_of_a_sum_counts() -> None:
    s = Sketch()
    y = s.op("ReduceMean", s.input("x", [2, "n"]), axes=[-1], name="mean")
    inside = (inner("mean", "ReduceMean", "sum", 2048.0),)
    x = {"x": ones(2, 2048)}
    assert guards(s, y, x, inside=inside, accumulate="fp16") == ()


def moments() -> tuple[Sketch, str]:
    s = Sketch()
    x = s.op("Relu", s.input("x", [2, 4]), name="before")
    total = s.op("ReduceSum", s.op("Mul", x, x, name="square"), [-1], name="sum")
    mean = s.op("ReduceMean", x, axes=[-1], name="mean")
    moment = s.op("Unsqueeze", s.op("Squeeze", s.op("Mul", total, 0.25, name="scale"), [-1]), [-1])
    y = s.op("Sub", moment, s.op("Mul", mean, mean, name="mean squared"), name="sub")
    return s, s.op("Relu", y, name="after")


def ratio(value: float) -> tuple[InnerObservation, ...]:
    return (inner("sub", "Sub", "cancellation", value),)


def test_the_nodes_reach_back_to_where_the_errors_are_made() -> None:
    guard = only(guards(*moments(), X, inside=ratio(100.0)), "cancellation")
    # The mean is squared on one side only; what both moments are made of is not needed.
    assert guard.nodes == ("square", "sum", "mean", "scale", "mean squared", "sub")
    assert 1.0 < guard.severity < 2.0
    assert "100 times the result, which keeps an error of about 4.9 %" in message(guard)


@pytest.mark.parametrize(("value", "named"), [(20.0, False), (21.0, True)])
def test_the_limit_is_one_percent(value, named) -> None:
    assert bool(guards(*moments(), X, inside=ratio(value))) is named


def test_bf16_cancels_sooner() -> None:
    assert guards(*moments(), X, inside=ratio(3.0), fmt=BF16)[0].kind == "cancellation"


def raised(sketch: Sketch, output: str, x: np.ndarray) -> list[Guard]:
    """Return the cancellation guards on what is really observed on one sample."""
    network = sketch.network(output)
    roles = roles_of(network)
    samples = Samples(("0",), lambda _: {"x": x})
    observation, _ = observe_network(network, samples, FP16, roles=roles)
    return [
        g for g in Attribution(network, roles, observation, FP16).guards if g.kind == "cancellation"
    ]


def test_a_constant_that_is_added_and_taken_away() -> None:
    s = Sketch()
    shifted = s.op("Add", s.input("x", [2, 64]), 10_000.0, name="add")
    y = s.op("Sub", shifted, 10_000.0, name="sub")
    x = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    (guard,) = raised(s, y, x)
    assert (guard.node, guard.nodes) == ("sub", ("add", "sub"))
    assert guard.severity > 1


def test_ordinary_biases_do_not_cancel() -> None:
    s = Sketch()
    generator = np.random.default_rng(1)
    y = s.input("x", [8, 64])
    for i in range(4):
        weight = generator.normal(size=(64, 64), scale=0.1).astype(np.float32)
        bias = generator.normal(size=64).astype(np.float32)
        y = s.op("Add", s.op("MatMul", y, weight, name=f"matmul{i}"), bias, name=f"add{i}")
        y = s.op("Relu", y, name=f"relu{i}")
    y = s.op("Sub", 1.0, s.op("Sigmoid", y, name="gate"), name="other part")
    assert raised(s, y, generator.normal(size=(8, 64)).astype(np.float32)) == []


def test_results_that_are_zero_by_design_are_only_possible() -> None:
    guard = only(guards(*moments(), X, inside=ratio(math.inf)), "cancellation")
    assert guard.severity < 1
    assert "mostly cancel to zero" in message(guard)


@pytest.mark.parametrize(("rate", "masked"), [(1.75, True), (1.75, False), (0.1, True)])
def test_exponents_are_differences_whose_absolute_error_counts(rate: float, masked: bool) -> None:
    """Decay between any two steps: most differences are large, and few of their powers count.

    Those from -8 on are 4 on average, and their operands 10 times as large; the error of a power is
    that of the operands.
    """
    s, n = Sketch(), 48
    total = s.op("CumSum", s.input("x", [4, n, 1]), s.constant(np.array(1)), name="total")
    remaining = s.op(
        "Sub", total, s.op("Transpose", total, perm=[0, 2, 1], name="flip"), name="between"
    )
    if masked:
        remaining = s.op(
            "Where", s.constant(np.tril(np.ones((n, n), bool))), remaining, f32(-1e4), name="w"
        )
    x = np.random.default_rng(0).uniform(0.3 * rate, 1.7 * rate, (4, n, 1))
    texts = raised(s, s.op("Exp", remaining, name="decay"), -x.astype(np.float32))
    if rate < 1:
        assert texts == []
        return
    (guard,) = texts
    assert (guard.node, set(guard.nodes)) == ("between", {"between", "total"})
    assert guard.severity > 1
    assert ", and e is raised to the result, which leaves an error of about 2" in message(guard)


def test_an_exponent_need_not_cancel_to_lose_digits() -> None:
    """In BF16 exponents of 5 are off by 2 %, whatever is added to them."""
    s = Sketch()
    output = s.op("Exp", s.op("Add", s.input("x", [64]), f32(1.0), name="more"), name="power")
    network, x = s.network(output), {"x": np.linspace(3, 6, 64, dtype=np.float32)}
    roles = roles_of(network)
    observation, _ = observe_network(network, Samples(("0",), lambda _: x), BF16, roles=roles)
    (guard,) = (
        g for g in Attribution(network, roles, observation, BF16).guards if g.kind == "cancellation"
    )
    assert message(guard).startswith("operands rounded to BF16 reach 4.5 in more (Add), and e is ")
