import numpy as np
import onnx_ir as ir
import pytest

from halfwise.graph.model import network_from_proto
from halfwise.linting.extents import Extent, extents
from tests.unit.graph.sketch import Sketch, f32


@pytest.fixture
def found():
    def found(array):
        s = Sketch()
        kind = ir.DataType.from_numpy(array.dtype)
        x = s.input("x", list(array.shape), int(kind))
        values = extents(network_from_proto(s.proto(s.op("Add", x, s.constant(array, "c")))))
        return {value.name: extent for value, extent in values.items()}

    return found


def test_numbers_are_counted(found):
    array = f32([0, 1e-9, 1e-6, 1, -1e5, np.inf, -np.inf, np.nan])
    assert found(array) == {
        "c": Extent(
            elements=8,
            least=-np.inf,
            largest=float(np.float32(1e5)),
            beyond=1,
            nonzero=4,
            subnormal=2,
            zeroed=1,
        )
    }


def test_empty_and_fp16_constants(found):
    assert found(f32([])) == {"c": Extent()}
    assert found(np.ones(2, np.float16)) == {}
