"""Lint: every rule finds its fault and nothing else, and no model makes it crash.

The faults are those of `tests/faults`, each as a model with it and without. The other models are
all backend tests of the onnx package, the failure classes of `tests/models`, and the models of the
other benches if available; each is linted without a TensorRT version, and for six. Some of the
small ones are damaged at random and linted too. The findings for TensorRT 11 are compared with what
the builder of TensorRT for RTX says (tools/get-rtx): on the same tests and classes, and on forms of
operators that nothing was learnt from (`forms.py`). Single operators as `fix` writes them in FP16
and BF16 are built.

    python bench/run.py lint                      all
    python -m bench.lint [tests] [forms] [low]    only these parts beside the builder; the other
                                                  figures stay as they were measured
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import onnx

from bench.building import Place, Verdict, in_processes, verdict
from bench.figures import Figure, at_most, equal, machine, reported
from bench.forms import FORMS
from bench.one_node import Model, later, lowered, models
from bench.onnx_cases import cases, first_inputs, inputs_of
from bench.runs import ROOT, Workbench
from halfwise.api import lint
from halfwise.errors import CaseError
from halfwise.formats import BF16, FP16
from halfwise.linting import RULES
from halfwise.records import Finding
from tests.faults import FAULTS, linted
from tests.faults.damage import damaged
from tests.judges import RtxBuilder
from tests.models import CLASSES

VERSIONS = ("8.5", "8.6", "9.2", "10.1", "10.15", "11.4")
LISTED = 12
DAMAGED, SEED = 3000, 20
SILENT = 0.05
"""Most refusals without a finding."""


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures; models outside the repository are linted if available."""
    figures = [*_linted(bench), *_damaged(bench.folder)]
    if missing := RtxBuilder().missing():
        return figures, missing
    for part in BESIDE.values():
        figures += part()
    return figures, bench.missing()


def _linted(bench: Workbench) -> list[Figure]:
    """Return the figures on rules, faults and sound models."""
    missed, alarms = _faults(bench.folder)
    begin = time.monotonic()
    kinds, crashes, errors = Counter[str](), [], []
    rules = Counter[str]()
    for kind, name, path in _models(bench):
        kinds[kind] += 1
        try:
            report = lint(path)
            for version in VERSIONS:
                lint(path, trt_version=version)
        except Exception as error:  # noqa: BLE001 - any traceback is a finding
            crashes.append(f"{name}: {type(error).__name__}: {error}")
            continue
        rules.update({finding.rule for finding in report.findings})
        errors += [f"{name}: {f.message}" for f in report.findings if f.severity == "error"]
    seconds = time.monotonic() - begin
    named = ", ".join(f"{number} {rule}" for rule, number in rules.most_common())
    return [
        equal("rules without a fault", len({r.id for r in RULES} - {f.rule for f in FAULTS}), 0),
        equal("faults missed", len(missed), 0, _some(missed) or f"{len(FAULTS)} faults"),
        equal("models without the fault that raise an alarm", len(alarms), 0, _some(alarms)),
        equal("crashes", len(crashes), 0, _some(crashes)),
        equal("sound models with an error", len(errors), 0, _some(errors)),
        *(reported(f"models linted: {kind}", number) for kind, number in kinds.items()),
        reported("models with a finding, by rule", named),
        reported("time per model and version (ms)", 1e3 * seconds / _runs(kinds)),
    ]


def _runs(kinds: Counter[str]) -> int:
    return kinds.total() * (1 + len(VERSIONS))


def _faults(folder: Path) -> tuple[list[str], list[str]]:
    """Return missed faults, and sound models in which the rule finds something."""
    missed, alarms = [], []
    for fault in FAULTS:
        found = {f.rule for f in linted(fault.make(True), folder, fault.tensorrt).findings}
        if fault.rule not in found:
            missed.append(f"{fault.rule}: {fault.name}")
        without = {f.rule for f in linted(fault.make(False), folder, fault.tensorrt).findings}
        if without - fault.besides:
            alarms.append(f"{fault.name}: {', '.join(sorted(without))}")
    return missed, alarms


def _damaged(folder: Path) -> list[Figure]:
    """Return the figure on the errors that randomly damaged models raise."""
    chance, path, crashes = Random(SEED), folder / "damaged.onnx", []  # noqa: S311 - it damages models
    sound = [case.model for case in cases() if case.model is not None]
    for _ in range(DAMAGED):
        proto = damaged(chance.choice(sound), chance)
        path.write_bytes(proto.SerializeToString())
        try:
            lint(path, trt_version=chance.choice([None, *VERSIONS]))
        except CaseError:  # it holds nothing that could be told from a file of another kind
            continue
        except Exception as error:  # noqa: BLE001 - any traceback is a finding
            crashes.append(f"{proto.graph.name}: {type(error).__name__}: {error}")
    return [equal(f"crashes, {DAMAGED} damaged models", len(crashes), 0, _some(crashes))]


class Case(NamedTuple):
    """A model with values of its inputs."""

    name: str
    proto: onnx.ModelProto
    given: Mapping[str, Any]


def _said(place: Place, case: Case) -> tuple[Verdict, tuple[Finding, ...]]:
    """Return the builder's answer, and what is found for TensorRT 11."""
    said = verdict(place, case.proto, case.given)
    path = place.folder / "model.onnx"
    path.write_bytes(case.proto.SerializeToString())
    return said, tuple(lint(path, trt_version="11").findings)


def _compared(what: str, cases: Sequence[Case]) -> list[Figure]:
    """Return how the findings for TensorRT 11 compare with the builder's answers."""
    answers, wrong, silent = Counter[bool | None](), [], []
    for case, (said, findings) in zip(cases, in_processes(_said, cases), strict=True):
        answers[said.built] += 1
        if said.built and (errors := [f.rule for f in findings if f.severity == "error"]):
            wrong.append(f"{case.name}: {errors}")
        if said.built is False and not any(names_it(f, said) for f in findings):
            silent.append(f"{case.name}: {said.text[:80]}")
    share = len(silent) / max(answers[False], 1)
    told = f"{answers[False]} refused, {answers[True]} built, {answers[None]} unknown"
    return [
        equal(
            f"TensorRT 11, {what}: with an error, but built", len(wrong), 0, _some(wrong) or told
        ),
        at_most(
            f"TensorRT 11, {what}: refused without a finding", share, SILENT, _some(silent) or told
        ),
    ]


def _tests() -> list[Figure]:
    """Return how lint compares with the builder on ONNX's tests and the failure classes."""
    return _compared("ONNX's tests and failure classes", list(_buildable()))


def _forms() -> list[Figure]:
    """Return how lint compares with the builder on forms that no answer was learnt from."""
    made = ((f"{i} {form.op}", form.model()) for i, form in enumerate(FORMS))
    cases = [Case(name, m.proto, m.given) for name, m in made if m is not None]
    assert len(cases) == len(FORMS)
    return _compared("forms written by hand", cases)


def _lows(place: Place, model: Model) -> list[str]:
    """Return what becomes of a model's node in FP16 and BF16: "" where it is built."""
    said = []
    for at in (model, *later(model)):
        if not verdict(place, at.proto, at.given).built:
            continue
        for fmt in (FP16, BF16):
            if (low := lowered(at, fmt)) is not None:
                answer = verdict(place, low.proto, low.given)
                what = f"{model.node.op_type} {fmt.name} {at.opset}: {answer.text[:80]}"
                said.append(what if answer.built is False else "")
    return said


def _low_files() -> list[Figure]:
    """Return whether single operators as `fix` writes them in FP16 and BF16 are built."""
    said = [one for several in in_processes(_lows, models()) for one in several]
    unbuilt = [one for one in said if one]
    note = _some(unbuilt) or f"of {len(said)} files"
    return [equal("single operators in FP16 and BF16: not built", len(unbuilt), 0, note)]


BESIDE: Mapping[str, Callable[[], list[Figure]]] = {
    "tests": _tests,
    "forms": _forms,
    "low": _low_files,
}
"""What is compared with the builder, by name."""


def names_it(finding: Finding, said: Verdict) -> bool:
    """Return whether a finding is no mere info and names what the builder's error names."""
    named = {finding.op, finding.node, finding.tensor} - {"", None}
    about = not said.names or bool(named & said.names)
    whole = finding.rule == "opset-unparsed"
    return finding.severity != "info" and (whole or bool(named)) and about


def _buildable() -> Iterator[Case]:
    """Yield every backend test and failure class, with values of its inputs."""
    for case in cases():
        proto = case.model or onnx.load(Path(str(case.model_dir)) / "model.onnx")
        names = [i.name for i in inputs_of(proto)]
        yield Case(case.name, proto, dict(zip(names, first_inputs(case), strict=False)))
    for make in CLASSES:
        ill = make()
        yield Case(ill.name, ill.proto, {name: values[0] for name, values in ill.inputs.items()})


def _models(bench: Workbench) -> Iterator[tuple[str, str, Path]]:
    """Yield kind, name and file of every model; the file is overwritten by the next one."""
    path = bench.folder / "model.onnx"
    for case in cases():
        if case.model is None:
            yield "backend tests", case.name, Path(str(case.model_dir)) / "model.onnx"
        else:
            onnx.save(case.model, path)
            yield "backend tests", case.name, path
    for make in CLASSES:
        ill = make()
        path.write_bytes(ill.proto.SerializeToString())
        yield "failure classes", ill.name, path
    folders = [ROOT / "examples", *([bench.models] if bench.models else [])]
    for file in sorted(f for folder in folders for f in folder.rglob("*.onnx")):
        yield "whole models", file.name, file


def _some(items: list[str]) -> str:
    rest = f"; and {len(items) - LISTED} more" if len(items) > LISTED else ""
    return "; ".join(items[:LISTED]) + rest


def main(parts: Sequence[str]) -> None:
    """Measure parts beside the builder, and put their figures into the results."""
    file = ROOT / "bench" / "results" / "lint.json"
    told = json.loads(file.read_text(encoding="utf-8"))
    new = [asdict(figure) for part in parts for figure in BESIDE[part]()]
    for figure in new:
        print(figure["measured"], figure["what"], figure["note"], sep="  ")
    names = {figure["what"] for figure in new}
    told["figures"] = [f for f in told["figures"] if f["what"] not in names] + new
    when = datetime.now(UTC).isoformat(timespec="seconds")
    details = told.setdefault("details", {})
    details["renewed"] = [
        *(r for r in details.get("renewed", ()) if not {*r["parts"]} <= {*parts}),
        {"parts": parts, "date": when, "machine": machine()},
    ]
    file.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
