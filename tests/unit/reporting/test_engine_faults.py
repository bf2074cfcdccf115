from math import inf

import pytest

from halfwise.records import EngineDiagnosis, NodeName
from halfwise.reporting.diagnosis import advice, evidence

FOUND = {"region": (NodeName("a"), NodeName("b")), "snr_db": 12.0}


def diagnosis(**changed):
    return EngineDiagnosis(**{"symptom": "outputs", "limit_db": 60.0, **changed})


@pytest.mark.parametrize(
    ("changed", "severities"),
    [
        (FOUND, ["error"]),
        (FOUND | {"snr_db": -inf}, ["error"]),
        (FOUND | {"explained": True}, ["error", "info"]),
        (FOUND | {"explained": False}, ["error", "warning"]),
    ],
)
def test_what_it_rests_on(changed, severities):
    assert [sign.severity for sign in evidence(diagnosis(**changed))] == severities


def test_what_to_do():
    assert len(advice(diagnosis())) == 1
    assert len(advice(diagnosis(**FOUND))) == 2
