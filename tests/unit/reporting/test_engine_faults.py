from math import inf

import pytest

from halfwise.records import Cure, EngineDiagnosis, EngineFault, NodeName, TensorName
from halfwise.reporting.engine_faults import advice, cause, evidence

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
        (diagnosis(PAIR, reproducer="r"), "r/ holds 2 nodes with their real inputs"),
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


@pytest.mark.parametrize(
    ("cure", "expected"),
    [
        (
            Cure(kind="level", level=0, right=False, snr_db=3.0),
            "optimization level 0: the engine is still wrong, 3.0 dB.",
        ),
        (
            Cure(kind="tactics", tactic_sources=("X", "Y"), message="No."),
            "With the tactic sources X and Y: no engine. No.",
        ),
        (
            Cure(kind="marks", marks=(TensorName("t"),), right=True, snr_db=80.0, median_ms=0.5),
            "With t marked as outputs, which ends fusions there: the engine is right, 80.0 dB, 0.5",
        ),
        (
            Cure(kind="anew", right=False),
            "With all kernels timed again: the engine is still wrong.",
        ),
    ],
)
def test_what_was_tried(cure, expected):
    assert any(expected in text for text in texts(diagnosis(PAIR, cures=(cure,))))


def test_what_to_do():
    none, wrong = diagnosis(PAIR), Cure(kind="anew", right=False)
    right = Cure(kind="written-out", nodes=(A,), right=True, median_ms=1.0)
    assert advice(none) == ("Try another TensorRT version or optimization level.",)
    assert advice(diagnosis(PAIR, cures=(wrong,)))[0].startswith("Try another TensorRT version:")
    found = diagnosis(
        PAIR, cures=(wrong, right), delivered="e", delivered_model="m", reproducer="r"
    )
    assert advice(found) == (
        "Use the engine e, built with a written out as steps; m is its model, until the fault is "
        "fixed.",
        "Report it to NVIDIA with the folder `r`.",
    )
