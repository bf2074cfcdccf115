import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.records import TensorName
from halfwise.reporting.remarks import steps_told
from halfwise.tools.diagnose.export import exported
from halfwise.tools.diagnose.harness import harness
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.compare.copies import DATA, SAMPLES, network, side


def framework(*names, **altered):
    wanted = [TensorName(f"{name}_out") for name in names]
    return list(side(network(**altered).model).get(wanted))


def test_nobody_told_what_is_right(subject):
    rung = exported(subject())
    assert rung.passed is None
    assert rung.how == "skipped"
    assert "--expected" in steps_told(rung.advice)[0]


def test_an_export_that_is_right(subject):
    rung = exported(subject(expected=framework("y")))
    assert rung.passed
    assert rung.how == "measured"


def test_an_export_that_is_wrong(subject):
    rung = exported(subject(expected=framework("a", "b", "centre", "d", "e", "y", b=1.2)))
    assert rung.passed is False
    assert "computes something else than the framework gave" in rung.cause
    assert rung.nodes == ("b",)
    assert any("dB" in sign.text for sign in rung.evidence)


def test_outputs_alone_do_not_say_which_node_is_wrong(subject):
    rung = exported(subject(expected=framework("y", b=1.2)))
    assert rung.passed is False
    assert rung.cause.endswith("Where they diverge is unknown.")
    assert rung.nodes == ()
    assert "add tensors from inside the model" in steps_told(rung.advice)[0]


def test_what_was_tried_on_the_inputs_is_told(subject):
    made = subject(expected=framework("y", b=1.2))
    assert harness(made).passed
    rung = exported(made)
    assert made.tried in [sign.text for sign in rung.evidence]
    assert "input changes" in made.tried


def test_tensors_without_an_output(subject):
    assert exported(subject(expected=framework("a"))).passed is None


def test_nothing_is_told_where_no_change_of_the_inputs_is_known(subject):
    sketch = Sketch()
    network = sketch.network(sketch.op("Tanh", sketch.input("x", [1, 8]), name="y"))
    few = Samples(("a", "b"), lambda i: {"x": DATA[i, :1, :8]})
    made = subject(network, few, expected=[{"y_out": f32(np.ones((1, 8)))}] * 2)
    assert harness(made).passed
    rung = exported(made)
    assert rung.passed is False
    assert [sign.severity for sign in rung.evidence] == ["error"]


def test_a_single_sample_shows_no_variation(subject):
    rung = exported(subject(samples=SAMPLES.select([0]), expected=framework("y")[:1]))
    assert rung.passed
    assert not any(sign.severity == "warning" for sign in rung.evidence)


RNG = np.random.default_rng(3)
OFFSET = 150.0
CODES = f32(OFFSET + RNG.normal(size=(64, 16)))
ROUNDED_DATA = f32(OFFSET + RNG.normal(size=(24, 32, 16)))


def codebook(codes=CODES):
    """The nearest code by |x|² − 2xc + |c|²: the distances cancel."""
    sketch = Sketch()
    x = sketch.input("x", [32, 16])
    square = sketch.op("ReduceSumSquare", x, name="square", axes=[1])
    cross = sketch.op("MatMul", x, f32(-2 * codes.T), name="cross")
    near = sketch.op("Add", sketch.op("Add", cross, square, name="sum"), f32((codes**2).sum(1)))
    index = sketch.op("ArgMin", near, name="index", axis=1, keepdims=0)
    return sketch.network(sketch.op("Gather", f32(codes - OFFSET), index, name="y"))


ROUNDED_SAMPLES = Samples(
    tuple(f"s{i}" for i in range(len(ROUNDED_DATA))), lambda i: {"x": ROUNDED_DATA[i]}
)


def otherwise(codes=CODES):
    """The same in NumPy's order of sums, as another framework computes it."""
    rows = []
    for x in ROUNDED_DATA:
        near = (x * x).sum(1, keepdims=True) - f32(2) * (x[:, ::-1] @ codes[:, ::-1].T)
        index = (near + np.square(codes).sum(1)).argmin(1)
        rows.append({"y_out": f32(codes - OFFSET)[index]})
    return rows


def test_choices_that_fp32_cannot_make_are_no_fault_of_the_export(subject):
    made = subject(codebook(), ROUNDED_SAMPLES, expected=otherwise())
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
    assert exported(subject(codebook(), ROUNDED_SAMPLES, expected=given)).passed is False


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
