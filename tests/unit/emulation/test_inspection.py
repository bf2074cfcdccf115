import numpy as np

from halfwise.emulation.inspection import Nonfinite, inspect_samples
from halfwise.emulation.probe import observable
from halfwise.errors import RunFailed
from halfwise.records import TensorName
from tests import models
from tests.unit.casing import prepare
from tests.unit.graph.sketch import Sketch, f32


def logarithm():
    s = Sketch()
    log = s.op("Log", s.op("Relu", s.input("x", [1, 4]), name="relu"), name="log")
    data = f32([[[1, 2, 3, 4]], [[0, 2, 0, 4]], [[1, 0, 3, 4]]])
    return prepare(models.Ill(s.proto(s.op("Exp", log, name="exp")), {"x": data}))


def test_elements_that_are_not_finite_are_counted_over_all_samples():
    prepared = logarithm()
    model = prepared.network.model
    outputs, nonfinite = inspect_samples(model, observable(model), prepared.samples)
    assert nonfinite == {TensorName("log_out"): Nonfinite(3, (1, 2))}
    for found, expected in zip(outputs, prepared.references, strict=True):
        assert not isinstance(found, RunFailed)
        np.testing.assert_array_equal(found["exp_out"], expected["exp_out"])


def test_only_the_chosen_tensors_count():
    prepared = logarithm()
    chosen = [t for t in observable(prepared.network.model) if t != "log_out"]
    assert inspect_samples(prepared.network.model, chosen, prepared.samples)[1] == {}


def test_without_samples_nothing_runs():
    prepared = logarithm()
    none = prepared.samples.select(())
    assert inspect_samples(prepared.network.model, (), none) == ([], {})
