import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.judging.batches import plan_batches
from halfwise.judging.batching import find_batching
from halfwise.judging.judge import judge_outputs
from halfwise.records import Criterion, Profile, ShapeRange, TensorName
from tests.unit.graph.sketch import Sketch, f32

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
    return plan_batches(*find_batching(network, session, samples), profiles, samples)


def single(plans, at):
    (found,) = [p for p in plans if p.at == at]
    return found


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
    assert shortest.reason == "no real sample has x of ?×2"
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
        "no real sample has x of 2×4, and samples cannot be batched: the model mixes"
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
    assert one.samples.ids == ("a … c (2)", "c … e (2)", "b … d (2)")
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
    assert "no real sample has x of 12 and s = [4, 4]" in single(plans, "max").reason


def test_samples_that_are_batches_are_cut_and_lose_their_labels():
    network = network_of("N", 4)
    samples = data((3, 4), (3, 4), labels=([0, 1, 2], [3, 0, 1]))
    plans = plan(network, samples, profile((1, 4), (3, 4), (6, 4)))
    smallest, usual, largest = (single(plans, at) for at in ("min", "opt", "max"))
    assert smallest.judged.ids == tuple(f"s{i}[{r}:{r + 1}]" for i in (0, 1) for r in range(3))
    assert smallest.judged.labels is None
    assert "labels belong to whole samples" in smallest.note
    assert usual.judged.labels == largest.judged.labels == samples.labels
    assert largest.note == ""


def test_verdicts_use_labels_of_single_samples():
    network, labels = network_of("N", 4), (0, 1, 2, 3, 0)
    samples = data(*[(1, 4)] * 5, labels=labels)
    one = single(plan(network, samples, profile((1, 4), (1, 4), (2, 4))), "max")
    session = Session(network.model)
    outputs = one.take_apart([session.run(batch) for batch in one.samples])
    seen = []

    def metric(reference, _candidate, labels):
        seen.append((len(reference), tuple(labels)))
        return 1.0

    judged = judge_outputs(outputs, one.judged, outputs, Criterion(metric="m"), metric)
    assert judged.verdict.passed
    assert judged.verdict.samples == samples.ids
    assert set(seen) == {(5, labels)}


def test_no_profiles_no_plan():
    assert plan(network_of("N", 4), data((1, 4))) == ()


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.integers(1, 7))
def test_every_row_is_judged_and_every_batch_is_full(sizes, wanted):
    network, samples = network_of("N", 4), data(*[(size, 4) for size in sizes])
    (one,) = plan(network, samples, profile(*[(wanted, 4)] * 3))
    assert all(batch["x"].shape == (wanted, 4) for batch in one.samples)
    outputs = one.take_apart([{"y_out": batch["x"]} for batch in one.samples])
    assert len(outputs) == len(one.judged)
    for found, judged in zip(outputs, one.judged, strict=True):
        np.testing.assert_array_equal(found["y_out"], judged["x"])
    given_rows = {tuple(row) for sample in samples for row in sample["x"].tolist()}
    assert {tuple(row) for found in outputs for row in found["y_out"].tolist()} == given_rows
    assert bool(one.note) == (sum(sizes) < wanted)


@pytest.mark.parametrize("shape", [(2, 5), (3, 4), (1, 4), (2, 4, 1), ()])
def test_outputs_of_a_wrong_size_fail(shape):
    network, samples = network_of("N", 4), data(*[(1, 4)] * 2)
    (one,) = plan(network, samples, profile(*[(2, 4)] * 3))
    reference = one.take_apart([{"y_out": np.zeros((2, 4), np.float32)}])
    candidate = one.take_apart([{"y_out": np.zeros(shape, np.float32)}])
    verdict = judge_outputs(candidate, one.judged, reference, Criterion(), None).verdict
    assert not verdict.passed
