import numpy as np
import pytest

from halfwise.emulation.ort import Session
from halfwise.emulation.reference_ops import reference
from halfwise.errors import RunFailed
from tests.unit.graph.sketch import Sketch, f32


def test_it_computes_what_onnx_runtime_does_and_tells_of_a_sample_that_fails():
    generator = np.random.default_rng(0)
    x = (sketch := Sketch()).input("x", [1, 2, "n"])
    made = sketch.op("Conv", x, f32(generator.normal(size=(3, 2, 3))))
    model = sketch.network(sketch.op("Relu", made)).model
    run, sample = reference(model), {"x": f32(generator.normal(size=(1, 2, 9)))}
    (expected,), (found,) = Session(model).run(sample).values(), run(sample).values()
    np.testing.assert_allclose(f32(found), f32(expected), rtol=1e-5, atol=1e-6)
    with pytest.raises(RunFailed, match="cannot run the model"):
        run({"x": f32([1])})
