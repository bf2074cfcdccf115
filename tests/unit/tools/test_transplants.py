import numpy as np
import pytest

from halfwise.case import Runtime
from halfwise.tools.transplants import is_off
from tests.unit.graph.sketch import Sketch, f32


@pytest.mark.parametrize(("error", "off"), [(0.0, False), (1e-3, False), (0.5, True)])
def test_rounding_explains_small_errors_and_changes_no_size_that_a_part_is_given(error, off):
    sketch = Sketch()
    x, limit = sketch.input("x", [40]), sketch.input("limit", [])
    y = sketch.op("Add", x, sketch.op("Range", f32(0), limit, f32(1)))
    part = sketch.network(y)
    sample = {"x": np.linspace(0, 99, 40, dtype=np.float32), "limit": f32(40)}
    right = {y: sample["x"] + np.arange(40, dtype=np.float32)}
    outputs = {y: right[y] * f32(1 + error)}
    assert is_off(part, sample, outputs, right, "fp16", Runtime())[0] == off
