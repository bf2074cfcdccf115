import pytest

from halfwise.records import NodeName, PairLoss, QuantisationLoss, TensorName
from halfwise.reporting.causes import quantisation_lines

CAUSE = PairLoss(
    tensor=TensorName("x"),
    node=NodeName("dq"),
    readers=(NodeName("conv"),),
    fault="saturated",
    restored=16.75,
    beyond=0.352,
    clipped=0.999,
    limit=0.202,
    reach=2.62,
    usual=2.5,
    rescale=13.5,
    rescaled=0.461,
)
LOSS = QuantisationLoss(
    pairs=8, error=16.75, without_all=0.0, explained=True, needed=1, without=0.439,
    causes=(CAUSE,),
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "saturated: 35 % of its values are beyond ±0.202, up to 2.62"),
        ({"fault": "outlier", "rescale": 0.1}, "all others are below 2.5"),
        ({"fault": "wide", "rescale": 0.1}, "is too wide: no value is beyond 2.62"),
        ({"fault": "channels", "rescale": None}, "differ by over 100 times"),
        ({"fault": "rounding", "rescale": None}, "it needs more than 8 bits"),
        ({"fault": "rounding", "rescale": None, "bits": 4}, "it needs more than 4 bits"),
        ({"fault": "scale", "rescale": None}, "its scale is not a positive number"),
        ({"ends": (-0.204, 0.202)}, "beyond ±0.202"),
        ({"ends": (-0.2045, 0.202)}, "beyond −0.204 … 0.202, up to"),
        ({"ends": (-0.1, 0.202)}, "beyond −0.1 … 0.202, up to"),
        ({"ends": (0.0, 0.202)}, "beyond 0 … 0.202, up to"),
    ],
)
def test_each_fault_is_told_with_its_cost(changed, words):
    cause = CAUSE.model_copy(update=changed)
    lines = quantisation_lines(LOSS.model_copy(update={"causes": (cause,)}))
    assert lines is not None
    head, line = lines.lines
    assert "without 1 of 8 Q/DQ pairs: the error is then 0.439 times" in head
    assert line.startswith("x, read by conv: ")
    assert words in line
    assert "With it, the error is 16.8 times what is allowed" in line
    assert ("with a scale" in line) == (cause.rescale is not None)
    finer = "13.5 × as large" if cause.fault == "saturated" else "10 × as fine"
    assert finer in line or cause.rescale is None


def test_nothing_is_told_where_nobody_looked_or_no_pair_has_to_go():
    assert quantisation_lines(None) is None
    assert quantisation_lines(LOSS.model_copy(update={"needed": 0, "causes": ()})) is None
