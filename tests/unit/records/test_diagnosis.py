"""What diagnoses and comparisons of pipelines amount to."""

import math
from math import inf

from halfwise.records import (
    EngineDiagnosis,
    EngineFault,
    InputComparison,
    InputDifference,
    NodeName,
    PreprocessingReport,
)
from halfwise.records.diagnosis import difference

FLIP = InputDifference(kind="flip", severity="error", sentence="B is flipped.", a="", b="")


AXIS = InputDifference(kind="batch-axis", severity="info", sentence="An axis.", a="", b="")


def report(*differences):
    compared = InputComparison(
        name="x",
        name_b="x",
        samples=2,
        shape_a=(1, 3, 9, 9),
        shape_b=(3, 9, 9),
        dtype_a="float32",
        dtype_b="float32",
        differences=differences,
        largest=None,
        residual_max=math.inf,
        residual_rms=0.0,
        level=0.1,
        exact=False,
        order=(0, 1),
    )
    return PreprocessingReport(a="a", b="b", inputs=(compared,))


def test_what_is_only_stored_differently_is_the_same():
    assert report().same
    assert report(AXIS).same
    assert not report(AXIS, FLIP).same


def test_the_severity_is_that_of_the_kind():
    assert difference("batch-axis", "", "", "").severity == "info"
    assert difference("rounding", "", "", "").severity == "warning"
    assert difference("channels", "", "", "").severity == "error"


def diagnosis(**changed):
    return EngineDiagnosis(symptom="outputs", sample="s", searched=4, limit_db=60.0, **changed)


def test_a_kernel_is_blamed_where_nodes_are_wrong_on_true_inputs_alone():
    assert diagnosis().verdict == "unknown"
    fault = EngineFault(operators=("GRU",), places=((NodeName("a"),),), snr_db=-inf)
    assert diagnosis(faults=(fault,)).verdict == "kernel"
