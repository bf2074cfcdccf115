import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.emulation.double import DoubleSession
from halfwise.errors import RunFailed
from halfwise.tools.diagnose.export import exported
from tests.unit.graph.sketch import Sketch, f32

RNG = np.random.default_rng(3)
OFFSET = 150.0
CODES = f32(OFFSET + RNG.normal(size=(64, 16)))
DATA = f32(OFFSET + RNG.normal(size=(24, 32, 16)))


def codebook(codes=CODES):
    """The nearest code by |x|² − 2xc + |c|²: the distances cancel."""
    sketch = Sketch()
    x = sketch.input("x", [32, 16])
    square = sketch.op("ReduceSumSquare", x, name="square", axes=[1])
    cross = sketch.op("MatMul", x, f32(-2 * codes.T), name="cross")
    near = sketch.op("Add", sketch.op("Add", cross, square, name="sum"), f32((codes**2).sum(1)))
    index = sketch.op("ArgMin", near, name="index", axis=1, keepdims=0)
    return sketch.network(sketch.op("Gather", f32(codes - OFFSET), index, name="y"))


SAMPLES = Samples(tuple(f"s{i}" for i in range(len(DATA))), lambda i: {"x": DATA[i]})


def otherwise(codes=CODES):
    """The same in NumPy's order of sums, as another framework computes it."""
    rows = []
    for x in DATA:
        near = (x * x).sum(1, keepdims=True) - f32(2) * (x[:, ::-1] @ codes[:, ::-1].T)
        index = (near + np.square(codes).sum(1)).argmin(1)
        rows.append({"y_out": f32(codes - OFFSET)[index]})
    return rows


def test_choices_that_fp32_cannot_make_are_no_fault_of_the_export(subject):
    made = subject(codebook(), SAMPLES, expected=otherwise())
    assert made.against_framework is not None
    assert not made.against_framework.passed
    rung = exported(made)
    assert rung.passed
    assert "FP32 rounding alone explains it" in rung.cause
    assert [sign.severity for sign in rung.evidence][:2] == ["warning", "info"]


@pytest.mark.parametrize("wrong", ["codes", "offset", "shape", "nan"])
def test_an_error_beyond_what_rounding_does_is_one(subject, wrong):
    given = otherwise(f32(CODES + 0.3 * RNG.normal(size=CODES.shape)))
    if wrong == "offset":
        given = [{"y_out": row["y_out"] + f32(1)} for row in otherwise()]
    if wrong == "nan":
        given = [{"y_out": np.full_like(row["y_out"], np.nan)} for row in given]
    if wrong == "shape":
        given = [{"y_out": row["y_out"][:8]} for row in given]
    assert exported(subject(codebook(), SAMPLES, expected=given)).passed is False


def test_a_common_error_of_both_hides_nothing(subject):
    """FP32's range, here: exp(100) is infinite, and FP64 has it. The framework's scale is wrong."""
    sketch = Sketch()
    wide = sketch.op("Exp", sketch.op("Mul", sketch.input("x", [1, 16]), f32(100)), name="exp")
    whole = sketch.network(sketch.op("Min", wide, f32(1e38), name="y"))
    rows = f32(np.linspace(0.1, 1, 8 * 16).reshape(8, 1, 16))
    few = Samples(tuple("abcdefgh"), lambda i: {"x": rows[i]})
    with np.errstate(over="ignore"):
        right = [np.minimum(np.exp(f32(row * 100)), f32(1e38)) for row in rows]
    given = [{"y_out": f32(row * 0.99)} for row in right]
    assert exported(subject(whole, few, expected=given)).passed is False


def test_what_fp64_cannot_run_says_nothing(subject, monkeypatch):
    def refuse(*_):
        raise RunFailed("no FP64", "")

    monkeypatch.setattr(DoubleSession, "run", refuse)
    assert exported(subject(codebook(), SAMPLES, expected=otherwise())).passed is False
