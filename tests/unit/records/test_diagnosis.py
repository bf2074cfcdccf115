"""What diagnoses and comparisons of pipelines amount to."""

import math

from halfwise.records import (
    InputComparison,
    InputDifference,
    PreprocessingReport,
)
from halfwise.records.diagnosis import difference

FIT = InputDifference(kind="fit", severity="error", sentence="B is cropped.", a="", b="")


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
        residual_max=math.inf,
        level=0.1,
        exact=False,
    )
    return PreprocessingReport(a="a", b="b", inputs=(compared,))


def test_what_is_only_stored_differently_is_the_same():
    assert report().same
    assert report(AXIS).same
    assert not report(AXIS, FIT).same


def test_the_severity_is_that_of_the_kind():
    assert difference("batch-axis", "", "").severity == "info"
    assert difference("resampling", "", "").severity == "warning"
    assert difference("channels", "", "").severity == "error"
