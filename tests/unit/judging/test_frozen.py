import numpy as np
import pytest
from onnx import TensorProto

from halfwise.case import Case, Samples, Settings
from halfwise.errors import CaseError, RunFailed
from halfwise.graph.sizes import frozen_lengths
from halfwise.judging.frozen import frozen_named, frozen_size
from halfwise.records import Criterion
from tests.frozen import LENGTH, WIDTH, frozen_batch, frozen_length, network
from tests.unit.graph.sketch import Sketch, f32

RNG = np.random.default_rng(0)


def samples(*arrays):
    return Samples(tuple(map(str, range(len(arrays)))), lambda i: {"x": arrays[i]})


def normal(*shape):
    return f32(RNG.normal(size=shape))


@pytest.mark.parametrize(("size", "given"), [(2, 1), (3, 2), (2, 5), (1, 2)])
def test_the_size_of_the_export_and_the_nodes_that_hold_it(size, given):
    found = frozen_size(network(frozen_batch(size)), samples(normal(given, LENGTH, WIDTH)))
    assert found is not None
    assert (found.batch, found.given, found.runs, found.axes) == (True, given, size, {"x": 0})
    assert found.nodes == ("split", "join")
    assert found.shown
    assert "ONNX Runtime failed" in found.failure


@pytest.mark.parametrize("given", [1, 3])
def test_row_numbers_hold_it_too(given):
    found = frozen_size(network(frozen_batch(2, pooled=True)), samples(normal(given, 6, 8)))
    assert found is not None
    assert found.nodes == ("split", "join", "rows")
    assert found.shown


def test_another_axis():
    given = samples(normal(1, LENGTH, WIDTH), normal(1, 9, WIDTH))
    found = frozen_size(network(frozen_length()), given)
    assert found is not None
    assert (found.batch, found.given, found.runs) == (False, 9, LENGTH)
    assert (found.axes, found.nodes, found.shown) == ({"x": 1}, ("split",), False)


def test_a_model_that_runs_insists_on_nothing():
    assert frozen_size(network(frozen_batch(2)), samples(normal(2, LENGTH, WIDTH))) is None


@pytest.mark.parametrize("rows", [1, 4])
def test_values_that_do_not_fit_are_no_size(rows):
    sketch = Sketch()
    sketch.input("x", ["n", 3], TensorProto.INT64)
    sketch.op("Gather", f32(np.ones((10, WIDTH))), "x", name="embed")
    ids = np.zeros((rows, 3), np.int64)
    ids[-1, -1] = 10
    assert frozen_size(network(sketch), samples(ids)) is None


def test_an_axis_that_is_limited_and_not_fixed_is_none():
    sketch = Sketch()
    x = sketch.input("x", [1, "t", WIDTH])
    length = sketch.op("Gather", sketch.op("Shape", x), np.asarray(1))
    rows = sketch.op("Range", np.asarray(0), length, np.asarray(1))
    embedded = sketch.op("Gather", f32(np.ones((LENGTH, WIDTH))), rows)
    # A constant holds 2, at which the model runs, as it does at every length up to 6.
    head = sketch.op("Reshape", sketch.op("Slice", x, [0], [2], [1]), [1, 2, WIDTH], name="head")
    whole = sketch.network(embedded, head)
    assert [each.node.name for each in frozen_lengths(whole)] == ["head"]
    assert frozen_size(whole, samples(normal(1, 9, WIDTH))) is None


def case(batch):
    x = np.ones((batch, LENGTH, WIDTH), np.float32)
    samples = Samples(("s0",), lambda _: {"x": x})
    whole = network(frozen_batch(2))
    return Case(whole, samples, samples.select(()), Criterion(), None, (), "")


def test_a_failure_is_told_by_its_size():
    told = pytest.raises(CaseError, match="runs on batches of 2: split, join hold")
    with told, frozen_named(case(1), Settings()):
        raise RunFailed("the model failed")


def test_a_failure_of_something_else_stays():
    with pytest.raises(RunFailed, match="an engine failed"), frozen_named(case(2), Settings()):
        raise RunFailed("an engine failed")


def test_what_took_too_long_is_not_run_again():
    with pytest.raises(RunFailed, match="too long"), frozen_named(case(1), Settings()):
        raise RunFailed("too long", late=True)
