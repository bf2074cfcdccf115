from halfwise.records import CalibratedRange, CalibrationCheck, TensorName


def test_it_is_stored_and_read_again():
    one = CalibratedRange(
        tensor=TensorName("x"), scale=float("inf"), limit=float("inf"), reach=1, usual=1, beyond=1,
        fault="unset",
    )  # fmt: skip
    check = CalibrationCheck(
        source="c", tensorrt="8.6.1", calibrator="MinMaxCalibration", samples=2, tensors=(one,)
    )
    assert CalibrationCheck.model_validate_json(check.model_dump_json()) == check
