import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.judging.batching import Apart, Batching, find_batching, plan_batches
from halfwise.judging.judge import judge_outputs
from halfwise.records import Criterion, Profile, ShapeRange, TensorName
from tests.unit.graph.sketch import Sketch, f32

RNG = np.random.default_rng(0)


def samples_of(*samples):
    return Samples(tuple(f"s{i}" for i in range(len(samples))), lambda i: samples[i])


def rows(count, *shape, name="x", size=1):
    return [{name: f32(RNG.normal(size=(size, *shape)))} for _ in range(count)]


def search(sketch, outputs, samples):
    network = sketch.network(*outputs)
    joining = find_batching(network, Session(network.model), samples_of(*samples))
    return (joining, "") if isinstance(joining, Batching) else (None, joining.reason)


def test_the_first_axis_of_a_row_wise_model():
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    hidden = sketch.op("MatMul", x, f32(RNG.normal(size=(4, 8))), name="up")
    batching, reason = search(sketch, [hidden, sketch.op("Relu", hidden, name="y")], rows(5, 4))
    assert reason == ""
    assert batching.inputs == {"x": 0}
    assert batching.outputs == {"up_out": 0, "y_out": 0}


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
    assert batching.outputs == {"flat_out": 0}


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


@pytest.mark.parametrize(("mixed", "joins"), [(0.45e-4, True), (0.55e-4, False)])
def test_rows_differ_by_less_than_a_ten_thousandth(mixed, joins):
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    total = sketch.op("ReduceSum", sketch.op("Mul", x, f32(mixed)), [0], name="sum")
    samples = [{"x": f32(np.ones((1, 4)))}] * 3
    batching, _ = search(sketch, [sketch.op("Add", x, total, name="y")], samples)
    assert (batching is not None) is joins


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


def test_references_stand_for_runs_of_single_samples():
    sketch = Sketch()
    network = sketch.network(sketch.op("Relu", sketch.input("x", ["N", 4]), name="y"))
    samples = samples_of(*rows(3, 4))
    session = Session(network.model)
    references = {name: session.run(one) for name, one in zip(samples.ids, samples, strict=True)}
    joining = find_batching(network, session, samples, references)
    assert isinstance(joining, Batching)
    assert joining.outputs == {"y_out": 0}
    others = dict(zip(samples.ids, reversed(references.values()), strict=True))
    assert isinstance(find_batching(network, session, samples, others), Apart)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_cutting_undoes_joining(sizes, data):
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    network = sketch.network(sketch.op("Reshape", x, [-1, 2], name="y"))
    session = Session(network.model)
    samples = [rows(1, 4, size=size)[0] for size in sizes]
    batching = find_batching(network, session, samples_of(*samples))
    assert isinstance(batching, Batching)
    joined = batching.join(samples)
    outputs = session.run(joined)
    which = data.draw(st.integers(0, len(sizes) - 1))
    begin, end = sum(sizes[:which]), sum(sizes[: which + 1])
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


X = TensorName("x")


def network_of(*shape):
    sketch = Sketch()
    x = sketch.input("x", list(shape))
    return sketch.network(sketch.op("Softmax", x, axis=-1, name="y"))


def data(*shapes, labels=None):
    rng = np.random.default_rng(0)
    arrays = [f32(rng.normal(size=shape)) for shape in shapes]
    names = tuple(f"s{i}" for i in range(len(shapes)))
    return Samples(names, lambda i: {"x": arrays[i]}, labels)


def profile(low, opt, high):
    return Profile(shapes={X: ShapeRange(min=low, opt=opt, max=high)})


def plan(network, samples, *profiles):
    session = Session(network.model)
    return plan_batches(find_batching(network, session, samples), profiles, samples)


def single(plans, at):
    (joining,) = [p for p in plans if p.at == at]
    return joining


def test_samples_stand_side_by_side_and_are_taken_apart():
    network, samples = network_of("N", 4), data(*[(1, 4)] * 5)
    plans = plan(network, samples, profile((1, 4), (2, 4), (5, 4)))
    assert [(p.at, p.profile, p.shapes["x"]) for p in plans] == [
        ("opt", 0, (2, 4)),
        ("min", 0, (1, 4)),
        ("max", 0, (5, 4)),
    ]
    session = Session(network.model)
    alone = [session.run(sample)["y_out"] for sample in samples]
    for one in plans:
        assert all(sample["x"].shape == one.shapes["x"] for sample in one.samples)
        parts = one.take_apart([session.run(sample) for sample in one.samples])
        assert one.judged.ids == samples.ids
        assert (one.note, one.reason) == ("", "")
        for part, expected in zip(parts, alone, strict=True):
            np.testing.assert_allclose(f32(part["y_out"]), f32(expected), rtol=1e-6)
        for judged, sample in zip(one.judged, samples, strict=True):
            np.testing.assert_array_equal(judged["x"], sample["x"])
    assert plans[2].samples.ids == ("s0 … s4 (5)",)


def test_too_few_samples_are_repeated_and_judged_once():
    network, samples = network_of("N", 4), data(*[(1, 4)] * 3)
    largest = single(plan(network, samples, profile((1, 4), (1, 4), (8, 4))), "max")
    assert largest.note == (
        "only 3 real for a batch of 8, so they are repeated; the repeats are not judged"
    )
    assert largest.samples.ids == ("s0 … s2 (8)",)
    (batch,) = largest.samples
    np.testing.assert_array_equal(batch["x"][:3], batch["x"][3:6])
    assert largest.judged.ids == samples.ids
    assert len(largest.take_apart([{"y_out": np.zeros((8, 4))}])) == 3


def test_shapes_that_are_equal_run_once():
    plans = plan(network_of("N", 4), data((1, 4)), profile((1, 4), (1, 4), (2, 4)))
    assert [p.at for p in plans] == ["opt", "max"]


def test_other_axes_need_samples_that_have_the_size():
    network = network_of("N", "L")
    samples = data((1, 4), (1, 8), (1, 4))
    plans = plan(network, samples, profile((1, 2), (1, 8), (2, 4)))
    shortest, usual, largest = (single(plans, at) for at in ("min", "opt", "max"))
    assert shortest.samples is None
    assert shortest.judged is None
    assert shortest.reason == "no real samples have x of 1×2"
    assert usual.judged.ids == ("s1",)
    assert largest.judged.ids == ("s0", "s2")


def test_where_samples_mix_only_their_own_shapes_are_judged():
    sketch = Sketch()
    network = sketch.network(sketch.op("Softmax", sketch.input("x", ["N", 4]), axis=0))
    plans = plan(network, data((1, 4), (1, 4)), profile((1, 4), (1, 4), (2, 4)))
    assert single(plans, "opt").judged.ids == ("s0", "s1")
    outputs = [{"y": np.zeros(1)}, {"y": np.ones(1)}]
    assert single(plans, "opt").take_apart(outputs) == outputs
    assert single(plans, "max").reason.startswith(
        "no real samples have x of 2×4, and samples cannot be batched: the model mixes"
    )


def test_profiles_that_no_batch_can_have():
    sketch = Sketch()
    x, y = sketch.input("x", ["N", 4]), sketch.input("y", ["N", 4])
    network = sketch.network(sketch.op("Add", x, y))
    rows = [{"x": f32(np.ones((1, 4))), "y": f32(np.ones((1, 4)))}] * 2
    samples = Samples(("a", "b"), rows.__getitem__)
    shapes = {
        X: ShapeRange(min=(0, 4), opt=(1, 4), max=(2, 4)),
        TensorName("y"): ShapeRange(min=(0, 4), opt=(1, 4), max=(3, 4)),
    }
    plans = plan(network, samples, Profile(shapes=shapes))
    assert single(plans, "max").reason == "the profile requires batches of 2 and 3 here"
    assert single(plans, "min").reason == "the profile requires batches of 0 here"
    assert single(plans, "opt").judged.ids == ("a", "b")


def test_inputs_without_a_batch_axis_are_equal_in_a_batch():
    sketch = Sketch()
    x, scale = sketch.input("x", ["N", 4]), sketch.input("scale", [1])
    network = sketch.network(sketch.op("Mul", x, scale))
    rows = [{"x": f32(np.full((1, 4), i)), "scale": f32([i % 2])} for i in range(5)]
    samples = Samples(tuple("abcde"), rows.__getitem__)
    one = single(plan(network, samples, profile((1, 4), (1, 4), (2, 4))), "max")
    assert one.samples.ids == ("a … c (2)", "e … a (2)", "b … d (2)")
    assert one.judged.ids == ("a", "c", "e", "b", "d")
    assert [batch["scale"].tolist() for batch in one.samples] == [[0], [0], [1]]


def test_shape_tensors_need_samples_with_these_values():
    sketch = Sketch()
    x, s = sketch.input("x", ["N"]), sketch.input("s", [2], TensorProto.INT64)
    network = sketch.network(sketch.op("Reshape", x, s))
    rows = [{"x": f32(np.ones(12)), "s": np.array(v)} for v in ([3, 4], [4, 3])]
    samples = Samples(("a", "b"), rows.__getitem__)
    values = {TensorName("s"): ShapeRange(min=(3, 3), opt=(4, 3), max=(4, 4))}
    same = ShapeRange(min=(12,), opt=(12,), max=(12,))
    plans = plan(network, samples, Profile(shapes={X: same}, values=values))
    assert single(plans, "opt").judged.ids == ("b",)
    assert "no real samples have x of 12 and s = [4, 4]" in single(plans, "max").reason


def test_samples_that_are_batches_stay_whole():
    network = network_of("N", 4)
    samples = data((3, 4), (3, 4), (3, 4), labels=([0, 1, 2], [3, 0, 1], [2, 1, 0]))
    plans = plan(network, samples, profile((1, 4), (3, 4), (6, 4)))
    smallest, usual, largest = (single(plans, at) for at in ("min", "opt", "max"))
    assert smallest.reason == "no real samples have x of 1×4"
    assert usual.judged.labels == largest.judged.labels == samples.labels
    assert largest.samples.ids == ("s0 … s1 (2)", "s2 … s0 (2)")
    session = Session(network.model)
    outputs = largest.take_apart([session.run(batch) for batch in largest.samples])
    for joining, sample in zip(outputs, samples, strict=True):
        assert np.asarray(joining["y_out"], float) == pytest.approx(
            np.asarray(session.run(sample)["y_out"], float), rel=1e-6
        )


def test_verdicts_use_labels_of_single_samples():
    network, labels = network_of("N", 4), (0, 1, 2, 3, 0)
    samples = data(*[(1, 4)] * 5, labels=labels)
    one = single(plan(network, samples, profile((1, 4), (1, 4), (2, 4))), "max")
    session = Session(network.model)
    outputs = one.take_apart([session.run(batch) for batch in one.samples])
    tried = []

    def metric(reference, _candidate, labels):
        tried.append((len(reference), tuple(labels)))
        return 1.0

    judged = judge_outputs(outputs, one.judged, outputs, Criterion(metric="m"), metric)
    assert judged.verdict.passed
    assert judged.verdict.samples == samples.ids
    assert set(tried) == {(5, labels), *((1, (label,)) for label in labels)}


def test_no_profiles_no_plan():
    assert plan(network_of("N", 4), data((1, 4))) == ()


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4))
def test_every_sample_is_judged_and_every_batch_is_full(number, size, times):
    network, samples = network_of("N", 4), data(*[(size, 4)] * number)
    (one,) = plan(network, samples, profile(*[(size * times, 4)] * 3))
    assert all(batch["x"].shape == (size * times, 4) for batch in one.samples)
    outputs = one.take_apart([{"y_out": batch["x"]} for batch in one.samples])
    assert one.judged.ids == samples.ids
    for joining, judged in zip(outputs, one.judged, strict=True):
        np.testing.assert_array_equal(joining["y_out"], judged["x"])
    assert bool(one.note) == (number < times)


@pytest.mark.parametrize("shape", [(2, 5), (3, 4), (1, 4), (2, 4, 1), ()])
def test_outputs_of_a_wrong_size_fail(shape):
    network, samples = network_of("N", 4), data(*[(1, 4)] * 2)
    (one,) = plan(network, samples, profile(*[(2, 4)] * 3))
    reference = one.take_apart([{"y_out": np.zeros((2, 4), np.float32)}])
    candidate = one.take_apart([{"y_out": np.zeros(shape, np.float32)}])
    verdict = judge_outputs(candidate, one.judged, reference, Criterion(), None).verdict
    assert not verdict.passed
