from math import inf

import pytest

from halfwise.records import EngineDiagnosis, NodeName
from halfwise.reporting.diagnosis import advice, cause, evidence

PAIR = (NodeName("a"), NodeName("b"))


def diagnosis(**changed):
    told = {"symptom": "outputs", "limit_db": 60.0, **changed}
    if told.get("regions"):
        told.setdefault("snr_db", (12.0,))
    return EngineDiagnosis(**told)


FOUND = {"regions": (PAIR,)}


def test_what_is_wrong_and_where():
    said = cause(diagnosis(**FOUND), "engine", "", emulated=False)
    assert said == (
        "The engine is wrong although the FP32 model is right. This is not precision: a kernel or "
        "compiler fault at a, b."
    )
    assert "emulation of the same plan" in cause(diagnosis(), "engine", "", emulated=True)
    said = cause(diagnosis(symptom="build", **FOUND), "engine", "It died", emulated=False)
    assert said.startswith("The engine cannot be built: It died. This is not precision")


@pytest.mark.parametrize(
    ("changed", "why"),
    [({}, "no part"), ({"everywhere": True}, "the driver"), ({"interrupted": True}, "Ctrl-C")],
)
def test_where_nothing_was_shown_nothing_is_blamed(changed, why):
    said = cause(diagnosis(**changed), "engine", "", emulated=False)
    assert "The place is unknown" in said
    assert why in said


@pytest.mark.parametrize(
    ("changed", "severity", "part"),
    [
        (FOUND, "error", "12.0 dB; 60 dB would be right"),
        (FOUND | {"snr_db": (-inf,)}, "error", "not finite or entirely wrong"),
        (FOUND | {"symptom": "run"}, "error", "cannot be run."),
        (FOUND | {"explained": True, "rest_db": 99.0}, "info", "is right, 99.0 dB."),
        (FOUND | {"explained": False, "rest_db": 9.0}, "warning", "9.0 dB: more is wrong."),
        ({"late": 1, "build_seconds": 180.0}, "info", "1 build took longer than 180 s"),
        ({"interrupted": True}, "info", "Ctrl-C ended the search"),
        ({"builds": 9, "most_builds": 9}, "info", "All 9 builds"),
    ],
)
def test_what_it_rests_on(changed, severity, part):
    assert any(
        sign.severity == severity and part in sign.text for sign in evidence(diagnosis(**changed))
    )


def test_what_to_do():
    assert len(advice(diagnosis())) == 1
    assert len(advice(diagnosis(**FOUND))) == 2
