import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.fixing.engines import measure as timing
from halfwise.records import Criterion, Profile, ShapeRange, TensorName
from tests import models
from tests.models import Ill
from tests.unit.casing import names
from tests.unit.graph.sketch import Sketch

KEPT = names(*models.layer_norm().kept)


def test_an_fp32_engine_gives_what_the_model_gives(stage):
    ready = stage(models.layer_norm())
    measure, samples = ready.device.measure, ready.case.heldout
    engine = ready.device.builds.build(ready.device.fp32, "FP32").engine
    references = measure.references(samples)
    for results, wanted in zip(measure.outputs(engine, samples), references, strict=True):
        np.testing.assert_allclose(results["gamma_out"], wanted["gamma_out"], rtol=1e-5)
    judged = measure.judge(engine, samples, references, Criterion(snr_db=60))
    assert judged.verdict.passed
    assert (judged.verdict.level, judged.verdict.samples) == ("engine", samples.ids)
    assert not measure.judge(engine, samples, references, unseen=False).verdict.passed
    assert measure.at_shapes(engine, samples) == ()


def test_what_an_engine_computes_in(stage):
    ready = stage(models.layer_norm())
    build = ready.bench().evaluate(ready.plan(KEPT), "mixed").worst.build
    roles = ready.fixed.space.variant.roles
    proof = ready.device.measure.proof(
        build, ready.case.network, roles, dict.fromkeys(KEPT, "fp32")
    )
    assert {n.node for n in proof.nodes if n.precision == "fp32"} == KEPT
    assert proof.findings == ()


def dynamic() -> Ill:
    s = Sketch()
    square = s.op("Mul", s.input("x", ["n", "t"]), 2.0, name="double")
    inputs = {"x": models.signals(1, 3, seed=5, count=8)}
    return Ill(s.proto(s.op("Relu", square, name="relu")), inputs)


def limits(low: int, mid: int, high: int, longest: int) -> Profile:
    shape = ShapeRange(min=(low, 3), opt=(mid, 3), max=(high, longest))
    return Profile(shapes={TensorName("x"): shape})


def test_every_shape_of_the_profiles_is_judged_or_named(stage):
    ready = stage(dynamic(), engine={"profiles": (limits(1, 2, 4, 3), limits(5, 6, 8, 9))})
    engine = ready.device.builds.build(ready.device.fp32, "FP32").engine
    results = {s.at: s for s in ready.device.measure.at_shapes(engine, ready.case.heldout)}
    assert [at for at, s in results.items() if s.verdict is None] == ["max of 2"]
    assert results["max of 2"].reason
    assert results["opt of 1"].verdict.passed
    assert results["opt of 1"].shapes == {"x": (2, 3)}


def test_all_engines_are_timed_on_the_same_shapes(stage, monkeypatch):
    monkeypatch.undo()  # the number of runs is that of users
    ready = stage(dynamic(), engine={"profiles": (limits(1, 2, 4, 3),)})
    builds, fp32 = ready.device.builds, ready.device.fp32
    measure = ready.device.measure
    results = [measure.latency(builds.build(fp32, "", low=low).engine) for low in (None, "fp16")]
    assert [latency.shapes for latency in results] == [{"x": (2, 3)}] * 2
    assert all(latency.iterations >= timing.TIMED_RUNS for latency in results)


def test_samples_run_in_the_profile_that_holds_them(stage):
    ready = stage(dynamic(), engine={"profiles": (limits(1, 2, 4, 3), limits(5, 6, 8, 3))})
    engine = ready.device.builds.build(ready.device.fp32, "FP32").engine
    six = Samples(("six",), lambda _: {"x": np.ones((6, 3), np.float32)})
    (results,) = ready.device.measure.outputs(engine, six)
    assert results["relu_out"] == pytest.approx(np.full((6, 3), 2.0))
