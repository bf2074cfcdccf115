import numpy as np
import pytest

from halfwise.fixing.preparing import prepare
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from tests.unit.graph.sketch import Sketch, f32


@pytest.mark.parametrize(("opset", "raised"), [(11, 13), (17, 17)])
def test_an_old_opset_is_raised_for_int8_alone(opset, raised):
    s = Sketch(opset=opset)
    y = s.op("MatMul", s.input("x", [2, 4]), f32(np.eye(4)))
    for to, expected in (("int8", raised), ("fp16", opset)):
        request = understand({"x": np.ones((4, 2, 4), np.float32)}, {"to": to})
        case = load_case(s.proto(y), request.data, request.criterion)
        prepared = prepare(case, None, request.settings, Silent())
        assert prepared.case.network.opset == expected
        assert prepared.original is prepared.case.network
        assert len(prepared.notes) == (expected != opset)
