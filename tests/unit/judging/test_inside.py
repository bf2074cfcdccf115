"""What counts as not finite inside: a tensor once, whatever types a mixed model has it in."""

import numpy as np
import pytest
from onnx import TensorProto

from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.judging.inside import emulate, judge_infinities
from halfwise.judging.judge import judge
from halfwise.judging.reference import inspected_reference
from halfwise.records import Criterion
from tests import models
from tests.models import Ill
from tests.unit.casing import names, prepare
from tests.unit.graph.sketch import Sketch, f32


def judged(ill, *kept):
    prepared = prepare(ill)
    model = rewrite(prepared.network, prepared.roles, names(*kept), FP16).model
    nonfinite = inspected_reference(prepared.network, prepared.samples)[1]
    arguments = (prepared.samples, prepared.references, Criterion(), None)
    return judge(model, *arguments, reference_nonfinite=nonfinite)


def test_what_casts_convert_counts_once_by_the_name_in_the_model():
    s = Sketch()
    x = s.input("x", [1, 4])
    inner = s.op("Mul", s.op("Mul", x, f32(300.0), name="first"), f32(300.0), name="second")
    gate = s.op("Mul", s.op("Tanh", inner, name="gate"), f32(300.0), name="small")
    out = s.op("Mul", gate, f32(300.0), name="scaled")
    ill = models.Ill(s.proto(inner, out), {"x": np.full((2, 1, 4), 9.0, np.float32)})
    for kept in ((), ("gate",), ("second",)):
        result = judged(ill, *kept).verdict.intermediate_nonfinite
        marked = {i.tensor: (i.producer, i.elements) for i in result}
        assert marked == {"second_out": ("second", 8), "scaled_out": ("scaled", 8)}, kept


def test_an_output_that_is_nan_in_the_reference_too_is_no_news_in_another_type():
    """The file calls it otherwise: what it gives out is a Cast's."""
    s = Sketch()
    y = s.op("Log", s.input("x", [1, 4]), name="log")
    result = judged(models.Ill(s.proto(y), {"x": f32([[[1, -2, 3, -4]], [[1, 2, 3, 4]]])}))
    assert result.verdict.intermediate_nonfinite == ()
    side = result.verdict.outputs["log_out"].reference
    assert (side.nonfinite, side.elements) == (2, 8)


pytestmark = pytest.mark.usefixtures("unrepaired")

LARGE = f32(np.linspace(-400, 400, 64).reshape(1, 64))


def harmful(s: Sketch, *outputs: str, x=LARGE) -> dict[str, set[str]]:
    """Return the readers that hand on what is infinite, by tensor, with everything low."""
    prepared = prepare(
        Ill(s.proto(*outputs), {"x": np.stack([x, x if x.min() < -1e38 else x / 2])})
    )
    model = rewrite(prepared.network, prepared.roles, frozenset(), FP16).model
    inside = emulate(model, prepared.samples)[1]
    fates = judge_infinities(model, prepared.network, FP16, inside, prepared.samples)
    assert fates.keys() == inside.keys()
    return {t: set(f.harmful) for t, f in fates.items() if not f.is_harmless}


def cube(s: Sketch) -> str:
    """x³ up to 6.4e7."""
    return s.op("Pow", s.input("x", [1, 64]), f32(3.0), name="cube")


def square(s: Sketch) -> str:
    x = s.input("x", [1, 64])
    return s.op("Mul", x, x, name="square")


@pytest.mark.parametrize("op", ["Tanh", "Sigmoid", "Erf", "HardSigmoid", "Atan", "Sign"])
def test_what_saturates_ends_an_infinity(op):
    s = Sketch()
    assert harmful(s, s.op(op, cube(s), name="gate")) == {}


def test_it_is_handed_on_by_what_larger_inputs_make_larger():
    s = Sketch()
    scaled = s.op("Mul", cube(s), f32(0.5), name="scaled")
    assert harmful(s, s.op("Tanh", s.op("Add", scaled, f32(1.0), name="more"), name="gate")) == {}


def test_a_clip_ends_it_on_both_sides():
    s = Sketch()
    assert harmful(s, s.op("Clip", cube(s), f32(-6.0), f32(6.0), name="clip")) == {}


def test_a_relu_ends_one_side_alone():
    s = Sketch()
    relu = s.op("Relu", cube(s), name="relu")
    assert harmful(s, s.op("Sqrt", relu, name="root")) != {}
    s = Sketch()
    minus = s.op("Neg", square(s), name="minus")
    assert harmful(s, s.op("Relu", minus, name="relu")) == {}


def test_the_reference_has_to_be_at_the_limit_itself():
    s = Sketch()
    small = s.op("Mul", cube(s), f32(1e-8), name="small")
    assert harmful(s, s.op("Tanh", small, name="gate")) == {
        "cube_out": {"small"},
        "small_out": {"gate"},
    }


def test_a_sum_that_is_nan_is_harmful():
    s = Sketch()
    x = cube(s)
    other = s.op("MatMul", x, f32(np.eye(64)[::-1]), name="other")
    assert harmful(s, s.op("Sign", s.op("Add", x, other, name="total"), name="gate")) != {}


def test_a_sum_ends_where_the_reference_is_at_the_limit():
    s = Sketch()
    total = s.op("Add", cube(s), s.op("Sin", "x", name="other"), name="total")
    assert harmful(s, s.op("Tanh", total, name="gate")) == {}


def test_the_gate_of_a_written_out_gelu_saturates():
    s = Sketch()
    x = cube(s)
    inner = s.op("Add", "x", s.op("Mul", x, f32(0.044715), name="part"), name="sum")
    tanh = s.op("Tanh", s.op("Mul", inner, f32(0.7978846), name="scale"), name="tanh")
    gate = s.op("Mul", s.op("Add", tanh, f32(1.0), name="one"), f32(0.5), name="half")
    assert harmful(s, s.op("Mul", "x", gate, name="gelu")) == {}


def test_one_over_it_is_harmless_where_nothing_multiplies_that():
    s = Sketch()
    over = s.op("Reciprocal", s.op("Add", square(s), f32(1.0), name="one"), name="over")
    assert harmful(s, s.op("Add", over, f32(1.0), name="end")) == {}
    s = Sketch()
    over = s.op("Reciprocal", s.op("Add", square(s), f32(1.0), name="one"), name="over")
    assert harmful(s, s.op("Mul", over, "x", name="end"))["one_out"] == {"over"}


@pytest.mark.parametrize("vanishing", [1e-9, 4.0])
def test_a_quotient_by_it_is_harmful_whatever_is_infinite_beside_it(vanishing):
    s = Sketch()
    scaled = s.op("Mul", s.input("x", [1, 2]), f32([[1e3, vanishing]]), name="scaled")
    quotient = s.op("Div", f32(6e4), scaled, name="quotient")
    y = s.op("Min", quotient, f32(1.0), name="end")
    assert harmful(s, y, x=f32([[400.0, 1.0]]))["scaled_out"] == {"quotient"}


def test_a_written_out_sigmoid_may_be_multiplied():
    s = Sketch()
    exp = s.op("Exp", s.op("Neg", s.input("x", [1, 64]), name="minus"), name="exp")
    one = s.op("Add", exp, f32(1.0), name="one")
    gate = s.op("Div", f32(1.0), one, name="gate")
    y = s.op("Mul", gate, s.op("Sin", "x", name="sine"), name="product")
    assert harmful(s, y, x=LARGE / 20) == {}


def test_a_comparison_with_a_constant_tells_the_same():
    s = Sketch()
    beyond = s.op("Greater", cube(s), f32(10.0), name="beyond")
    assert harmful(s, s.op("Cast", beyond, name="cast", to=TensorProto.FLOAT)) == {}


def attention(lowest: float, scale: float = 1.0) -> Sketch:
    """Softmax over scores plus (1 - mask) · lowest, the last keys masked."""
    s = Sketch()
    scores = s.op("Mul", s.input("x", [1, 64]), f32(scale), name="scores")
    mask = f32(np.arange(64) < 48).reshape(1, 64)
    samples_of = s.op("Where", s.op("Less", "x", f32(1e9), name="any"), mask, f32(0.0), name="seen")
    hidden = s.op("Sub", f32(1.0), samples_of, name="hidden")
    masked = s.op("Mul", hidden, f32(lowest), name="masked")
    s.op("Softmax", s.op("Add", scores, masked, name="add"), name="softmax", axis=-1)
    return s


def test_a_mask_before_a_softmax_is_harmless():
    assert harmful(attention(-65504.0), "softmax_out", x=-np.abs(LARGE)) == {}


@pytest.mark.parametrize("clamped", [False, True])
def test_a_mask_that_the_caller_gives_is_harmless(clamped):
    """The lowest finite value, added to scores, with and without a clamp to it, as in OPT."""
    lowest = float(np.finfo(np.float32).min)
    s = Sketch()
    masked = s.op("Add", s.input("x", [1, 64]), f32(np.linspace(0, 1, 64)), name="add")
    if clamped:
        masked = s.op("Max", masked, f32(lowest), name="clamp")
    s.op("Softmax", masked, name="softmax", axis=-1)
    mask = f32(np.where(np.arange(64) < 48, 0.0, lowest)).reshape(1, 64)
    assert harmful(s, "softmax_out", x=mask) == {}


def test_what_is_finite_below_a_clamp_beyond_the_range_is_not_at_its_limit():
    """6.4e7 passes a clamp to FP32's range, and becomes 65504 where the clamp is low."""
    lowest, highest = (f32(float(end)) for end in (np.finfo("f4").min, np.finfo("f4").max))
    s = Sketch()
    s.op("Mul", s.op("Clip", cube(s), lowest, highest, name="clamp"), f32(1e-6), name="end")
    assert harmful(s, "end_out") == {"cube_out": {"clamp"}}


def test_large_scores_before_a_softmax_are_as_in_the_reference():
    assert harmful(attention(-1.0, scale=-500.0), "softmax_out", x=np.abs(LARGE)) == {}


def test_a_root_of_an_inverse_is_a_factor_wherever_it_is_moved():
    s = Sketch()
    over = s.op("Reciprocal", square(s), name="over")
    moved = s.op("Transpose", s.op("Sqrt", over, name="root"), name="moved", perm=[1, 0])
    y = s.op("Mul", moved, s.op("Transpose", "x", name="turned", perm=[1, 0]), name="end")
    assert harmful(s, y)["square_out"] == {"over"}


def test_a_norm_that_becomes_zero_is_harmful():
    s = Sketch()
    root = s.op("Sqrt", square(s), name="root")
    y = s.op("Div", "x", s.op("Add", root, f32(1.0), name="one"), name="divide")
    result = harmful(s, y)
    assert result["square_out"] == {"root"}
    assert result["one_out"] == {"divide"}
