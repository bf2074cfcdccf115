import tracemalloc
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from halfwise.graph.loading import load_network
from halfwise.graph.norms import NORMALISATIONS, Normalisation, read_normalisations
from halfwise.graph.written_out import written_out
from tests.spellings import BIAS, WEIGHT
from tests.unit.graph.sketch import Sketch

DIGITS = Path(__file__).resolve().parents[3] / "examples" / "digits" / "model.onnx"
SIXTEEN = np.linspace(0.5, 1.5, 16, dtype=np.float32)


def found(sketch: Sketch, output: str) -> dict[str, list[set[str]]]:
    network = sketch.network(output)
    groups = {op: [{str(n) for n in g} for g in written_out(network, op)] for op in NORMALISATIONS}
    return {op: g for op, g in groups.items() if g}


def mean(s: Sketch, x: str, axes: list[int], how: str = "mean", count: int = 16) -> str:
    if how == "mean" and s.opset < 18:
        return s.op("ReduceMean", x, axes=axes)
    if how == "mean":
        return s.op("ReduceMean", x, axes)
    total = s.op("ReduceSum", x, axes, keepdims=1)
    return s.op("Mul", 1 / count, total) if how == "times" else s.op("Div", total, float(count))


def square(s: Sketch, x: str, how: str) -> str:
    return s.op("Pow", x, 2.0) if how == "pow" else s.op("Mul", x, x)


def divide(s: Sketch, x: str, variance: str, how: str) -> str:
    if how == "power":
        return s.op("Mul", s.op("Pow", variance, -0.5), x)
    root = s.op("Pow", variance, 0.5) if how == "half" else s.op("Sqrt", variance)
    if how == "reciprocal":
        return s.op("Mul", x, s.op("Reciprocal", root))
    if how == "one over":
        return s.op("Mul", x, s.op("Div", 1.0, root))
    return s.op("Div", x, root)


def layer_norm(s: Sketch, x: str, axes: list[int], spelling: tuple[str, str, str]) -> str:
    squares, means, division = spelling
    centred = s.op("Sub", x, mean(s, x, axes, means))
    variance = mean(s, square(s, centred, squares), axes, means)
    return divide(s, centred, s.op("Add", 1e-5, variance), division)


def affine(s: Sketch, y: str, shape: tuple[int, ...] = (16,)) -> str:
    weight = SIXTEEN[: int(np.prod(shape))].reshape(shape)
    return s.op("Add", weight, s.op("Mul", weight, y))


SPELLINGS = list(
    product(
        ("pow", "mul"),
        ("mean", "times", "divided"),
        ("sqrt", "half", "power", "reciprocal", "one over"),
    )
)


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("spelling", SPELLINGS, ids=" ".join)
def test_every_spelling_of_layer_norm_is_found_whole(spelling, opset) -> None:
    s = Sketch(opset)
    x = s.op("Relu", s.input("x", ["batch", 5, 16]), name="outside_before")
    y = affine(s, layer_norm(s, x, [-1], spelling))
    assert found(s, s.op("Mul", y, 3.0, name="outside_after")) == {
        "LayerNormalization": [s.names()]
    }


def test_layer_norm_without_weight_and_bias() -> None:
    s = Sketch()
    y = layer_norm(s, s.input("x", [2, 5, 16]), [-1], SPELLINGS[0])
    assert found(s, s.op("Relu", y, name="outside")) == {"LayerNormalization": [s.names()]}


def test_layer_norm_over_channels_of_nchw() -> None:
    s = Sketch()
    y = layer_norm(s, s.input("x", [2, 16, 8, 8]), [1], SPELLINGS[0])
    affine(s, y, (16, 1, 1))
    assert found(s, f"{s.nodes[-1].name}_out") == {"LayerNormalization": [s.names()]}


def test_layer_norm_with_the_difference_computed_twice() -> None:
    s = Sketch()
    x = s.input("x", [2, 5, 16])
    first = s.op("Sub", x, mean(s, x, [-1]))
    second = s.op("Sub", x, mean(s, x, [-1]))
    variance = mean(s, square(s, first, "pow"), [-1])
    y = s.op("Div", second, s.op("Sqrt", s.op("Add", variance, 1e-5)))
    assert found(s, y) == {"LayerNormalization": [s.names()]}


def test_layer_norm_with_second_moment_as_jax_writes_it() -> None:
    s = Sketch()
    x = s.input("x", [2, 16, 8])
    average = s.op("Mul", s.op("ReduceSum", x, [1], keepdims=0), 1 / 16)
    moment = s.op("Mul", s.op("ReduceSum", square(s, x, "mul"), [1], keepdims=0), 1 / 16)
    variance = s.op("Max", s.op("Sub", moment, square(s, average, "mul")), 0.0)
    spread = s.op("Expand", s.op("Reshape", variance, [-1, 1, 8]), [2, 1, 8])
    inverse = s.op("Reciprocal", s.op("Sqrt", s.op("Add", spread, 1e-6)))
    scale = s.op("Mul", inverse, SIXTEEN.reshape(1, 16, 1))
    centred = s.op("Sub", x, s.op("Reshape", average, [-1, 1, 8]))
    y = s.op("Add", s.op("Mul", centred, scale), SIXTEEN.reshape(1, 16, 1))
    assert found(s, y) == {"LayerNormalization": [s.names()]}


def test_norm_with_the_mean_folded_into_the_bias_as_tensorflow_writes_it() -> None:
    s = Sketch()
    x = s.input("x", [2, 8, 8, 16])
    average = mean(s, x, [1, 2])
    variance = mean(s, square(s, s.op("Sub", x, average), "mul"), [1, 2])
    inverse = s.op("Reciprocal", s.op("Sqrt", s.op("Add", variance, 1e-3)))
    scale = s.op("Mul", inverse, SIXTEEN)
    shift = s.op("Sub", SIXTEEN, s.op("Mul", average, scale))
    y = s.op("Add", s.op("Mul", x, scale), shift)
    assert found(s, y) == {"InstanceNormalization": [s.names()]}


def test_rms_norm() -> None:
    for spelling in SPELLINGS:
        s = Sketch()
        x = s.input("x", [2, 5, 16])
        variance = mean(s, square(s, x, spelling[0]), [-1], spelling[1])
        y = divide(s, x, s.op("Add", variance, 1e-6), spelling[2])
        assert found(s, s.op("Mul", SIXTEEN, y)) == {"RMSNormalization": [s.names()]}


def test_rms_norm_by_a_scaled_l2_norm() -> None:
    s = Sketch()
    x = s.input("x", [2, 5, 16])
    root = s.op("Mul", s.op("ReduceL2", x, axes=[-1]), 0.25)
    y = s.op("Mul", s.op("Div", x, s.op("Clip", root, 1e-8)), SIXTEEN)
    assert found(s, y) == {"RMSNormalization": [s.names()]}


@pytest.mark.parametrize("norm", ["ReduceL2", "ReduceSumSquare", "sum of squares"])
def test_l2_norm(norm) -> None:
    s = Sketch()
    x = s.input("x", [2, 5, 16])
    if norm == "ReduceL2":
        root = s.op(norm, x, axes=[-1])
    elif norm == "ReduceSumSquare":
        root = s.op("Sqrt", s.op(norm, x, axes=[-1]))
    else:
        root = s.op("Sqrt", s.op("ReduceSum", square(s, x, "pow"), [-1]))
    y = s.op("Div", x, s.op("Expand", s.op("Max", root, 1e-12), [2, 5, 16]))
    assert found(s, s.op("Mul", y, 10.0, name="outside")) == {"LpNormalization": [s.names()]}


@pytest.mark.parametrize("weighted", [True, False])
def test_instance_norm_over_the_pixels_of_nchw(weighted) -> None:
    s = Sketch()
    y = layer_norm(s, s.input("x", [2, 16, 8, 8]), [2, 3], SPELLINGS[0])
    y = affine(s, y, (16, 1, 1)) if weighted else y
    assert found(s, y) == {"InstanceNormalization": [s.names()]}


def test_layer_norm_over_two_axes_is_told_by_its_weight() -> None:
    s = Sketch()
    y = layer_norm(s, s.input("x", [2, 16, 4, 4]), [2, 3], SPELLINGS[0])
    assert found(s, affine(s, y, (4, 4))) == {"LayerNormalization": [s.names()]}


def test_batch_norm_with_statistics_of_the_batch() -> None:
    s = Sketch()
    y = layer_norm(s, s.input("x", [2, 16, 8, 8]), [0, 2, 3], SPELLINGS[0])
    assert found(s, affine(s, y, (16, 1, 1))) == {"BatchNormalization": [s.names()]}


def test_a_native_instance_normalization_alone_is_nothing_written_out() -> None:
    s = Sketch()
    ones = np.ones(16, np.float32)
    y = s.op("InstanceNormalization", s.input("x", [2, 16, 8, 8]), ones, ones)
    assert found(s, y) == {}


def test_a_mean_over_other_axes_is_none_of_the_norm() -> None:
    """As for point clouds: their centre, then one size for all coordinates."""
    s = Sketch(18)
    x = s.input("x", [2, 3, 16])
    centred = s.op("Sub", x, mean(s, x, [2]))
    y = divide(s, centred, mean(s, square(s, centred, "mul"), [1, 2]), "sqrt")
    assert set(found(s, y)) == {"RMSNormalization"}


def test_a_distance_is_no_norm() -> None:
    s = Sketch()
    difference = s.op("Sub", s.input("x", [2, 16]), s.input("y", [2, 16]))
    y = s.op("Sqrt", s.op("ReduceSum", square(s, difference, "pow"), [-1]))
    assert found(s, s.op("Mul", y, 2.0)) == {}


@pytest.mark.slow
def test_long_chains_do_not_exhaust_the_stack() -> None:
    s = Sketch()
    y = s.input("x", [2])
    for _ in range(2000):
        y = s.op("Mul", s.op("Add", y, 1.0), 2.0)
    assert found(s, s.op("Sqrt", y)) == {}


def test_all_norms_of_the_example_are_found() -> None:
    network = load_network(DIGITS)
    groups = written_out(network, "LayerNormalization")
    assert [len(g) for g in groups] == [9] * 13
    assert len(frozenset.union(*groups)) == 9 * 13
    assert len(written_out(network, "Gelu")) == 6


def only(sketch: Sketch, *outputs: str) -> Normalisation:
    (found,) = read_normalisations(sketch.network(*outputs))
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
    assert np.allclose(found.bias, bias)
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
    found = only(
        s, s.op("Add", s.op("Mul", y, WEIGHT), np.arange(120, dtype=np.float32).reshape(5, 24))
    )
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
    assert only(s, s.op("Div", centred, root)).exact == (bound <= 0)


def test_a_tiny_bound_in_the_place_of_eps_is_not_exact():
    s = Sketch()
    x = s.input("x", [2, 24])
    mean = s.op("ReduceMean", s.op("Mul", x, x), axes=[-1])
    norm = only(s, s.op("Div", x, s.op("Sqrt", s.op("Max", mean, 1e-12))))
    assert (norm.op, norm.exact) == ("RMSNormalization", False)


def test_something_added_to_the_root_is_not_exact():
    s = Sketch()
    x = s.input("x", [2, 24])
    root = s.op("Sqrt", s.op("ReduceMean", s.op("Mul", x, x), axes=[-1]))
    norm = only(s, s.op("Div", x, s.op("Add", root, 1e-6)))
    assert (norm.op, norm.exact) == ("RMSNormalization", False)


def test_channels_may_have_their_own_weights_over_the_pixels():
    s = Sketch()
    y = layer_norm(s, s.input("x", [2, 24, 5, 6]), [2, 3], SPELLINGS[0])
    norm = only(s, s.op("Mul", y, WEIGHT[:, None, None]))
    assert (norm.op, norm.varying) == ("InstanceNormalization", frozenset({1}))
    assert np.allclose(norm.weight.ravel(), WEIGHT)


def test_a_mean_over_other_axes_is_no_norm():
    s = Sketch()
    x = s.input("x", [2, 5, 24])
    centred = s.op("Sub", x, s.op("ReduceMean", x, axes=[1]))
    variance = s.op("ReduceMean", s.op("Mul", centred, centred), axes=[-1])
    y = s.op("Div", centred, s.op("Sqrt", s.op("Add", variance, 1e-6)))
    found = list(read_normalisations(s.network(y)))
    assert [f.kind for f in found] in ([], ["RMSNormalization"])


def test_a_batch_baked_into_a_reshape_is_not_read_over():
    s = Sketch()
    x = s.input("x", ["batch", 24])
    mean = s.op("Reshape", s.op("ReduceMean", x, axes=[1], keepdims=0), [1, 1])
    centred = s.op("Sub", x, mean)
    variance = s.op("ReduceMean", s.op("Mul", centred, centred), axes=[1])
    y = s.op("Div", centred, s.op("Sqrt", s.op("Add", variance, 1e-6)))
    kinds = [f.kind for f in read_normalisations(s.network(y))]
    assert "LayerNormalization" not in kinds


@pytest.mark.parametrize("shape", [[1, 0, 24], [0, 24], ["batch", 0, 24]])
def test_a_norm_of_an_empty_tensor_is_read_without_a_warning(shape):
    s = Sketch()
    y = layer_norm(s, s.input("x", shape), [-1], SPELLINGS[0])
    assert only(s, s.op("Mul", y, WEIGHT)).kind == "LayerNormalization"


def test_a_norm_with_as_many_positions_as_channels_takes_little_memory():
    s = Sketch()
    y = layer_norm(s, s.input("x", [1, 4096, 4096]), [-1], SPELLINGS[0])
    network = s.network(s.op("Mul", y, np.linspace(0.5, 1.5, 4096, dtype=np.float32)))
    tracemalloc.start()
    try:
        (norm,) = read_normalisations(network)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    assert norm.varying == {2}


def test_a_weight_may_be_part_of_statistics_without_their_axes():
    s = Sketch()
    x = s.input("x", [2, 24, 5, 6])
    mean, moment = (
        s.op("ReduceMean", each, axes=[0, 2, 3], keepdims=0) for each in (x, s.op("Mul", x, x))
    )
    variance = s.op("Sub", moment, s.op("Mul", mean, mean))
    scale = s.op("Div", WEIGHT, s.op("Sqrt", s.op("Add", variance, 1e-5)))
    centred = s.op("Sub", x, s.op("Reshape", mean, [1, 24, 1, 1]))
    norm = only(s, s.op("Mul", centred, s.op("Reshape", scale, [1, 24, 1, 1])))
    assert (norm.op, norm.varying) == ("BatchNormalization", frozenset({1}))
