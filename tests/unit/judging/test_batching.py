import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.judging.batching import Batching, find_batching
from tests.unit.graph.sketch import Sketch, f32

RNG = np.random.default_rng(0)


def samples_of(*samples):
    return Samples(tuple(f"s{i}" for i in range(len(samples))), lambda i: samples[i])


def rows(count, *shape, name="x", size=1):
    return [{name: f32(RNG.normal(size=(size, *shape)))} for _ in range(count)]


def search(sketch, outputs, samples):
    network = sketch.network(*outputs)
    return find_batching(network, Session(network.model), samples_of(*samples))


def test_the_first_axis_of_a_row_wise_model():
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    hidden = sketch.op("MatMul", x, f32(RNG.normal(size=(4, 8))), name="up")
    batching, reason = search(sketch, [hidden, sketch.op("Relu", hidden, name="y")], rows(5, 4))
    assert reason == ""
    assert batching.inputs == {"x": 0}
    assert batching.outputs == {"up_out": 0, "y_out": 0}
    assert batching.rows == {"up_out": 1, "y_out": 1}


def test_another_axis_by_its_symbol():
    """Sequence first, as recurrent models have it; the sequence itself mixes what is in it."""
    sketch = Sketch()
    x, mask = sketch.input("x", ["T", "N", 4]), sketch.input("mask", ["N", 1])
    total = sketch.op("ReduceSum", x, [0], name="sum", keepdims=0)
    y = sketch.op("Mul", total, mask, name="y")
    samples = [
        {"x": f32(RNG.normal(size=(6, 1, 4))), "mask": f32(RNG.normal(size=(1, 1)))}
        for _ in range(3)
    ]
    batching, _ = search(sketch, [y], samples)
    assert (batching.inputs, batching.outputs) == ({"x": 1, "mask": 0}, {"y_out": 0})


def test_outputs_with_several_rows_per_sample_and_with_none():
    sketch = Sketch()
    x = sketch.input("x", ["N", 6])
    flat = sketch.op("Reshape", x, [-1, 2], name="flat")
    anchors = sketch.op("Relu", f32(np.ones((5, 2))), name="anchors")
    batching, _ = search(sketch, [flat, anchors], rows(3, 6))
    assert (batching.outputs, batching.rows) == ({"flat_out": 0}, {"flat_out": 3})


def test_inputs_without_the_axis_are_shared():
    sketch = Sketch()
    x, scale = sketch.input("x", ["N", 4]), sketch.input("scale", [1])
    samples = [
        {**row, "scale": f32([value])} for row, value in zip(rows(3, 4), (1, 2, 1), strict=True)
    ]
    batching, _ = search(sketch, [sketch.op("Mul", x, scale)], samples)
    assert batching.inputs == {"x": 0}


def test_shape_tensors_are_shared():
    sketch = Sketch()
    x, ends = sketch.input("x", ["N", 4]), sketch.input("ends", ["R"], TensorProto.INT64)
    samples = [{**row, "ends": np.array([2])} for row in rows(3, 4)]
    batching, _ = search(sketch, [sketch.op("Slice", x, [0], ends, [1])], samples)
    assert batching.inputs == {"x": 0}


@pytest.mark.parametrize("op", ["Softmax", "CumSum"])
def test_a_model_that_mixes_samples(op):
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    y = sketch.op("Softmax", x, axis=0) if op == "Softmax" else sketch.op("CumSum", x, np.array(0))
    batching, reason = search(sketch, [y], rows(3, 4))
    assert batching is None
    assert "mixes the samples of a batch" in reason


def test_a_mean_over_the_batch():
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    batching, reason = search(
        sketch, [sketch.op("ReduceMean", x, name="m", keepdims=0)], rows(3, 4)
    )
    assert batching is None
    assert "output m_out has the shape [] for a batch of 3 and [] for one of 1" in reason


def test_an_order_that_changes_is_seen():
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    turned = sketch.op("Slice", x, [-1], [-(2**31)], [0], [-1])
    batching, reason = search(sketch, [turned], rows(3, 4))
    assert batching is None
    assert "mixes" in reason


def test_integers_have_to_be_equal():
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    largest = sketch.op("ArgMax", x, axis=1, name="class")
    assert search(sketch, [largest], rows(3, 4))[0] is not None
    whole = sketch.op("Add", largest, sketch.op("ReduceMax", largest, keepdims=0), name="sum")
    different = [{"x": f32(np.eye(4)[[i]])} for i in range(3)]
    assert "mixes" in search(sketch, [whole], different)[1]


def test_a_batch_that_is_baked_into_a_reshape_which_fails():
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    y = sketch.op("Reshape", x, [1, 2, 2], name="heads")
    batching, reason = search(sketch, [y], rows(3, 4))
    assert batching is None
    assert "fails on a batch of 3" in reason
    assert "fixed its batch size in the constants of heads" in reason


def test_a_batch_that_is_baked_into_a_reshape_which_runs():
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    y = sketch.op("Reshape", x, [1, -1], name="flat")
    batching, reason = search(sketch, [y], rows(3, 4))
    assert batching is None
    assert (
        "output flat_out has the shape [1, 12] for a batch of 3 and [1, 4] for one of 1" in reason
    )
    assert "constants of flat" in reason


def test_a_class_token_of_one_sample():
    sketch = Sketch()
    x = sketch.input("x", ["N", 2, 4])
    y = sketch.op("Concat", f32(np.ones((1, 1, 4))), x, axis=1, name="tokens")
    batching, reason = search(sketch, [y], rows(2, 2, 4))
    assert batching is None
    assert "constants of tokens" in reason


def test_models_without_an_axis_to_share():
    sketch = Sketch()
    x, y = sketch.input("x", ["N", 4]), sketch.input("y", [1, "L"])
    samples = [{"x": f32(np.ones((1, 4))), "y": f32(np.ones((1, 1)))}]
    assert "no dynamic axis common to all" in search(sketch, [sketch.op("Add", x, y)], samples)[1]
    static = Sketch()
    y = static.op("Relu", static.input("x", [1, 4]))
    assert "no dynamic axis" in search(static, [y], rows(2, 4))[1]


def test_inputs_of_different_sizes():
    sketch = Sketch()
    x, boxes = sketch.input("x", ["N", 4]), sketch.input("boxes", ["B", 4])
    y = sketch.op("Add", x, sketch.op("ReduceSum", boxes, [0], keepdims=1))
    samples = [{"x": f32(np.ones((1, 4))), "boxes": f32(np.ones((3, 4)))}] * 2
    assert "different sizes" in search(sketch, [y], samples)[1]


def test_a_single_sample_stands_beside_itself():
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    assert search(sketch, [sketch.op("Softmax", x, axis=1)], rows(1, 4))[0] is not None
    assert "mixes" in search(sketch, [sketch.op("Softmax", x, axis=0)], rows(1, 4))[1]


def test_samples_of_other_sizes_are_not_tried_together():
    sketch = Sketch()
    x = sketch.input("x", ["N", "L"])
    samples = [*rows(1, 3), *rows(2, 5), *rows(1, 4)]
    batching, _ = search(sketch, [sketch.op("Relu", x, name="y")], samples)
    assert batching.inputs == {"x": 0}


def test_nan_in_the_reference_is_equal_to_itself():
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    samples = [{"x": f32(-np.ones((1, 4)))}, *rows(2, 4)]
    assert search(sketch, [sketch.op("Log", x)], samples)[0] is not None


def test_image_ids_of_several_types():
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    ids = sketch.input("ids", ["N"], TensorProto.INT64)
    samples = [{**row, "ids": np.array([i])} for i, row in enumerate(rows(3, 4))]
    outputs = [sketch.op("Relu", x, name="y"), sketch.op("Identity", ids, name="same")]
    batching, _ = search(sketch, outputs, samples)
    assert batching.outputs == {"y_out": 0, "same_out": 0}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_cutting_undoes_joining(sizes, data):
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    network = sketch.network(sketch.op("Reshape", x, [-1, 2], name="y"))
    session = Session(network.model)
    samples = [rows(1, 4, size=size)[0] for size in sizes]
    batching, _ = find_batching(network, session, samples_of(*samples))
    assert isinstance(batching, Batching)
    joined = batching.join(samples)
    outputs = session.run(joined)
    which = data.draw(st.integers(0, len(sizes) - 1))
    begin, end = sum(sizes[:which]), sum(sizes[: which + 1])
    np.testing.assert_array_equal(batching.cut(joined, begin, end)["x"], samples[which]["x"])
    np.testing.assert_array_equal(
        batching.cut_outputs(outputs, begin, end, sum(sizes))["y_out"],
        session.run(samples[which])["y_out"],
    )


@pytest.mark.parametrize("shape", [(), (3, 4), (1, 4)])
def test_an_output_of_another_size_is_misshapen(shape):
    sketch = Sketch()
    batching, _ = search(sketch, [sketch.op("Relu", sketch.input("x", ["N", 4]))], rows(2, 4))
    (name,) = batching.outputs
    assert batching.cut_outputs({name: np.ones(shape)}, 0, 1, 2)[name].shape == (1, *shape)
