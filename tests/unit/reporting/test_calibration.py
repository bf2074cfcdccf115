from halfwise.records import CalibrationCheck
from halfwise.reporting.calibration import cache_parts


def test_nothing_wrong_is_one_line():
    check = CalibrationCheck(
        source="c", tensorrt="8.6.1", calibrator="MinMaxCalibration", samples=2, tensors=()
    )
    (lines,) = cache_parts(check)
    assert lines.title == "Calibration cache"
