import numpy as np
from onnx.reference import ReferenceEvaluator

from halfwise.emulation.ort import Session
from halfwise.judging.reference import inspected_reference
from tests import models
from tests.unit.casing import prepare
from tests.unit.graph.sketch import Sketch, f32


def test_outputs_are_those_of_the_onnx_reference_in_the_order_of_the_samples():
    ill = models.small()
    prepared = prepare(ill)
    outputs, _ = inspected_reference(prepared.network, prepared.samples)
    evaluator = ReferenceEvaluator(ill.proto)
    assert len(outputs) == models.COUNT
    for i, output in enumerate(outputs):
        (expected,) = evaluator.run(None, ill.sample(i))
        np.testing.assert_allclose(output["relu_out"], np.asarray(expected), rtol=1e-6, atol=1e-6)


def test_no_samples_no_outputs():
    prepared = prepare(models.small())
    nothing = inspected_reference(prepared.network, prepared.samples.select(()))
    assert nothing == ([], frozenset())


def test_tensors_that_are_not_finite_on_any_sample_are_named():
    sketch = Sketch()
    x = sketch.input("x", [1, 4])
    log = sketch.op("Log", sketch.op("Relu", x, name="relu"), name="log")
    y = sketch.op("Exp", log, name="exp")
    data = f32([[[1, 2, 3, 4]], [[1, 2, 3, 4]], [[1, 2, 0, 4]]])
    prepared = prepare(models.Ill(sketch.proto(y), {"x": data}))
    outputs, found = inspected_reference(prepared.network, prepared.samples)
    assert found == {"log_out"}
    session = Session(prepared.network.model)
    plain = [session.run(sample) for sample in prepared.samples]
    for one, other in zip(outputs, plain, strict=True):
        np.testing.assert_array_equal(one["exp_out"], other["exp_out"])
    finite = prepared.samples.select([0, 1])
    assert inspected_reference(prepared.network, finite)[1] == frozenset()
