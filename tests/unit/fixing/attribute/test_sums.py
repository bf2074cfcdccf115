import math

import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.fixing.attribute import attribute
from halfwise.formats import BF16, FP16
from halfwise.graph.roles import roles_of
from halfwise.observing import observe
from halfwise.records import Guard, InnerObservation
from halfwise.reporting.guards import message
from tests.unit.fixing.attribute.observing import guards, inner, only
from tests.unit.graph.sketch import Sketch, f32


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
    found = guards(*averaged(terms), x, inside=inside, accumulate="fp16")
    assert [g.kind for g in found] == ["sum"] * named


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
    found = guards(*product(op, a, b, **attributes), inputs, inside=inside, accumulate="fp16")
    # 127 additions of half a spacing each.
    assert "is rounded 128 times and may lose up to 6.2 %" in message(only(found, "sum"))


@pytest.mark.parametrize("op", ["Softmax", "GlobalAveragePool"])
def test_the_terms_of_what_sums_inside(op) -> None:
    s = Sketch()
    y = s.op(op, s.input("x", [1, 2, 2048]), name="sum")
    inside = (inner("sum", op, "sum", 2048.0),)
    found = guards(s, y, {"x": ones(1, 2, 2048)}, inside=inside, accumulate="fp16")
    assert only(found, "sum").nodes == ("sum",)


def test_without_known_shapes_only_the_size_of_a_sum_counts() -> None:
    s = Sketch()
    y = s.op("ReduceMean", s.input("x", [2, "n"]), axes=[-1], name="mean")
    inside = (inner("mean", "ReduceMean", "sum", 2048.0),)
    x = {"x": ones(2, 2048)}
    assert guards(s, y, x, inside=inside, accumulate="fp16") == ()


X = {"x": np.ones((2, 4), np.float32)}


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


def found(sketch: Sketch, output: str, x: np.ndarray) -> list[Guard]:
    """Return the cancellation guards on what is really observed on one sample."""
    network = sketch.network(output)
    roles = roles_of(network)
    samples = Samples(("0",), lambda _: {"x": x})
    seen, _ = observe(network, samples, FP16, roles=roles)
    return [g for g in attribute(network, roles, seen, FP16) if g.kind == "cancellation"]


def test_a_constant_that_is_added_and_taken_away() -> None:
    s = Sketch()
    shifted = s.op("Add", s.input("x", [2, 64]), 10_000.0, name="add")
    y = s.op("Sub", shifted, 10_000.0, name="sub")
    x = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    (guard,) = found(s, y, x)
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
    assert found(s, y, generator.normal(size=(8, 64)).astype(np.float32)) == []


def test_results_that_are_zero_by_design_are_only_possible() -> None:
    guard = only(guards(*moments(), X, inside=ratio(math.inf)), "cancellation")
    assert guard.severity < 1
    assert "mostly cancel to zero" in message(guard)


X_OF_RESIDUAL = {"x": f32(np.linspace(1.1, 1.9, 16)).reshape(1, 16)}


def stream(layers: int, size: float, *, first: int = 0) -> tuple[Sketch, str]:
    """Layers that each add about `size` to a stream between 1 and 2; the first ones add 0.1."""
    s = Sketch()
    value = s.input("x", [1, 16])
    for i in range(layers):
        gate = s.op("Sigmoid", value, name=f"gate_{i}")
        scale = 0.1 if i < first else 1.25 * size
        value = s.op("Add", value, s.op("Mul", gate, scale, name=f"scale_{i}"), name=f"add_{i}")
    return s, value


def kinds(found) -> set[str]:
    return {g.kind for g in found}


def test_a_chain_that_loses_its_branches_is_one_suspicion() -> None:
    guard = only(guards(*stream(12, 0.0025), X_OF_RESIDUAL, fmt=BF16), "residual")
    assert guard.nodes == tuple(f"add_{i}" for i in range(12))
    assert guard.node == "add_0"
    assert 0 < guard.severity < 1
    assert "12 sums" in message(guard)
    assert "BF16" in message(guard)


@pytest.mark.parametrize(("layers", "named"), [(3, False), (12, True)])
def test_few_lost_branches_do_not_break_the_tolerance(layers, named) -> None:
    assert ("residual" in kinds(guards(*stream(layers, 0.0025), X_OF_RESIDUAL, fmt=BF16))) is named


@pytest.mark.parametrize(
    ("size", "fmt", "named"),
    [
        # The spacing between 1 and 2 is 0.00098 in FP16, 0.0078 in BF16.
        *((0.0025, FP16, False), (0.0014, FP16, False), (0.0007, FP16, True), (0.0003, FP16, True)),
        *((0.02, BF16, False), (0.0055, BF16, True), (0.0025, BF16, True)),
    ],
)
def test_the_spacing_of_the_format_decides(size, fmt, named) -> None:
    assert ("residual" in kinds(guards(*stream(60, size), X_OF_RESIDUAL, fmt=fmt))) is named


def test_the_nodes_begin_where_branches_begin_to_be_lost() -> None:
    guard = only(guards(*stream(14, 0.0025, first=2), X_OF_RESIDUAL, fmt=BF16), "residual")
    assert guard.node == "add_2"
    assert "add_1" not in guard.nodes


def test_a_stream_goes_on_through_data_movement() -> None:
    s, value = stream(6, 0.0025)
    moved = s.op("Transpose", value, perm=[1, 0], name="moved")
    for i in range(6, 12):
        gate = s.op("Sigmoid", moved, name=f"gate_{i}")
        moved = s.op("Add", s.op("Mul", gate, 0.003, name=f"s_{i}"), moved, name=f"add_{i}")
    assert len(only(guards(s, moved, X_OF_RESIDUAL, fmt=BF16), "residual").nodes) == 12


def test_what_is_not_computed_from_the_stream_is_no_branch() -> None:
    """A score that a mask outweighs is meant to be lost."""
    s = Sketch()
    value, mask = s.input("x", [1, 16]), s.input("mask", [1, 16])
    for i in range(12):
        value = s.op("Add", s.op("Mul", value, 1.0, name=f"score_{i}"), mask, name=f"add_{i}")
    found = guards(s, value, {**X_OF_RESIDUAL, "mask": f32(np.full((1, 16), -1e4))}, fmt=BF16)
    assert "residual" not in kinds(found)


def test_nothing_is_told_without_statistics() -> None:
    assert "residual" not in kinds(
        guards(*stream(12, 0.0025), X_OF_RESIDUAL, fmt=BF16, details=False)
    )


@pytest.mark.parametrize(("rate", "masked"), [(1.75, True), (1.75, False), (0.1, True)])
def test_exponents_are_differences_whose_absolute_error_counts(rate: float, masked: bool) -> None:
    """Decay between any two steps: most differences are large, and few of their powers count.

    Those from -8 on are 4 on average, and their operands 10 times as large; the error of a power is
    that of the operands.
    """
    s, n = Sketch(), 48
    total = s.op("CumSum", s.input("x", [4, n, 1]), s.constant(np.array(1)), name="total")
    left = s.op("Sub", total, s.op("Transpose", total, perm=[0, 2, 1], name="flip"), name="between")
    if masked:
        left = s.op("Where", s.constant(np.tril(np.ones((n, n), bool))), left, f32(-1e4), name="w")
    x = np.random.default_rng(0).uniform(0.3 * rate, 1.7 * rate, (4, n, 1))
    told = found(s, s.op("Exp", left, name="decay"), -x.astype(np.float32))
    if rate < 1:
        assert told == []
        return
    (guard,) = told
    assert (guard.node, set(guard.nodes)) == ("between", {"between", "total"})
    assert guard.severity > 1
    assert ", and e is raised to the result, which leaves an error of about 2" in message(guard)


def test_an_exponent_need_not_cancel_to_lose_digits() -> None:
    """In BF16 exponents of 5 are off by 2 %, whatever is added to them."""
    s = Sketch()
    output = s.op("Exp", s.op("Add", s.input("x", [64]), f32(1.0), name="more"), name="power")
    network, x = s.network(output), {"x": np.linspace(3, 6, 64, dtype=np.float32)}
    roles = roles_of(network)
    seen, _ = observe(network, Samples(("0",), lambda _: x), BF16, roles=roles)
    (guard,) = (g for g in attribute(network, roles, seen, BF16) if g.kind == "cancellation")
    assert message(guard).startswith("operands rounded to BF16 reach 4.5 in more (Add), and e is ")
