"""Predictions of a model with a factor that overflows unless it is fused, and squares that do."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.fixing.engines.attempts import USUAL, WITH_TF32, Candidate, Terms
from halfwise.fixing.engines.conclude import rounds
from halfwise.fixing.engines.prediction import Prediction
from halfwise.fixing.engines.proposals import Budget
from halfwise.fixing.engines.search import EngineSearch
from halfwise.fixing.plan.result import FP32_ALONE, Types
from halfwise.records import EngineLayer
from tests import models
from tests.unit.casing import names
from tests.unit.fixing.running import planner
from tests.unit.graph.sketch import Sketch
from tests.unit.reporting.engine_runs import build, latency, proof

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
def made():
    return planner(scaled())


def layer(*nodes: str, precision="unknown", of="fp32") -> EngineLayer:
    return EngineLayer(
        name="block",
        type="Myelin",
        nodes=tuple(names(*nodes)),
        inputs=(of,),
        outputs=(of,),
        precision=precision,
    )


def prediction(made, *layers: EngineLayer, **how) -> Prediction:
    told = proof(layers=layers) if layers else None
    return Prediction(made, lambda *_: told, **how)


def test_fusion_needs_the_norm_and_storage_the_factor_too(made):
    found = prediction(made)
    assert made.trials.evaluate(ALL).passed
    assert not made.trials.evaluate(NORM).passed
    assert found.enough(NORM)
    assert not found.enough(names("factor", "product"))
    assert found.excess(NORM) < 1 < found.excess(NOTHING)


def test_the_smaller_error_counts(made):
    found = prediction(made)
    assert made.trials.excess(NORM) == inf
    assert found.error(NORM) == found.excess(NORM)
    assert found.error(NOTHING) == min(found.excess(NOTHING), made.trials.excess(NOTHING))


def test_a_plan_is_beyond_the_limit_where_both_say_so(made):
    found = prediction(made)
    assert found.error(NOTHING) > 2
    assert found.beyond(NOTHING)
    assert not found.beyond(NORM)
    assert not found.beyond(ALL)


def test_what_the_engine_has_in_fp32_need_not_be_kept(made):
    found = prediction(made, layer("norm"), layer("larger", precision="fp16", of="fp16"))
    before = found.error(NOTHING)
    found.learn(build(1, "plain"))
    assert found.fp32 == NORM | names("norm")
    assert found.enough(NOTHING)
    assert found.error(NOTHING) < 1 < before


def test_what_a_rule_lowers_no_engine_has_in_fp32():
    lowered = planner(scaled(), lower="root")
    found = prediction(lowered, layer("norm"))
    found.learn(build(1, "plain"))
    assert found.fp32 == names("norm", "mean", "square", "larger", "product", "factor")


def test_an_engine_that_tells_nothing_changes_nothing(made):
    found = prediction(made)
    found.learn(build(1, "plain"))
    assert found.fp32 == NOTHING


def test_when_time_is_up_nothing_is_foretold(made):
    found = prediction(made, seconds=-1.0)
    assert found.enough(NORM) is None
    assert not found.beyond(NOTHING)
    assert found.band(NOTHING) is found.tf32() is None
    assert found.error(NOTHING) == 0
    assert found.excess(NORM) < 1


def test_samples_that_join_count():
    own = planner(scaled())
    found = prediction(own)
    assert found.error(NORM) < 1
    sample = own.case.calibration[0]["x"]
    louder = replace(own.case.calibration.select([0]), load=lambda _: {"x": 60 * sample})
    # The norm of 60 · x is that of x, but what is larger overflows.
    own.join(louder, [own.trials.references[0]], own.evidence)
    assert found.error(NORM) > 1
    assert not found.enough(NORM)


def test_rounds_tell_both_predictions_in_the_order_of_builds(made):
    def attempt(keep, step, terms):
        return Candidate(keep, step, build(1, step), 0.5, latency(1.0), terms=terms)

    proposals: Any = None
    search = EngineSearch(attempt, proposals, list(made.roles), Budget(1), 1, prediction(made))
    search.tried = {
        (NORM, USUAL): [Candidate(NORM, "second", build(3, "b"), 0.4, latency(2.0))],
        (NOTHING, USUAL): [Candidate(NOTHING, "first", build(2, "a"))],
    }
    first, second = rounds(search, made)
    assert (first.step, first.build, first.measured, first.median_ms) == ("first", 2, None, None)
    assert (second.keep, second.measured, second.passed) == (
        tuple(n for n in made.roles if n in NORM),
        0.4,
        True,
    )
    assert second.predicted == inf
    assert second.predicted_fused == prediction(made).excess(NORM)
    search.prediction = None
    assert rounds(search, made)[1].predicted_fused is None


def test_a_band_counts_the_tf32_of_the_plan_as_that_of_the_terms():
    own = planner(models.busy_product(), no_repair=True, allow_tf32=True)
    kept = names("matmul")

    def most(types: Types, terms: Terms = USUAL, **how: bool) -> float:
        own.narrowing.take(kept, types)
        band = prediction(own, **how).banded(Candidate(kept, "", build(1, ""), terms=terms)).band
        assert band is not None
        return band.most

    plain, told = most(FP32_ALONE), most(FP32_ALONE, WITH_TF32)
    assert plain < told == most(FP32_ALONE, always_tf32=True) <= most(Types(tf32=True))


def test_the_band_of_a_plan_holds_what_the_expected_engine_shows(made):
    found = prediction(made, layer("norm"))
    unknown = found.band(NORM)
    assert unknown is not None
    assert unknown.holds(found.excess(NORM))
    assert unknown.may_overflow  # without fusion the factor does
    found.learn(build(1, "plain"))
    known = found.band(NOTHING)
    assert known is not None
    assert known.least <= found.excess(NOTHING) < 1 < known.most
    relaxed, tf32 = found.band(NORM, tf32=True), found.tf32()
    assert relaxed is not None
    assert tf32 is not None
    again = found.band(NORM)
    assert again is not None
    assert relaxed.most == again.most + tf32.most


def test_every_attempt_is_told_its_band_before(made):
    found, seen = prediction(made), list[Any]()

    def attempt(keep, step, terms):
        seen.append(found.band(keep))
        return Candidate(keep, step, build(1, ""), 0.5, terms=terms)

    tried = found.before(attempt)(NORM, "a plan", USUAL)
    assert tried.band == found.band(NORM) == seen[0]
    loose = Terms(border=NORM)
    assert found.before(attempt)(NORM, "where some may be low", loose).band is None
    assert found.banded(replace(tried, band=None)) == tried


def test_where_samples_join_an_attempt_its_band_is_of_these_too():
    made = planner(scaled())
    found, before = prediction(made), list[Any]()

    def attempt(keep, step, terms):
        before.append(found.band(keep))
        sample = {"x": np.float32(1e4) * made.trials.samples[0]["x"]}
        more = Samples(("more",), lambda _: sample)
        made.trials.join(more, [Session(made.case.network.model).run(sample)])
        return Candidate(keep, step, build(1, ""), 0.5, terms=terms)

    tried = found.before(attempt)(NORM, "a plan", USUAL)
    assert tried.band == found.band(NORM) != before[0]
