import pytest

from halfwise.tensorrt.log.log import explain
from tests.unit.tensorrt.log.messages.wordings import kind_of

LINES = [
    (
        "comparison-output",
        "[E]         FAILED | Output: 'flow' | Difference exceeds tolerance (rel=1e-05, abs=1e-05)",
    ),
    ("comparison", "[E]     FAILED | Mismatched outputs: ['flow']"),
    ("comparison", "[E] Accuracy Summary | a vs. b | Passed: 1/12 iterations | Pass Rate: 8.3%"),
    (
        "tolerance-needed",
        "[I]  Minimum Required Tolerance: elemwise error | [abs=9.6] OR [rel=1.2e+03] (lower)",
    ),
    (
        "shape-default",
        "[W] Input tensor: x (dtype=DataType.FLOAT, shape=(-1, 3)) | No shapes provided; Will use "
        "shape: [1, 3] for min/opt/max in profile.",
    ),
]


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_wordings(kind, line):
    assert kind_of(line)[0] == kind


def test_a_comparison_that_passed_is_nothing_to_explain():
    line = "[I] Accuracy Summary | a vs. b | Passed: 12/12 iterations | Pass Rate: 100.0%"
    assert explain([line]) == ()
