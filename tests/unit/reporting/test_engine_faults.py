from math import inf

import pytest

from halfwise.records import EngineDiagnosis, NodeName
from halfwise.reporting.diagnosis import advice, evidence

FOUND = {"regions": ((NodeName("a"), NodeName("b")),), "snr_db": (12.0,)}


def diagnosis(**changed):
    return EngineDiagnosis(**{"symptom": "outputs", "limit_db": 60.0, "most_builds": 9, **changed})


@pytest.mark.parametrize(
    ("changed", "severities"),
    [
        (FOUND, ["error"]),
        (FOUND | {"snr_db": (-inf,)}, ["error"]),
        (FOUND | {"explained": True, "rest_db": 99.0}, ["error", "info"]),
        (FOUND | {"explained": False, "rest_db": 9.0}, ["error", "warning"]),
        ({"late": 1, "build_seconds": 180.0}, ["info"]),
        ({"late": 1}, []),
        ({"interrupted": True}, ["info"]),
        ({"builds": 9}, ["info"]),
        ({"builds": 8}, []),
    ],
)
def test_what_it_rests_on(changed, severities):
    assert [sign.severity for sign in evidence(diagnosis(**changed))] == severities


def test_what_to_do():
    assert len(advice(diagnosis())) == 1
    assert len(advice(diagnosis(**FOUND))) == 2
