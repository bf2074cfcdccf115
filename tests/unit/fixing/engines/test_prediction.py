"""Predictions of a model with a factor that overflows unless it is fused, and squares that do."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from halfwise.fixing.engines.bench import Prediction
from tests import models
from tests.unit.casing import names
from tests.unit.fixing.running import space_of
from tests.unit.graph.sketch import Sketch

NOTHING = names()
FACTOR = 4096.0
NORM = names("square", "mean", "root")
ALL = NORM | names("factor", "product")


def scaled() -> models.Ill:
    """x · 4096 times weights that take the factor back, over its root mean square."""
    sketch = Sketch()
    x = sketch.op("Mul", sketch.input("x", [1, 16]), FACTOR, name="factor")
    weights = models.weights(16, 16, seed=3, scale=0.25) / np.float32(FACTOR)
    x = sketch.op("MatMul", x, weights, name="product")
    x = sketch.op("Mul", x, 20.0, name="larger")
    mean = sketch.op("ReduceMean", sketch.op("Mul", x, x, name="square"), axes=[1], name="mean")
    y = sketch.op("Div", x, sketch.op("Sqrt", mean, name="root"), name="norm")
    return models.Ill(sketch.proto(y), {"x": models.signals(1, 16, seed=1, peak=100)})


@pytest.fixture(scope="module")
def space():
    return space_of(scaled())


def test_fusion_needs_the_norm_and_storage_the_factor_too(space):
    prediction = Prediction(space)
    assert space.bench.evaluate(space.plan(ALL)).passed
    assert space.bench.excess(space.plan(NORM)) == inf
    assert prediction.is_enough(space.plan(NORM), NOTHING)
    assert not prediction.is_enough(space.plan(names("factor", "product")), NOTHING)
    norm, nothing = (prediction.fused(space.plan(kept), NOTHING) for kept in (NORM, NOTHING))
    assert norm is not None
    assert nothing is not None
    assert norm < 1 < nothing


def test_a_plan_is_beyond_the_limit_where_both_say_so(space):
    prediction = Prediction(space)
    assert prediction.is_beyond(space.plan(NOTHING), NOTHING)
    assert not prediction.is_beyond(space.plan(NORM), NOTHING)
    assert not prediction.is_beyond(space.plan(ALL), NOTHING)


def test_what_the_engine_has_in_fp32_by_itself_need_not_be_kept(space):
    prediction = Prediction(space)
    assert prediction.is_enough(space.plan(NOTHING), NORM)
    assert prediction.fused(space.plan(NOTHING), NORM) == prediction.fused(
        space.plan(NORM), NOTHING
    )


def test_when_time_is_up_nothing_is_foretold(space):
    prediction = Prediction(space, seconds=-1.0)
    assert not prediction.is_enough(space.plan(NORM), NOTHING)
    assert not prediction.is_beyond(space.plan(NOTHING), NOTHING)
    assert prediction.fused(space.plan(NORM), NOTHING) is None


def test_samples_that_join_count():
    space = space_of(scaled())
    prediction = Prediction(space)
    assert prediction.is_enough(space.plan(NORM), NOTHING)
    sample = space.bench.samples[0]["x"]
    louder = replace(space.bench.samples.select([0]), load=lambda _: {"x": 60 * sample})
    # The norm of 60 · x is that of x, but what is larger overflows.
    space.join(louder, [space.bench.references[0]])
    assert not prediction.is_enough(space.plan(NORM), NOTHING)


def test_an_answer_stands_when_time_is_up(space):
    """What a record says must not depend on when it is asked."""
    prediction = Prediction(space)
    assert prediction.is_beyond(space.plan(NOTHING), NOTHING)
    error = prediction.fused(space.plan(NORM), NOTHING)
    prediction._budget.work = 0.0
    assert prediction.is_beyond(space.plan(NOTHING), NOTHING)
    assert prediction.fused(space.plan(NORM), NOTHING) == error
    assert not prediction.is_enough(space.plan(NORM), NORM)
