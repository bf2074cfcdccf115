"""Words on where an engine is wrong, and how that was shown."""

from collections.abc import Mapping
from math import isfinite

from halfwise.records import EngineDiagnosis, EngineFault, Sign, SymptomKind
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
    if found.everywhere:
        return (
            f"{wrong} The place is unknown: every part that was tried alone fails the same "
            "way, so it may be the driver, the GPU or the installation."
        )
    if not found.faults and found.interrupted:
        return f"{wrong} The place is unknown: Ctrl-C ended the search."
    if not found.faults:
        return f"{wrong} The place is unknown: no node or small part is wrong alone."
    where = "; ".join(map(_where, found.faults))
    return f"{wrong} This is not precision: a kernel or compiler fault at {where}."


def _where(fault: EngineFault) -> str:
    if len(fault.places) > 1:
        return f"{count(len(fault.places), 'place')} of {' and '.join(fault.operators)}"
    return listed(fault.named[0])


def evidence(found: EngineDiagnosis) -> list[Sign]:
    """Return the evidence for a diagnosis, and what was tried."""
    return [
        *_marked(found),
        *(_shown(found, fault) for fault in found.faults),
        *_explained(found),
        *_untried(found),
        *_cut_short(found),
    ]


def _shown(found: EngineDiagnosis, fault: EngineFault) -> Sign:
    nodes = tuple(name for place in fault.places for name in place)
    places = f", at {count(len(fault.places), 'place')}" if len(fault.places) > 1 else ""
    what = f"{' and '.join(fault.operators)}{places}"
    if found.symptom != "outputs":
        text = f"{what}: an engine of it alone {_SYMPTOMS[found.symptom]} either."
        return Sign(severity="error", text=text, nodes=nodes)
    right = f"{found.limit_db:.0f} dB would be right"
    text = f"{what}: on the true inputs{_db(fault.snr_db)}, where {right}"
    alone = {
        True: "an engine of it alone is wrong too",
        False: "an engine of it alone is right, so it fails only together with others",
        None: "an engine of it alone was not tried",
    }[fault.alone]
    told = f"{text}; {alone}."
    if fault.unmarked:
        readers = [name for name in nodes if not any(name in place for place in fault.unmarked)]
        told += f" What {listed(readers)} reads is just as wrong when another node reads it, and "
        told += "right as an output."
    return Sign(severity="error", text=told, nodes=nodes)


def _marked(found: EngineDiagnosis) -> list[Sign]:
    if found.marks is None:
        return []
    with_marks = "The engine with all float tensors as outputs"
    nodes = count(len(found.suspects), "node")
    said = {
        "shown": f"{with_marks} computes something wrong at {nodes}.",
        "cured": f"{with_marks} is right: these outputs prevent the fault.",
        "hidden": f"{with_marks} is wrong, but no node in it is.",
        "refused": f"{with_marks} cannot be built, or does not run.",
        "late": f"{with_marks} takes too long to build.",
    }[found.marks]
    shown = found.suspects if found.marks == "shown" else ()
    return [Sign(severity="info", text=said, nodes=shown)]


def _cut_short(found: EngineDiagnosis) -> list[Sign]:
    told = []
    if found.late and found.build_seconds is not None:
        builds = count(found.late, "build")
        told.append(f"{builds} took longer than {found.build_seconds:.0f} s and showed nothing.")
    if found.interrupted:
        told.append("Ctrl-C ended the search: more may be wrong.")
    return [Sign(severity="info", text=text) for text in told]


def _db(snr_db: float | None) -> str:
    if snr_db is None:
        return ""
    return f", {fixed(snr_db, 1)} dB" if isfinite(snr_db) else ", not finite or entirely wrong"


def _explained(found: EngineDiagnosis) -> list[Sign]:
    if not found.faults or found.explained is None:
        return []
    alike = count(len(found.alike), "similar place")
    alike = f" and of {alike}, which may be right," if found.alike else ""
    fed = f"With the true outputs of these nodes{alike} fed in, the engine of the rest"
    if found.explained:
        said = {"outputs": "is right", "build": "is built", "run": "runs"}[found.symptom]
        return [Sign(severity="info", text=f"{fed} {said}{_db(found.fed_db)}.")]
    text = f"{fed} {_SYMPTOMS[found.symptom]}{_db(found.fed_db)}: more is wrong."
    return [Sign(severity="warning", text=text)]


def _untried(found: EngineDiagnosis) -> list[Sign]:
    if found.builds < found.most_builds:
        return []
    text = f"All {found.most_builds} builds allowed for this diagnosis were used."
    return [Sign(severity="info", text=text)]


def advice(found: EngineDiagnosis) -> tuple[str, ...]:
    """Return what to do, one sentence each."""
    again = "Try another TensorRT version or optimization level."
    report = "Report it to NVIDIA with these nodes and the inputs of the sample."
    return (again, report) if found.faults else (again,)
