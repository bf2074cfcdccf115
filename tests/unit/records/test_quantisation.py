from halfwise.records import (
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
