import numpy as np
import pytest

from halfwise.emulation.ort import Session
from halfwise.graph.frozen import (
    batches_of,
    frozen_batches,
    frozen_lengths,
    frozen_nodes,
    frozen_states,
    with_batch,
)
from tests import frozen as models
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


def test_what_the_first_frozen_node_fixes_for_those_behind():
    whole = models.network(models.frozen_batch(2, pooled=True))
    assert [each.node.name for each in frozen_batches(whole)] == ["split"]
    found = [(each.node.name, each.slot, each.along, each.sizes) for each in batches_of(whole, 2)]
    assert found == [("split", 1, None, (2,)), ("join", 1, None, (2,)), ("rows", 0, 0, (2,))]
    assert [each.node.name for each in batches_of(whole, 4)] == []


@pytest.mark.parametrize("new", [1, 3])
def test_another_batch_size_in_the_constants(new):
    whole = models.network(models.frozen_batch(2, pooled=True))
    x = f32(np.random.default_rng(0).normal(size=(new, models.LENGTH, models.WIDTH)))
    changed = Session(with_batch(whole, tuple(batches_of(whole, 2)), 2, new))
    found = changed.run({"x": x})["pool_out"]
    twice = [Session(whole.model).run({"x": np.stack([row, row])})["pool_out"][0] for row in x]
    assert found == pytest.approx(np.stack(twice), abs=1e-6)


@pytest.mark.parametrize(("layout", "along"), [(0, 1), (1, 0)])
def test_an_initial_state(layout, along):
    sketch = Sketch()
    x = sketch.input("x", ["n", 4, 3] if layout else [4, "n", 3])
    states = f32(np.ones((2, 1, 5) if layout else (1, 2, 5)))
    weights = f32(np.ones((1, 5, 3))), f32(np.ones((1, 5, 5)))
    operands = (x, *weights, f32(np.zeros((1, 10))), "", states)
    out = sketch.op("RNN", *operands, name="rnn", hidden_size=5, layout=layout)
    (found,) = frozen_states(sketch.network(out))
    assert (found.node.name, found.slot, found.along, found.sizes) == ("rnn", 5, along, (2,))


def test_the_length_of_another_axis():
    (found,) = frozen_lengths(models.network(models.frozen_length()))
    assert (found.node.name, found.axis, found.sizes) == ("split", 1, (1, 6, 2, 4))
