from math import inf

import pytest

from halfwise.records import EngineDiagnosis, EngineFault, NodeName
from halfwise.reporting.diagnosis import advice, cause, evidence

A, B = NodeName("a"), NodeName("b")
PAIR = EngineFault(operators=("MatMul", "Add"), places=((A, B),), alone=True, snr_db=12.0)
EVERY = EngineFault(operators=("GRU",), places=((A,), (B,)), alone=False, snr_db=-inf)


def diagnosis(*faults, **changed):
    told = {"symptom": "outputs", "sample": "s", "searched": 9, "limit_db": 60.0, **changed}
    return EngineDiagnosis(faults=faults, **told)


def texts(found):
    return [sign.text for sign in evidence(found)]


def test_what_is_wrong_and_where():
    said = cause(diagnosis(PAIR), "engine", "", emulated=False)
    assert said == (
        "The engine is wrong although the FP32 model is right. This is not precision: a kernel or "
        "compiler fault at a, b."
    )
    said = cause(diagnosis(EVERY), "engine", "", emulated=True)
    assert "although the emulation of the same plan is right. " in said
    assert said.endswith("fault at 2 places of GRU.")
    said = cause(diagnosis(PAIR, symptom="build"), "engine", "It died", emulated=False)
    assert said.startswith("The engine cannot be built: It died. This is not precision")


def test_where_nothing_was_shown_nothing_is_blamed():
    said = cause(diagnosis(), "engine", "", emulated=False)
    assert said.endswith("The place is unknown: no node or small part is wrong alone.")
    found = diagnosis(symptom="run", everywhere=True)
    said = cause(found, "engine", "It died", emulated=False)
    assert said.endswith("so it may be the driver, the GPU or the installation.")
    assert (found.verdict, "kernel" in said) == ("unknown", False)
    said = cause(diagnosis(interrupted=True), "engine", "", emulated=False)
    assert said.endswith("The place is unknown: Ctrl-C ended the search.")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            diagnosis(PAIR),
            "on the true inputs, 12.0 dB, where 60 dB would be right; an engine of it al",
        ),
        (diagnosis(EVERY), "is right, so it fails only together with others."),
        (diagnosis(EVERY), "GRU, at 2 places: on the true inputs, not finite or entirely wrong"),
        (diagnosis(PAIR, symptom="run"), "an engine of it alone cannot be run either."),
        (diagnosis(PAIR, explained=True, fed_db=99.0), "the engine of the rest is right, 99.0 dB."),
        (diagnosis(PAIR, explained=False, fed_db=9.0), "the rest is wrong, 9.0 dB: more is wrong."),
        (diagnosis(PAIR, marks="shown", suspects=(A, B)), "wrong at 2 nodes."),
        (diagnosis(PAIR, marks="cured"), "as outputs is right: these outputs prevent the"),
        (diagnosis(marks="hidden"), "as outputs is wrong, but no node in"),
        (diagnosis(marks="refused"), "as outputs cannot be built, or does not run."),
        (diagnosis(marks="late"), "as outputs takes too long to build."),
        (diagnosis(late=1, build_seconds=180.0), "1 build took longer than 180 s and showed noth"),
        (diagnosis(interrupted=True), "Ctrl-C ended the search: more may be wrong"),
        (diagnosis(PAIR, builds=9, most_builds=9), "All 9 builds allowed for this diagnosis"),
    ],
)
def test_what_it_rests_on(found, expected):
    assert any(expected in text for text in texts(found))


def test_what_to_do():
    assert len(advice(diagnosis())) == 1
    assert "Report it to NVIDIA" in advice(diagnosis(PAIR))[-1]
