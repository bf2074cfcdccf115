"""What is told of a plan: the ends of its model; what rounding alone amounts to."""

import math

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from halfwise.fixing.remarks import end_remarks, tolerance_note
from halfwise.formats import BF16, FP16
from halfwise.records import Criterion, SliceGroup
from halfwise.reporting.remarks import remark
from tests import models
from tests.unit.fixing.test_planner import planner
from tests.unit.graph.sketch import Sketch
from tests.unit.reporting.runs import output_error


def note(criterion=None, *outputs, factor=0.8, kept=0, fmt=FP16):
    errors = {f"y{i}": output for i, output in enumerate(outputs)}
    found = tolerance_note(errors, criterion or Criterion(), factor, fmt, kept)
    return None if found is None else remark(found)


OFF = output_error(rel_max=0.025, max_abs=0.5, snr_db=41.3)


def test_the_default_tolerance_is_widened_to_what_the_search_needs():
    """0.025 / 0.8 = 0.03125, rounded up."""
    told = note(None, output_error(rel_max=1e-3, snr_db=70.0), OFF, kept=3)
    assert "--rel-max 0.032 " in told
    assert "all but 3 of the nodes low, FP16 rounding adds up to 0.025 " in told
    assert "SNR 41.3 dB" in told


def test_every_threshold_that_is_missed_gets_its_value():
    told = note(Criterion(rel_max=0.5, max_abs=0.1, snr_db=45), OFF, factor=1.0, fmt=BF16)
    assert "every node low, BF16 rounding" in told
    assert "--rel-max" not in told
    assert "use --require max-abs=0.5 --require snr-db=41 if" in told


@pytest.mark.parametrize("value", [0.011, 0.0123, 0.0799, 0.05])
def test_the_value_accepts_the_error(value):
    told = note(None, output_error(rel_max=value, snr_db=40.0))
    given = float(told.split("--rel-max ")[1].split()[0])
    assert value / 0.8 <= given <= value / 0.8 * 1.11


def test_slices_of_another_scale_need_more_than_the_whole():
    scores = SliceGroup(
        axis=1,
        ranges=((4, 83),),
        slices=80,
        scale=1.0,
        max_abs=0.03,
        allowed=0.01,
        worst_sample="",
        passed=False,
    )
    told = note(None, output_error(rel_max=5e-5, groups=(scores,)), factor=1.0)
    assert "adds up to 0.03 of the largest reference value of some slices (SNR" in told
    assert "--rel-max 0.03 " in told


def test_what_passes_needs_nothing():
    assert note(None, output_error(rel_max=0.008)) is None
    assert note(None) is None


@pytest.mark.parametrize(
    "criterion",
    [
        Criterion(metric="top1"),
        Criterion(cosine=0.999),
        Criterion(rel_max=1e-3),
        Criterion(rel_max=0.0),
        Criterion(snr_db=90),
    ],
)
def test_no_option_accepts_what_is_far_off_or_judged_otherwise(criterion):
    assert note(criterion, OFF) is None


def test_non_finite_and_integer_outputs_are_no_rounding():
    assert note(None, OFF, output_error(rel_max=math.inf, max_abs=math.inf)) is None
    assert note(None, OFF, output_error(agreement=0.5, passed=False)) is None
    assert note(None, OFF, output_error(agreement=1.0, passed=True)) is not None


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
    (found,) = end_remarks(made)
    assert remark(found).startswith("Input x reaches 200000 and is FP16")
    made = planner(exported(TensorProto.BFLOAT16))
    assert made.low_io == frozenset()
    assert list(map(remark, end_remarks(made))) == [
        "FP32 in the mixed model although the file stores them low, in another format than FP16: "
        "relu_out, x."
    ]
    assert planner(exported(TensorProto.BFLOAT16), io="fp16").low_io == {"x", "relu_out"}


@pytest.mark.parametrize("io", ["fp32", "fp16"])
def test_a_low_output_that_is_a_constant_beyond_the_range_is_told(io):
    proto = models.small().proto
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1e6, 2], np.float32), "scale"))
    proto.graph.output.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, [2]))
    remarks = end_remarks(planner(models.Ill(proto, models.small().inputs), io=io))
    assert [remark(r).split(" (")[0] for r in remarks] == (
        ["Output scale is a constant that FP16 cannot hold"] if io == "fp16" else []
    )
