"""What diagnoses and comparisons of pipelines amount to."""

from halfwise.records.diagnosis import difference


def test_the_severity_is_that_of_the_kind():
    assert difference("batch-axis", "", "").severity == "info"
    assert difference("resampling", "", "").severity == "warning"
    assert difference("channels", "", "").severity == "error"
