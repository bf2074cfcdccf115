"""Recognised outputs and their scores are stored as any record."""

from math import inf

from halfwise.records import Recognised, TaskScore


def test_they_are_read_as_they_were_written() -> None:
    one = Recognised(
        kind="mask",
        metric="mask-iou",
        outputs=("m",),
        required=0.99,
        shape=(1, 1, 8, 8),
        evidence=("one-channel", "two-valued"),
    )
    score = TaskScore(
        metric="epe", outputs=("flow",), value=-inf, required=-0.1, passed=False, untested=True
    )
    assert Recognised.model_validate_json(one.model_dump_json()) == one
    assert TaskScore.model_validate_json(score.model_dump_json()) == score
