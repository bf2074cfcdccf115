"""Words on where an engine is wrong, and how that was shown."""

from collections.abc import Mapping
from math import isfinite

from halfwise.records import EngineDiagnosis, Sign, SymptomKind
from halfwise.wording import count, fixed, listed, stopped

_SYMPTOMS: Mapping[SymptomKind, str] = {
    "outputs": "is wrong",
    "build": "cannot be built",
    "run": "cannot be run",
}


def cause(found: EngineDiagnosis, label: str, message: str, *, emulated: bool) -> str:
    """Return what is wrong with an engine, in a sentence or two.

    Args:
        found: What was found.
        label: Name of the engine.
        message: Why there is no engine, or none that runs; else empty.
        emulated: Whether it should match an emulation instead of the FP32 model.
    """
    than = "the emulation of the same plan" if emulated else "the FP32 model"
    wrong = f"The {label} {_SYMPTOMS[found.symptom]}"
    wrong += f": {stopped(message)}" if message else f" although {than} is right."
    if found.regions:
        where = "; ".join(map(listed, found.regions))
        return f"{wrong} This is not precision: a kernel or compiler fault at {where}."
    why = "no part of it is wrong alone."
    if found.everywhere:
        why = "every part fails the same way, so it may be the driver, the GPU or the installation."
    elif found.interrupted:
        why = "Ctrl-C ended the search."
    return f"{wrong} The place is unknown: {why}"


def evidence(found: EngineDiagnosis) -> list[Sign]:
    """Return the evidence for a diagnosis, and what was tried."""
    signs = []
    for i, region in enumerate(found.regions):
        text = (
            f"An engine of {listed(region)} alone, on the true inputs, {_SYMPTOMS[found.symptom]}"
        )
        if found.symptom == "outputs":
            text += f"{_db(found.snr_db[i])}; {found.limit_db:.0f} dB would be right"
        signs.append(Sign(severity="error", text=f"{text}.", nodes=region))
    rest = "With the true outputs of these nodes fed in, the engine of the rest"
    if found.explained:
        right = {"outputs": "is right", "build": "is built", "run": "runs"}[found.symptom]
        signs.append(Sign(severity="info", text=f"{rest} {right}{_db(found.rest_db)}."))
    elif found.explained is False:
        text = f"{rest} {_SYMPTOMS[found.symptom]}{_db(found.rest_db)}: more is wrong."
        signs.append(Sign(severity="warning", text=text))
    told = []
    if found.builds >= found.most_builds:
        told.append(f"All {found.most_builds} builds allowed for this diagnosis were used.")
    if found.late and found.build_seconds is not None:
        builds = count(found.late, "build")
        told.append(f"{builds} took longer than {found.build_seconds:.0f} s and showed nothing.")
    if found.interrupted:
        told.append("Ctrl-C ended the search: more may be wrong.")
    return [*signs, *(Sign(severity="info", text=text) for text in told)]


def _db(snr_db: float | None) -> str:
    if snr_db is None:
        return ""
    return f", {fixed(snr_db, 1)} dB" if isfinite(snr_db) else ", not finite or entirely wrong"


def advice(found: EngineDiagnosis) -> tuple[str, ...]:
    """Return what to do, one sentence each."""
    again = "Try another TensorRT version or optimization level."
    report = "Report it to NVIDIA with these nodes and the inputs of the sample."
    return (again, report) if found.regions else (again,)
