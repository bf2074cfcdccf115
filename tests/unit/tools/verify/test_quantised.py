"""The pairs that make outputs wrong are those that mend them when left out, and no others."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from halfwise.api import verify
from halfwise.emulation.budget import WEIGHTS as WEIGHTS_OF_WORK
from halfwise.emulation.budget import Budget
from halfwise.errors import RunFailed
from halfwise.progress import Silent
from halfwise.records import QuantisationLoss
from halfwise.reporting.causes import quantisation_lines
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.reporting.runs import verification
from tests.unit.tools.quantised_layers import GOOD, SAMPLES, SIZE, WEIGHTS, model


def told(found: QuantisationLoss | None, line: int) -> str:
    lines = quantisation_lines(verification(quantisation=found))
    assert lines is not None
    return lines.lines[line]


def loss(quantised: onnx.ModelProto, **options):
    run = verify(
        model(), quantised, {"x": SAMPLES}, allow_random=True, **({"rel_max": 0.05} | options)
    ).run
    return run.verdict.passed, run.quantisation


def test_of_what_passes_nothing_is_asked():
    assert loss(model(GOOD)) == (True, None)


@pytest.mark.parametrize(
    ("scale", "fault", "rescaled"), [(0.004, "saturated", True), (4.0, "wide", True)]
)
def test_one_pair_that_is_wrong(scale, fault, rescaled):
    passed, found = loss(model(GOOD | {"second": scale}))
    assert not passed
    assert (found.pairs, found.explained, found.needed) == (6, True, 1)
    (cause,) = found.causes
    assert (cause.node, cause.readers, cause.fault) == ("second/dq", ("second",), fault)
    assert found.without_all == pytest.approx(0, abs=1e-6)
    assert found.without <= 1 < cause.restored == found.error
    assert (cause.rescaled <= 1) == rescaled
    assert (cause.beyond > 0.05) == (fault == "saturated")


def test_an_outlier_that_the_scale_is_for(monkeypatch):
    """The model does not read it, so that the scale of all other values mends the outputs."""
    blind = WEIGHTS["first"] * np.r_[0, np.ones(SIZE - 1)][:, None]
    monkeypatch.setitem(WEIGHTS, "first", f32(blind))
    data = SAMPLES.copy()
    data[0, 0, 0, 0] = 4000.0
    quantised = model(GOOD | {"first": 4000 / 127})
    run = verify(model(), quantised, {"x": data}, allow_random=True, rel_max=0.1).run
    assert run.quantisation is not None
    (cause,) = run.quantisation.causes
    assert cause.rescaled is not None
    assert (cause.node, cause.fault) == ("first/dq", "outlier")
    assert cause.usual < 20
    assert cause.reach == pytest.approx(4000)
    assert cause.rescaled <= 1 < cause.restored
    assert "is set by a few outliers, up to 4000; all others are below" in told(run.quantisation, 1)


@pytest.mark.parametrize(("scale", "fault"), [(1.0, "rounding"), (0.004, "saturated")])
def test_no_other_scale_is_known_for_a_float(scale, fault):
    s, zero = Sketch(19), np.zeros((), ml_dtypes.float8_e4m3fn)
    x = s.input("x", [1, 4, SIZE])
    weight = WEIGHTS["first"]
    original = s.proto(s.op("MatMul", x, weight, name="product"))
    s.nodes.clear()
    back = s.op("DequantizeLinear", s.op("QuantizeLinear", x, scale, zero), scale, zero)
    quantised = s.proto(s.op("MatMul", back, weight, name="product"))
    run = verify(original, quantised, {"x": SAMPLES}, allow_random=True, rel_max=1e-3).run
    assert run.quantisation is not None
    (cause,) = run.quantisation.causes
    assert (cause.fault, cause.rescale) == (fault, None)


def test_where_many_have_to_go_none_is_a_cause(monkeypatch):
    monkeypatch.setattr("halfwise.tools.verify.quantised.MOST_CAUSES", 2)
    passed, found = loss(model(GOOD, "tensor"), rel_max=1e-3)
    assert not passed
    assert found.explained
    assert (found.needed, found.causes) == (None, ())
    assert len(found.gravest) == 2
    assert 1 < found.without < found.error
    assert (
        "No small group of the 6 Q/DQ pairs is to blame: without the 2 that do most harm"
        in told(found, 0)
    )


@pytest.mark.parametrize("left", [0, 1])
def test_a_search_ends_with_its_budget_and_tells_what_is_known(monkeypatch, left):
    """The runs that show the errors take all of it, or all but a few runs of the search."""

    def small(settings, samples):  # noqa: ARG001
        return Budget(work=left * 4 * WEIGHTS_OF_WORK["trial"] + 3 * 3 * len(samples))

    monkeypatch.setattr("halfwise.tools.verify.command.allowance", small)
    passed, found = loss(model(GOOD | {"second": 0.004}))
    assert not passed
    assert (found.explained, found.cut, found.needed, found.causes) == (True, True, None, ())
    assert found.error > 1 > found.without_all
    assert "Which are to blame is unknown: the budget of the search was spent." in told(found, 0)


def test_faults_are_most_of_an_error_of_which_the_rest_is_of_many(monkeypatch):
    """Two scales too small, and a tolerance that INT8 is not enough for with any two left out."""
    monkeypatch.setattr("halfwise.tools.verify.quantised.MOST_CAUSES", 2)
    damaged = model(GOOD | {"second": 0.004, "third": 0.004})
    _, found = loss(damaged, rel_max=1e-3)
    assert found.needed is None
    assert {(c.node, c.fault) for c in found.causes} == {
        ("second/dq", "saturated"),
        ("third/dq", "saturated"),
    }
    assert found.without < found.error / 2
    assert all(cause.rescaled < cause.restored for cause in found.causes)


def test_more_faults_than_causes_are_told_are_all_needed(monkeypatch):
    monkeypatch.setattr("halfwise.tools.verify.quantised.MOST_CAUSES", 1)
    _, found = loss(model(GOOD | {"second": 0.0, "third": 0.004}))
    assert (found.needed, len(found.causes)) == (2, 1)
    assert found.without <= 1


def test_a_scale_of_zero_is_the_cause():
    """Weights that stand for nothing are the original's when left out."""
    damaged = model(GOOD)
    (scale,) = [t for n in damaged.graph.node if n.name == "second/w"
                for t in damaged.graph.initializer if t.name == n.input[1]]  # fmt: skip
    scale.CopyFrom(numpy_helper.from_array(np.zeros(SIZE, np.float32), scale.name))
    _, found = loss(damaged)
    assert found.explained
    assert [(c.node, c.fault) for c in found.causes] == [("second/w", "scale")]
    assert "its scale is not a positive number" in told(found, 1)


def test_what_another_scale_makes_worse_does_not_saturate(monkeypatch):
    """The model does not read the values that are clipped."""
    blind = WEIGHTS["first"] * np.r_[0, np.ones(SIZE - 1)][:, None]
    monkeypatch.setitem(WEIGHTS, "first", f32(blind))
    data = SAMPLES.copy()
    data[:, :, :, 0] = 40.0
    run = verify(model(), model(GOOD), {"x": data}, allow_random=True, rel_max=1e-3).run
    assert run.quantisation is not None
    cause = next(c for c in run.quantisation.causes if c.node == "first/dq")
    assert cause.clipped is not None
    assert cause.rescaled is not None
    assert cause.clipped > 0.9
    assert cause.rescaled > cause.restored
    assert cause.fault == "rounding"


def test_another_model_is_not_blamed_on_quantisation(monkeypatch):
    other = model(GOOD)
    monkeypatch.setitem(WEIGHTS, "second", WEIGHTS["second"] * 3)
    passed, found = loss(other)
    assert not passed
    assert not found.explained
    assert found.causes == ()
    assert found.foreign == ("second/w_out",)
    assert "The reference is what the original gives." in told(found, 0)


def test_a_metric_decides_alone():
    found = loss(model(GOOD | {"second": 0.004}), metric="top1", metric_drop=0.1, rel_max=None)[1]
    assert found.explained
    assert found.without <= 1 < found.error
    assert [cause.node for cause in found.causes] == ["second/dq"]


def test_what_cannot_be_run_so_leaves_the_verdict(monkeypatch):
    def fail(*_, **__):
        raise RunFailed("Failed to allocate memory.", "Use fewer samples.")

    monkeypatch.setattr("halfwise.tools.verify.quantised.BypassRunner", fail)
    assert loss(model(GOOD | {"second": 0.004})) == (False, None)


def test_only_a_model_with_pairs_is_asked_about_them(monkeypatch):
    stages: list[str] = []
    monkeypatch.setattr(Silent, "stage", lambda _self, name, _total=None: stages.append(name))
    far = model()
    far.graph.node.add(op_type="Neg", input=[far.graph.output[0].name], output=["negative"])
    far.graph.output[0].name = "negative"
    back = model()
    back.graph.node.add(op_type="Abs", input=[back.graph.output[0].name], output=["negative"])
    back.graph.output[0].name = "negative"
    assert not verify(back, far, {"x": SAMPLES}, allow_random=True).run.verdict.passed
    assert not {"proof", "quantisation"} & set(stages)
    loss(model(GOOD | {"second": 4.0}))
    assert "quantisation" in stages
