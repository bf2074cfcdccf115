import ml_dtypes
import numpy as np
import pytest

from halfwise.emulation.ort import Session
from halfwise.graph.loading import network_from_proto
from tests.unit.graph.sketch import Sketch, f32


@pytest.mark.parametrize("name", ["int4", "uint4", "int8", "float8_e4m3fn", "float8_e5m2"])
def test_quantised_weights_are_handed_over(name):
    s = Sketch(opset=21)
    codes = np.arange(3001).astype(np.int32).reshape(3001, 1) % 7 + [[0, 1]]
    stored = codes.astype(getattr(ml_dtypes, name, name))
    y = s.op("DequantizeLinear", s.constant(stored), 0.5)
    x = s.op("QuantizeLinear", s.input("x", [2]), 1.0, np.array(0, stored.dtype), name="q")
    proto = s.proto(s.op("MatMul", y, s.op("DequantizeLinear", x, 1.0)))
    for optimise in (False, True):
        session = Session(network_from_proto(proto).model, optimise=optimise)
        (found,) = session.run({"x": f32([1, 2])}).values()
        np.testing.assert_array_equal(found, codes @ [1, 2] / 2)
