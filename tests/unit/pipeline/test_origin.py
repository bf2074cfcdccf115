"""Origins that were planted: the one that is named is it, or none is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfwise.backends.emulation.typed import emulate_typed
from halfwise.backends.ort import Session
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.movement import carried
from halfwise.pipeline.origin import MOST, follow
from halfwise.records import Followed
from halfwise.stages.growth import growth
from tests import models
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.stages.casing import Prepared, names, prepare

PLANT = names("shift", "back")


def rotation(generator):
    return f32(np.linalg.qr(generator.normal(size=(16, 16)))[0])


def plant(s: Sketch, value: str) -> str:
    """Add 3000 and take it away again: what is stored between has a spacing of 2."""
    return s.op("Sub", s.op("Add", value, f32(3000.0), name="shift"), f32(3000.0), name="back")


def decoy(s: Sketch, value: str, kind: str, i: int) -> str:
    """Add a branch whose error is large to its own scale, and that no output feels."""
    if kind == "mean":
        mean = s.op("ReduceMean", value, name=f"mean_{i}", axes=[-1])
        rest = s.op("Mul", s.op("Sub", mean, mean, name=f"rest_{i}"), 1e-6, name=f"tiny_{i}")
        branch = s.op("Add", rest, s.op("Mul", mean, 1e-6, name=f"little_{i}"), name=f"sum_{i}")
    else:
        hidden = s.op("Mul", f32([0.0] * 8 + [1.0] * 8), f32(-65504.0), name=f"fill_{i}")
        scores = s.op("Sub", hidden, s.op("Abs", value, name=f"abs_{i}"), name=f"mask_{i}")
        twice = s.op("Add", scores, hidden, name=f"twice_{i}")
        soft = s.op("Softmax", twice, name=f"softmax_{i}", axis=-1)
        branch = s.op("Mul", soft, 1e-3, name=f"weigh_{i}")
    return s.op("Add", value, branch, name=f"join_{i}")


def graph(seed: int, steps: list[str], at: int | None) -> models.Ill:
    generator, s = np.random.default_rng(seed), Sketch()
    value = s.input("x", [1, 8, 16])
    for i, step in enumerate(steps):
        if i == at:
            value = plant(s, value)
        if step == "rotate":
            value = s.op("MatMul", value, rotation(generator), name=f"rotate_{i}")
        elif step == "turn":
            value = s.op("Reshape", value, [1, 8, 16], name=f"turn_{i}")
        else:
            value = decoy(s, value, step, i)
    y = s.op("MatMul", value, rotation(generator), name="end")
    return models.Ill(s.proto(y), {"x": models.signals(1, 8, 16, seed=seed, count=1)})


def low_model(prepared: Prepared, kept):
    full = kept | carried(prepared.network, prepared.roles, kept)
    return emulate_typed(rewrite(prepared.network, prepared.roles, full, FP16).model)


def followed(prepared: Prepared, *fp32: str) -> Followed:
    kept = names(*fp32)
    trials = prepared.trials()
    path = growth(
        prepared.network, low_model(prepared, kept), prepared.roles, trials.worst_sample()
    )
    return follow(prepared.network, prepared.roles, trials, kept, path)


def error(prepared: Prepared, kept) -> float:
    """Return the largest error over the largest value of the output, by another emulation."""
    expected = prepared.references[0]["end_out"]
    actual = Session(low_model(prepared, kept)).run(prepared.samples[0])["end_out"]
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


STEPS = st.lists(st.sampled_from(["rotate", "turn", "mean", "mask"]), min_size=2, max_size=6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**16), STEPS, st.data())
def test_a_planted_origin_is_named_or_none_is(seed, steps, data):
    at = data.draw(st.integers(0, len(steps) - 1))
    prepared = prepare(graph(seed, steps, at))
    found = followed(prepared)
    assert found.origin is not None
    assert found.origin.node in PLANT
    assert set(found.origin.kept) >= PLANT
    assert found.origin.error <= MOST * found.error


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**16), STEPS)
def test_whatever_is_named_undoes_the_error(seed, steps):
    """Measured by the other emulation, and told with the right numbers."""
    prepared = prepare(graph(seed, steps, None))
    found = followed(prepared)
    assert found.error == pytest.approx(100 * error(prepared, names()), rel=1e-4)
    if found.origin is not None:
        assert not {n for n in found.origin.kept if n.startswith(("mean", "mask"))}
        left = error(prepared, frozenset(found.origin.kept))
        assert found.origin.error == pytest.approx(100 * left, rel=1e-4)
        assert left <= MOST * error(prepared, names()) * (1 + 1e-4)


def test_a_relative_error_that_no_output_feels_is_no_origin():
    """Of the mean's difference all is error; keeping it changes next to nothing."""
    prepared = prepare(graph(1, ["rotate"] * 4 + ["mean"] + ["rotate"] * 4, None))
    found = followed(prepared)
    assert found.origin is None
    assert found.tried


def test_a_mask_that_becomes_infinite_is_no_origin():
    steps = ["rotate"] * 4 + ["mask"] + ["rotate"] * 4
    prepared = prepare(graph(2, steps, None))
    low = Session(low_model(prepared, names()))
    assert np.isfinite(low.run(prepared.samples[0])["end_out"]).all()
    found = followed(prepared)
    assert "twice_4" in found.tried
    assert found.origin is None


def test_an_overflow_is_the_origin_of_an_infinite_error():
    generator, s = np.random.default_rng(3), Sketch()
    value = s.input("x", [1, 8, 16])
    for i in range(3):
        value = s.op("MatMul", value, rotation(generator), name=f"before_{i}")
    large = s.op("Relu", s.op("Mul", value, 5e3, name="enlarge"), name="relu")
    value = s.op("Mul", s.op("Mul", large, 60.0, name="more"), 1e-5, name="reduce")
    for i in range(3):
        value = s.op("MatMul", value, rotation(generator), name=f"after_{i}")
    found = followed(
        prepare(models.Ill(s.proto(value), {"x": models.signals(1, 8, 16, seed=5, count=1)}))
    )
    assert found.error == np.inf
    assert found.origin is not None
    assert (found.origin.node, found.origin.kept) == ("more", ("more", "reduce"))
    assert found.origin.error < 1


def test_error_that_accumulates_has_no_origin():
    found = followed(prepare(models.deep(layers=10)))
    assert found.origin is None
    assert found.accumulates


def test_nothing_wrong_has_no_origin():
    ill = models.deep(layers=3)
    found = followed(prepare(ill), "rotate_0", "rotate_1", "rotate_2")
    assert (found.error, found.origin, found.accumulates) == (0, None, False)
    assert found.kept == ("rotate_0", "rotate_1", "rotate_2")
