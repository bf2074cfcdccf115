import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from halfwise.fixing.ends import end_remarks
from tests import models
from tests.unit.fixing.test_planner import planner
from tests.unit.graph.sketch import Sketch


def exported(low: int):
    sketch = Sketch()
    x = sketch.input("x", [1, 16], low)
    wide = sketch.op("Exp", sketch.op("Cast", x, name="up", to=1), name="island")
    y = sketch.op("Relu", sketch.op("Cast", wide, name="down", to=low), name="relu")
    return models.Ill(sketch.proto(y), {"x": models.signals(1, 16, seed=1, peak=1e5) - 1e5})


def test_islands_and_types_of_inputs_and_outputs_are_those_of_the_file():
    made = planner(exported(TensorProto.FLOAT16))
    assert made.islands == made.forced.kept.keys() == {"island"}
    assert made.low_io == {"x", "relu_out"}
    (remark,) = end_remarks(made)
    assert remark.startswith("Input x reaches 2e+05 and is FP16")
    made = planner(exported(TensorProto.BFLOAT16))
    assert made.low_io == frozenset()
    assert end_remarks(made) == [
        "Low in the model's file, but FP32 in the mixed model, whose low format is FP16: "
        "relu_out, x."
    ]
    assert planner(exported(TensorProto.BFLOAT16), io="fp16").low_io == {"x", "relu_out"}


@pytest.mark.parametrize("io", ["fp32", "fp16"])
def test_a_low_output_that_is_a_constant_beyond_the_range_is_told(io):
    proto = models.small().proto
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1e6, 2], np.float32), "scale"))
    proto.graph.output.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, [2]))
    remarks = end_remarks(planner(models.Ill(proto, models.small().inputs), io=io))
    assert [r.split(" (")[0] for r in remarks] == (
        ["Output scale is a constant that FP16 cannot hold"] if io == "fp16" else []
    )
