import numpy as np
import pytest

from halfwise.graph.modern.reading import Normalisation, Unread, read_normalisations
from tests.spellings import BIAS, WEIGHT
from tests.unit.graph.patterns.test_normalisations import SPELLINGS, layer_norm
from tests.unit.graph.sketch import Sketch


def only(sketch: Sketch, *outputs: str) -> Normalisation:
    (found,) = read_normalisations(sketch.network(*outputs))
    assert isinstance(found, Normalisation)
    return found


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("spelling", SPELLINGS, ids=" ".join)
def test_every_spelling_is_the_same_formula(spelling, opset):
    s = Sketch(opset)
    y = layer_norm(s, s.input("x", ["batch", 5, 16]), [-1], spelling)
    weight, bias = np.arange(1, 17, dtype=np.float32), np.ones((1, 16), np.float32)
    found = only(s, s.op("Add", s.op("Mul", y, weight), bias))
    assert (found.kind, found.axes) == ("LayerNormalization", (2,))
    assert found.eps == pytest.approx(1e-5)
    assert np.allclose(found.weight, weight)
    assert found.bias is not None
    assert np.array_equal(found.bias, bias)
    assert found.output.is_graph_output()


def test_factors_inside_the_root_go_to_weight_and_eps():
    s = Sketch()
    x = s.input("x", [2, 16])
    centred = s.op("Sub", x, s.op("ReduceMean", x, axes=[1]))
    total = s.op("ReduceSumSquare", centred, axes=[1])
    root = s.op("Sqrt", s.op("Add", s.op("Div", total, 15.0), 1e-3))
    found = only(s, s.op("Div", centred, root))
    assert found.weight == pytest.approx(np.sqrt(15 / 16))
    assert found.eps == pytest.approx(1e-3 * 15 / 16)
    assert found.bias is None


def test_a_norm_read_by_two_keeps_their_weights_apart():
    s = Sketch()
    y = layer_norm(s, s.input("x", [2, 24]), [-1], SPELLINGS[0])
    found = only(s, s.op("Mul", y, WEIGHT), s.op("Add", y, BIAS))
    assert found.output.name == y
    assert found.weight == 1


def test_weights_of_other_axes_stay_outside():
    s = Sketch()
    y = layer_norm(s, s.input("x", [2, 5, 24]), [-1], SPELLINGS[0])
    found = only(s, s.op("Add", s.op("Mul", y, WEIGHT), np.ones((5, 24), np.float32)))
    assert str(found.output.name).startswith("Mul")
    assert found.bias is None


def test_root_mean_square_has_no_bias():
    s = Sketch()
    x = s.input("x", [2, 24])
    mean = s.op("ReduceMean", s.op("Mul", x, x), axes=[-1])
    y = s.op("Mul", s.op("Div", x, s.op("Sqrt", s.op("Add", mean, 1e-6))), WEIGHT)
    found = only(s, s.op("Add", y, BIAS))
    assert (found.kind, found.output.name, found.bias) == ("RMSNormalization", y, None)


@pytest.mark.parametrize("bound", [0.0, -1.0, 1e-3])
def test_a_bound_at_zero_changes_no_variance(bound):
    s = Sketch()
    x = s.input("x", [2, 24])
    centred = s.op("Sub", x, s.op("ReduceMean", x, axes=[-1]))
    variance = s.op("ReduceMean", s.op("Mul", centred, centred), axes=[-1])
    root = s.op("Sqrt", s.op("Add", s.op("Max", variance, bound), 1e-6))
    (found,) = read_normalisations(s.network(s.op("Div", centred, root)))
    assert isinstance(found, Unread) == (bound > 0)


def test_a_mean_over_other_axes_is_no_norm():
    s = Sketch()
    x = s.input("x", [2, 5, 24])
    centred = s.op("Sub", x, s.op("ReduceMean", x, axes=[1]))
    variance = s.op("ReduceMean", s.op("Mul", centred, centred), axes=[-1])
    y = s.op("Div", centred, s.op("Sqrt", s.op("Add", variance, 1e-6)))
    found = [f for f in read_normalisations(s.network(y)) if isinstance(f, Normalisation)]
    assert [f.kind for f in found] in ([], ["RMSNormalization"])


def test_a_batch_baked_into_a_reshape_is_not_read_over():
    s = Sketch()
    x = s.input("x", ["batch", 24])
    mean = s.op("Reshape", s.op("ReduceMean", x, axes=[1], keepdims=0), [1, 1])
    centred = s.op("Sub", x, mean)
    variance = s.op("ReduceMean", s.op("Mul", centred, centred), axes=[1])
    y = s.op("Div", centred, s.op("Sqrt", s.op("Add", variance, 1e-6)))
    assert not [
        f
        for f in read_normalisations(s.network(y))
        if isinstance(f, Normalisation) and f.kind == "LayerNormalization"
    ]
