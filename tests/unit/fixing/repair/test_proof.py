"""What is no identity is refused wherever it shows; what is one, is accepted."""

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.fixing.repair.proof import (
    LIMIT,
    is_same,
    prove,
    widen,
)
from halfwise.graph.model import Network
from tests.unit.graph.sketch import Sketch, f32

Fault = Literal["factor", "eps", "bias", "range"]
SIZE = 8


def samples(count: int = 6, seed: int = 0) -> Samples:
    drawn = np.random.default_rng(seed).normal(size=(count, 1, SIZE)).astype(np.float32)
    return Samples(tuple(map(str, range(count))), lambda i: {"x": drawn[i]})


def ids(count: int = 6, seed: int = 0) -> Samples:
    drawn = np.random.default_rng(seed).integers(0, 3, (count, 1))
    return Samples(tuple(map(str, range(count))), lambda i: {"ids": drawn[i]})


def stream(
    seed: int, exponent: int = 0, fault: Fault | None = None, *, table: bool = False
) -> Network:
    """A stream of 2^exponent times its size that a norm reads, with a bound or not.

    With `table` its inputs are rows of one.
    """
    generator = np.random.default_rng(seed)
    weights, bias = f32(generator.normal(size=(SIZE, SIZE))), f32(generator.normal(size=SIZE))
    outer = f32(generator.normal(size=(SIZE, SIZE)))
    scale = np.float32(2.0**exponent)
    sketch = Sketch()
    if table:
        rows = sketch.constant(np.concatenate([s["x"] for s in samples(3)]))
        x = sketch.op("Gather", rows, sketch.input("ids", [1], TensorProto.INT64))
    else:
        x = sketch.input("x", [1, SIZE])
    h = sketch.op("MatMul", x, weights * scale)
    h = sketch.op("Add", h, bias if fault == "bias" else bias * scale)
    if fault == "range":
        reached = max(np.abs(s["x"] @ weights + bias).max() for s in (*samples(), *samples(3, 1)))
        h = sketch.op("Clip", h, -1.5 * scale * reached, 1.5 * scale * reached)
    eps = 0.8 if fault == "eps" else 0.8 * float(scale) ** 2
    h = sketch.op("LayerNormalization", h, np.ones(SIZE, np.float32), epsilon=eps, axis=-1)
    outer = outer * np.float32(1 + 1e-3) if fault == "factor" else outer
    return sketch.network(sketch.op("MatMul", h, outer, name="last"))


@given(
    st.integers(0, 1000),
    st.sampled_from((-9, -4, -1, 1, 3, 8)),
    st.sampled_from((None, "factor", "eps", "bias", "range")),
)
def test_only_the_same_function_holds(seed: int, exponent: int, fault: Fault | None) -> None:
    proof = prove(stream(seed), stream(seed, exponent, fault), samples(), samples(3, 1))
    assert proof.samples == {"calibration": 6, "heldout": 3, "widened": 16}
    assert is_same(proof) == (fault is None)
    assert proof.equal == (fault is None)
    if fault is not None:
        assert proof.repaired > LIMIT


def test_where_inputs_are_integers_given_samples_prove() -> None:
    proof = prove(stream(1, table=True), stream(1, 3, table=True), ids(), ids(3, 1))
    assert proof.samples == {"calibration": 6, "heldout": 3, "widened": 0}
    assert is_same(proof)
    assert not is_same(prove(stream(1, table=True), stream(1, 3, "eps", table=True), ids(), ids(3)))


def beside_infinities(*, clipped: bool) -> Network:
    """2x, perhaps clipped, and log(relu(4 − |x|)), which is −∞ wherever that shows."""
    x = (sketch := Sketch()).input("x", [1, SIZE])
    twice = sketch.op("Mul", x, f32(2))
    if clipped:
        twice = sketch.op("Clip", twice, f32(-8), f32(8), name="more")
    last = sketch.op("Identity", twice, name="last")
    rest = sketch.op("Relu", sketch.op("Sub", f32(4), sketch.op("Abs", x)))
    return sketch.network(last, sketch.op("Log", rest, name="log"))


@pytest.mark.parametrize("clipped", [True, False])
def test_an_infinity_of_one_output_hides_no_error_of_another(*, clipped: bool) -> None:
    before, after = beside_infinities(clipped=False), beside_infinities(clipped=clipped)
    few = samples().select([0, 1])
    proof = prove(before, after, few, samples(0))
    assert is_same(proof) == (not clipped)


def folded(seed: int, *, fold: bool, shift: float = 1.0) -> Network:
    """A product, times 3, plus a shift: in three nodes or in two, rounded differently."""
    generator = np.random.default_rng(seed)
    weights = generator.normal(size=(SIZE, SIZE)).astype(np.float32)
    x = (sketch := Sketch()).input("x", [1, SIZE])
    if fold:
        product = sketch.op("MatMul", x, f32(weights.astype(np.float64) * 3.3))
    else:
        product = sketch.op("Mul", sketch.op("MatMul", x, weights), f32(3.3))
    return sketch.network(sketch.op("Add", product, f32(shift), name="last"))


@given(st.integers(0, 1000), st.sampled_from((0.0, 1.0)))
def test_what_is_rounded_differently_holds(seed: int, shift: float) -> None:
    before, after = (folded(seed, fold=fold, shift=shift) for fold in (False, True))
    proof = prove(before, after, samples(), samples(0))
    assert is_same(proof)
    assert not proof.equal
    assert 0 < proof.repaired < LIMIT


@pytest.mark.parametrize("wrong", [1.0, 1.0005])
@pytest.mark.parametrize("place", [0, 2, 5])
def test_one_sample_without_digits_excuses_no_other(place: int, wrong: float) -> None:
    def there_and_back(factor: float) -> Network:
        x, distant = (sketch := Sketch()).input("x", [1, SIZE]), sketch.input("far", [1, 1])
        rest = sketch.op("Sub", sketch.op("Add", x, distant), distant)
        return sketch.network(sketch.op("Mul", rest, f32(factor), name="last"))

    # Beside 1e5 FP32 has 4e-3 of x.
    rows = [{**s, "far": f32([[1e5 if i == place else i]])} for i, s in enumerate(samples())]
    given = Samples(tuple("abcdef"), lambda i: rows[i])
    proof = prove(there_and_back(1.0), there_and_back(wrong), given, samples(0))
    assert is_same(proof) == (wrong == 1)
    other = given.select([5, 3, 1, 4, 2, 0])
    again = prove(there_and_back(1.0), there_and_back(wrong), other, samples(0))
    assert is_same(again) == (wrong == 1)


def test_infinities_may_become_fewer_not_more() -> None:
    def powered(exponent: float, factor: float) -> Network:
        x = (sketch := Sketch()).input("x", [1, SIZE])
        result = sketch.op("Mul", sketch.op("Exp", sketch.op("Mul", x, f32(exponent))), 1.0)
        return sketch.network(sketch.op("Mul", result, f32(factor), name="last"))

    plain, roundabout = powered(3.0, 1e-30), powered(3.0, 1e-30)
    assert is_same(prove(plain, roundabout, samples(), samples(0)))
    broken = prove(plain, powered(60.0, 1e-30), samples(), samples(0))
    assert broken.broken
    assert not is_same(broken)


def logarithm(wrong: float | None, above: float) -> Network:
    """log(relu(x − above)), −∞ up to `above`; plus 0 times itself if wrong, NaN there."""
    x = (sketch := Sketch()).input("x", [1, SIZE])
    rest = sketch.op("Relu", sketch.op("Sub", x, f32(above)))
    result = sketch.op("Log", rest, name="log")
    if wrong is not None:
        result = sketch.op("Add", result, sketch.op("Mul", result, f32(wrong)))
    return sketch.network(sketch.op("Identity", result, name="last"))


@pytest.mark.parametrize("above", [0.0, -10.0])
def test_what_is_infinite_may_not_become_nan(above: float) -> None:
    # With −10 only widened samples have infinities.
    before = logarithm(None, above)
    assert is_same(prove(before, logarithm(None, above), samples(), samples(0)))
    proof = prove(before, logarithm(0.0, above), samples(), samples(0))
    assert proof.broken
    assert not is_same(proof)


def test_what_is_not_finite_on_given_samples_stays_so() -> None:
    x = (sketch := Sketch()).input("x", [1, SIZE])
    bounded = sketch.op("Max", sketch.op("Log", sketch.op("Relu", x)), f32(-50.0), name="last")
    proof = prove(logarithm(None, 0.0), sketch.network(bounded), samples(), samples(0))
    assert proof.broken
    assert not is_same(proof)


def test_given_samples_on_which_the_original_is_infinite_are_all_proven() -> None:
    def product(shift: float) -> Network:
        x = (s := Sketch()).input("x", [1, SIZE])
        raised = s.op("Exp", s.op("Sub", x, f32(shift)))
        return s.network(s.op("Mul", raised, f32(np.exp(shift) * 1e-5), name="last"))

    rows = [{"x": f32(np.ones((1, SIZE)))} for _ in range(40)]
    rows[39]["x"][0, 0] = 89
    given = Samples(tuple(map(str, range(40))), lambda i: rows[i])
    known = {"39": Session(product(0.0).model).run(rows[39])}
    proof = prove(product(0.0), product(0.1), given, samples(0), known=known)
    assert (proof.broken, proof.samples["calibration"]) == (0, 17)
    known = {"39": Session(product(-1.0).model).run(rows[39])}
    proof = prove(product(-1.0), product(2.0), given, samples(0), known=known)
    assert proof.broken == 1
    assert not is_same(proof)


GENERATOR = np.random.default_rng(0)
SAMPLES: list[dict[str, NDArray[Any]]] = [
    {
        "image": GENERATOR.integers(0, 256, (3, 4)).astype(np.float32),
        "x": GENERATOR.normal(size=5).astype(np.float32),
        "ids": GENERATOR.integers(0, 9000, 5),
        "mask": np.where(GENERATOR.random(5) < 0.5, np.float32(-np.inf), np.float32(0)),
        "empty": np.zeros((0, 2), np.float32),
    }
    for _ in range(5)
]


def test_every_kind_once_and_nothing_invented() -> None:
    kinds, widened = zip(*widen(SAMPLES, 16), strict=True)
    assert len(widened) == 16
    assert len(set(kinds)) == 10
    for sample in widened:
        for name in ("ids", "mask"):
            assert any(np.array_equal(sample[name], s[name]) for s in SAMPLES)
        assert np.array_equal(sample["image"], np.rint(sample["image"]))
        for name, array in sample.items():
            assert (array.shape, array.dtype) == (
                SAMPLES[0][name].shape,
                SAMPLES[0][name].dtype,
            )
    assert len({sample["x"].tobytes() for sample in widened[:10]}) == 10
    untouched = {s["x"].tobytes() for s in SAMPLES}
    alone = [sample["x"].tobytes() in untouched for sample in widened[10:]]
    assert alone == [True, False] * 3
    for sample, (_, again) in zip(widened, widen(SAMPLES, 16), strict=True):
        assert np.array_equal(sample["x"], again["x"])


def test_outputs_that_are_discrete_say_nothing_on_widened_samples_with_ties() -> None:
    def model(factor: float) -> Network:
        y = (sketch := Sketch()).op("Mul", sketch.input("x", [1, 8]), f32(factor))
        return sketch.network(y, sketch.op("ArgMax", y, axis=1, keepdims=0))

    drawn = np.random.default_rng(0).normal(size=(4, 1, 8)).astype(np.float32)
    given = Samples(tuple("abcd"), lambda i: {"x": drawn[i]})
    assert not is_same(prove(model(1.0), model(1.0003), given, given))
