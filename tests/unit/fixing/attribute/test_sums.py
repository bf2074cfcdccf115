import numpy as np
import pytest

from tests.unit.fixing.attribute.observing import guards, inner, only
from tests.unit.graph.sketch import Sketch


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
    assert "can reach 1e+05, beyond 65504" in guard.message
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
    assert "is rounded 128 times and may lose up to 6.2 %" in only(found, "sum").message


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
