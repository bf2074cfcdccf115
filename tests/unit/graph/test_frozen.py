import numpy as np
import pytest

from halfwise.graph.frozen import frozen_nodes
from tests.unit.graph.sketch import Sketch, f32


def frozen(sketch, *outputs):
    return frozen_nodes(sketch.network(*outputs))


@pytest.mark.parametrize(
    ("target", "expected"), [([1, -1], 1), ([2, 6], 1), ([-1, 4], 0), ([0, 4], 0)]
)
def test_a_reshape_to_a_fixed_first_axis(target, expected):
    sketch = Sketch()
    x = sketch.input("x", ["N", 2, 2])
    assert len(frozen(sketch, sketch.op("Reshape", x, target, name="flat"))) == expected


def test_a_reshape_of_a_fixed_first_axis_is_none():
    sketch = Sketch()
    x = sketch.input("x", [1, "L", 2])
    assert not frozen(sketch, sketch.op("Reshape", x, [1, -1]))


def test_a_class_token_that_was_expanded_at_export():
    sketch = Sketch()
    x = sketch.input("x", ["N", 4, 8])
    joined = sketch.op("Concat", f32(np.ones((1, 1, 8))), x, axis=1, name="tokens")
    assert frozen(sketch, joined) == ("tokens",)


def test_constants_joined_along_the_first_axis_or_to_a_shape_are_none():
    sketch = Sketch()
    x = sketch.input("x", ["N", 8])
    padded = sketch.op("Concat", x, f32(np.ones((1, 8))), axis=0)
    size = sketch.op("Shape", x, start=0, end=1)
    shaped = sketch.op("Reshape", x, sketch.op("Concat", size, [2, 4], axis=0))
    assert not frozen(sketch, padded, shaped)


@pytest.mark.parametrize(("first", "expected"), [(1, ()), (2, ("wide",))])
def test_an_expand_to_one_leaves_the_axis(first, expected):
    sketch = Sketch()
    x = sketch.input("x", ["N", 1])
    assert frozen(sketch, sketch.op("Expand", x, [first, 8], name="wide")) == expected
