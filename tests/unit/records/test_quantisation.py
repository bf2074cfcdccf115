from halfwise.records import (
    CalibratedRange,
    CalibrationCheck,
    NodeName,
    PairLoss,
    QuantisationLoss,
    TensorName,
)


def test_it_is_stored_and_read_again():
    cause = PairLoss(
        tensor=TensorName("x"),
        node=NodeName("dq"),
        readers=(NodeName("conv"),),
        fault="saturated",
        alone=float("inf"),
        restored=2.0,
    )
    loss = QuantisationLoss(
        pairs=3, samples=2, error=4.0, without_all=0.0, explained=True, needed=1, causes=(cause,)
    )
    assert QuantisationLoss.model_validate_json(loss.model_dump_json()) == loss


def test_a_cache_is_stored_and_read_again():
    one = CalibratedRange(
        tensor=TensorName("x"), scale=float("inf"), limit=float("inf"), reach=1, usual=1, beyond=1,
        fault="unset",
    )  # fmt: skip
    check = CalibrationCheck(
        source="c", tensorrt="8.6.1", calibrator="MinMaxCalibration", samples=2, tensors=(one,)
    )
    assert CalibrationCheck.model_validate_json(check.model_dump_json()) == check
