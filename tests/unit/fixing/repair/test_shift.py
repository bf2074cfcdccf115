import numpy as np
import pytest
from onnx import TensorProto

from halfwise.errors import CaseError
from halfwise.fixing.repair.shift import Shift
from halfwise.graph.model import Network
from halfwise.records import NodeName, Repair, replace
from tests.repairing import Arrays, evidence, run, run_low
from tests.repairing import repaired as made
from tests.unit.graph.sketch import Sketch, f32

generator = np.random.default_rng(5)
BASIS = 12.5 + 0.004 * generator.normal(size=(8, 10))
BIAS = f32(3 + 0.01 * generator.normal(size=10))
X = f32(1 + 0.3 * generator.normal(size=(1, 6, 8)))
INTEGERS = np.array([[0, 1, -1, 63, 64, -65, 2049, 4365, -4365, 70001]])


def shifted(sketch: Sketch, sample: Arrays, *outputs: str) -> tuple[Network, Network]:
    """Return a network, and it with what the rule proposes where nothing may stay in FP32."""
    network = sketch.network(*outputs)
    seen = replace(evidence(network, [sample]), keeps=False)
    repairs = list(Shift().propose(seen))
    assert not [*Shift().propose(replace(seen, keeps=True))]
    return network, made(network, repairs, Shift()) if repairs else network


def product(s: Sketch, x: str) -> str:
    return s.op("MatMul", x, f32(BASIS), name="scores")


def with_bias(s: Sketch, x: str) -> str:
    return s.op("Add", BIAS, product(s, x), name="bias")


def gemm(s: Sketch, x: str) -> str:
    rows = s.op("Reshape", x, [6, 8], name="rows")
    return s.op("Gemm", rows, f32(BASIS.T), BIAS, name="scores", transB=1, alpha=0.5)


def convolution(s: Sketch, x: str) -> str:
    image = s.op("Reshape", s.op("Transpose", x, perm=[0, 2, 1]), [1, 8, 6, 1], name="image")
    return s.op("Conv", image, f32(BASIS.T[..., None, None]), BIAS, name="scores")


@pytest.mark.parametrize(
    ("make", "axis"), [(product, -1), (with_bias, -1), (gemm, 1), (convolution, 1)]
)
def test_what_all_classes_share_decides_nothing(make, axis):
    s = Sketch()
    y = s.op("ArgMax", make(s, s.input("x", list(X.shape))), name="choose", axis=axis, keepdims=0)
    before, after = shifted(s, {"x": X}, y)
    right = run(before, {"x": X})[y]
    assert (run(after, {"x": X})[y] == right).all()
    assert (run_low(after, {"x": X})[y] == right).all()
    assert (run_low(before, {"x": X})[y] != right).any()


def test_the_largest_values_get_back_what_they_lost():
    s = Sketch()
    values = s.op("TopK", with_bias(s, s.input("x", list(X.shape))), [3], name="choose")
    s.nodes[-1].output.append("chosen")
    before, after = shifted(s, {"x": X}, values, "chosen")
    right, low = run(before, {"x": X}), run_low(after, {"x": X})
    np.testing.assert_allclose(run(after, {"x": X})[values], right[values], rtol=1e-6)
    np.testing.assert_allclose(low[values], right[values], rtol=2e-3)
    assert (low["chosen"] == right["chosen"]).all()


@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_variance_does_not_see_the_mean(keepdims):
    s = Sketch()
    x = s.input("x", [2, 256])
    square = s.op("Mul", x, x, name="square")
    kept = {"axes": [-1], "keepdims": keepdims}
    mean = s.op("ReduceMean", x, name="mean", **kept)
    squared = s.op("Pow", mean, f32(2.0), name="squared")
    y = s.op("Sub", s.op("ReduceMean", square, name="squares", **kept), squared, name="variance")
    sample = {"x": f32(30 + 0.2 * generator.normal(size=(2, 256)))}
    _, after = shifted(s, sample, y)
    right = sample["x"].astype(np.float64).var(axis=-1, keepdims=bool(keepdims))
    np.testing.assert_allclose(run(after, sample)[y], right, rtol=1e-4)
    np.testing.assert_allclose(run_low(after, sample)[y], right, rtol=2e-2)


def spread(s: Sketch, *, turned: str = "", keepdims: int = 1) -> str:
    """Return E[x²] - E[x]² of rows, but for what is turned or lacks an axis."""

    def turn(name: str, value: str) -> str:
        return s.op("Transpose", value, perm=[1, 0], name="turn") if turned == name else value

    x = s.input("x", [8, 8])
    square = turn("square", s.op("Mul", x, turn("factor", x), name="square"))
    mean = s.op("ReduceMean", x, axes=[-1], keepdims=keepdims, name="mean")
    squared = turn("squared", s.op("Pow", mean, f32(2.0), name="squared"))
    squares = s.op("ReduceMean", square, axes=[-1], keepdims=1, name="squares")
    return s.op("Sub", squares, squared, name="variance")


@pytest.mark.parametrize(
    "unlike", [{"turned": each} for each in ("factor", "square", "squared")] + [{"keepdims": 0}]
)
def test_what_is_no_variance_stays(unlike):
    sample = {"x": f32(300 + generator.normal(size=(8, 8)))}
    for given, stays in (({}, False), (unlike, True)):
        s = Sketch()
        before, after = shifted(s, sample, spread(s, **given))
        assert (after is before) == stays


@pytest.mark.parametrize("classes", [6, 7])
def test_equal_votes_stay_equal(classes):
    votes = generator.integers(3000, 3003, size=(5, classes))
    x = f32(generator.integers(20, 23, size=(512, 5)))
    s = Sketch()
    scores = s.op("MatMul", s.input("x", [512, 5]), f32(votes), name="scores")
    before, after = shifted(s, {"x": x}, s.op("ArgMax", scores, axis=-1, name="choose"))
    assert after is not before
    assert (run(after, {"x": x})["choose_out"] == run(before, {"x": x})["choose_out"]).all()


@pytest.mark.parametrize("threshold", [True, False])
def test_suppression_is_shifted_with_its_threshold(threshold):
    s = Sketch()
    x = f32(1 + 0.3 * generator.normal(size=(1, 1, 8)))
    middle = f32([np.median(x @ f32(BASIS))])
    boxes = f32(np.arange(10)[None, :, None] * 0.2 + [[[0, 0, 1, 1]]])
    scores = s.op("MatMul", s.input("x", [1, 1, 8]), f32(BASIS), name="scores")
    least = [middle] if threshold else []
    y = s.op("NonMaxSuppression", boxes, scores, [10], f32([0.5]), *least, name="choose")
    before, after = shifted(s, {"x": x}, y)
    assert (after is before) != threshold
    assert (run(after, {"x": x})[y] == run(before, {"x": x})[y]).all()


FREQUENCIES = f32([1.0, 0.3, 0.01, 1e-5, 7.0])


@pytest.mark.parametrize("op", ["Sin", "Cos"])
@pytest.mark.parametrize("outer", [False, True])
def test_sines_see_no_whole_turns(op, outer):
    s = Sketch()
    n = s.input("n", [1, 10], TensorProto.INT64)
    number = s.op("Cast", s.op("Unsqueeze", n, [1 if outer else -1]), to=TensorProto.FLOAT)
    if outer:
        angles = s.op("MatMul", f32(FREQUENCIES[None, :, None]), number, name="angle")
        angles = s.op("Transpose", angles, perm=[0, 2, 1])
    else:
        angles = s.op("Mul", number, FREQUENCIES, name="angle")
    y = s.op(op, s.op("Concat", angles, angles, axis=-1), name="sine")
    before, after = shifted(s, {"n": INTEGERS}, y)
    exact = INTEGERS[..., None] * np.tile(FREQUENCIES, 2).astype(np.float64)
    right = np.sin(exact) if op == "Sin" else np.cos(exact)
    assert np.abs(run(after, {"n": INTEGERS})[y] - right).max() < 1e-6
    assert np.abs(run_low(after, {"n": INTEGERS})[y] - right).max() < 4e-3
    assert not np.abs(run_low(before, {"n": INTEGERS})[y] - right).max() < 0.1


@pytest.mark.parametrize(
    ("factor", "period"), [(1.0, 64.0), (1.0, 100.0), (0.25, 24.0), (-3.0, 64.0), (2.0**60, 3.0)]
)
def test_remainders_see_no_whole_periods(factor, period):
    s = Sketch()
    number = s.op("Cast", s.input("n", [1, 10], TensorProto.INT64), to=TensorProto.FLOAT)
    multiple = s.op("Mul", number, f32(factor), name="multiple")
    y = s.op("Mod", multiple, f32(period), name="column", fmod=1)
    before, after = shifted(s, {"n": INTEGERS}, y)
    right = run(before, {"n": INTEGERS})[y]
    assert (run(after, {"n": INTEGERS})[y] == right).all()
    assert (run_low(after, {"n": INTEGERS})[y] == right).all()


def test_what_sees_a_shift_stays():
    s = Sketch()
    shared = product(s, s.input("x", list(X.shape)))
    best = s.op("ArgMax", shared, name="choose", axis=-1)
    other = s.op("ArgMax", s.op("MatMul", "x", f32(BASIS), name="rows"), name="across", axis=1)
    before, after = shifted(s, {"x": X}, best, s.op("Relu", shared), other)
    assert after is before
    s = Sketch()
    number = s.op("Cast", s.input("n", [1, 10], TensorProto.INT64), to=TensorProto.FLOAT)
    whole = s.op("Mod", s.op("Mul", number, f32(0.1)), f32(1.0), name="part", fmod=1)
    past = s.op("Mod", s.op("Mul", number, f32(2.0)), f32(np.inf), name="past", fmod=1)
    others = (s.op("Sin", number), s.op("Exp", number))
    before, after = shifted(s, {"n": INTEGERS}, whole, past, *others)
    assert after is before


def test_a_node_that_makes_nothing_of_the_kind_is_refused():
    s = Sketch()
    network = s.network(s.op("Relu", s.input("x", [1, 8]), name="node"))
    with pytest.raises(CaseError, match="does not fit"):
        made(network, [Repair(rule="shift", nodes=(NodeName("node"),))], Shift())
