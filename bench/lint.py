"""Lint: every rule finds its fault and nothing else, and no model makes it crash.

The faults are those of `tests/faults`, each as a model with it and without. The other models are
all backend tests of the onnx package, the failure classes of `tests/models`, and the models of the
other benches if available; each is linted without a TensorRT version, and for six. Some of the
small ones are damaged at random and linted too. The findings for TensorRT 11 are compared with what
the builder of TensorRT for RTX says (tools/get-rtx), and single operators as `fix` writes them in
FP16 and BF16 are built.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import onnx

from bench.building import Verdict, verdict
from bench.figures import Figure, at_most, equal, reported
from bench.one_node import later, lowered, models
from bench.onnx_cases import cases, first_inputs, inputs_of
from bench.runs import ROOT, Workbench
from halfwise.api import check_constraints, lint
from halfwise.errors import CaseError
from halfwise.formats import BF16, FP16
from halfwise.linting import RULES
from halfwise.records import Finding
from tests.faults import FAULTS, linted
from tests.faults.damage import damaged
from tests.judges import RtxBuilder
from tests.models import CLASSES

VERSIONS = ("8.5", "8.6", "9.2", "10.1", "10.15", "11.4")
CONSTRAINTS = "trtexec --onnx=m.onnx --fp16 --layerPrecisions=*:fp32 --layerOutputTypes=*:fp16"
LISTED = 12
DAMAGED, SEED = 3000, 20
SILENT = 0.05
"""Most refusals without a finding."""


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures; models outside the repository are linted if available."""
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
                check_constraints(CONSTRAINTS, trt_version=version, model=path)
        except Exception as error:  # noqa: BLE001 - any traceback is a finding
            crashes.append(f"{name}: {type(error).__name__}: {error}")
            continue
        rules.update({finding.rule for finding in report.findings})
        errors += [f"{name}: {f.message}" for f in report.findings if f.severity == "error"]
    seconds = time.monotonic() - begin
    broken = _damaged(bench.folder)
    builder = RtxBuilder()
    with builder:
        built = [] if builder.missing() else _beside_the_builder(bench.folder, builder)
    named = ", ".join(f"{number} {rule}" for rule, number in rules.most_common())
    return [
        equal("rules without a fault", len({r.id for r in RULES} - {f.rule for f in FAULTS}), 0),
        equal("faults missed", len(missed), 0, _some(missed) or f"{len(FAULTS)} faults"),
        equal("models without the fault that raise an alarm", len(alarms), 0, _some(alarms)),
        equal("crashes", len(crashes), 0, _some(crashes)),
        equal(f"crashes, {DAMAGED} damaged models", len(broken), 0, _some(broken)),
        equal("sound models with an error", len(errors), 0, _some(errors)),
        *built,
        *(reported(f"models linted: {kind}", number) for kind, number in kinds.items()),
        reported("models with a finding, by rule", named),
        reported("time per model, version and command (ms)", 1e3 * seconds / _runs(kinds)),
    ], None


def _runs(kinds: Counter[str]) -> int:
    return kinds.total() * (1 + 2 * len(VERSIONS))


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


def _damaged(folder: Path) -> list[str]:
    """Return the errors that randomly damaged models raise."""
    chance, path, crashes = Random(SEED), folder / "damaged.onnx", []  # noqa: S311 - it damages models
    sound = [case.model for case in cases() if case.model is not None]
    for _ in range(DAMAGED):
        proto = damaged(chance.choice(sound), chance)
        path.write_bytes(proto.SerializeToString())
        try:
            lint(path, trt_version=chance.choice([None, *VERSIONS]))
            check_constraints(CONSTRAINTS, trt_version="10.15", model=path)
        except CaseError:  # it holds nothing that could be told from a file of another kind
            continue
        except Exception as error:  # noqa: BLE001 - any traceback is a finding
            crashes.append(f"{proto.graph.name}: {type(error).__name__}: {error}")
    return crashes


def _beside_the_builder(folder: Path, builder: RtxBuilder) -> list[Figure]:
    """Return how the findings for TensorRT 11 compare with the builder's answers."""
    answers, wrong, silent = Counter[bool | None](), [], []
    for name, proto, given in _buildable():
        said = verdict(builder, proto, given, folder)
        answers[said.built] += 1
        path = folder / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        findings = lint(path, trt_version="11").findings
        if said.built and (errors := [f.rule for f in findings if f.severity == "error"]):
            wrong.append(f"{name}: {errors}")
        if said.built is False and not any(names_it(f, said) for f in findings):
            silent.append(f"{name}: {said.text[:80]}")
    lows, unbuilt = 0, []
    for model in models():
        if not verdict(builder, model.proto, model.given, folder).built:
            continue
        for at, fmt in product((model, *later(model)), (FP16, BF16)):
            low = lowered(at, fmt)
            if low is not None and verdict(builder, at.proto, at.given, folder).built:
                lows += 1
                said = verdict(builder, low.proto, low.given, folder)
                if said.built is False:
                    what = f"{model.node.op_type} {fmt.name} {at.opset}"
                    unbuilt.append(f"{what}: {said.text[:80]}")
    share = len(silent) / max(answers[False], 1)
    told = f"{answers[False]} refused, {answers[True]} built, {answers[None]} unknown"
    return [
        equal("TensorRT 11: models with an error that build", len(wrong), 0, _some(wrong) or told),
        at_most("TensorRT 11: refusals without a finding", share, SILENT, _some(silent) or told),
        equal(f"single operators, {lows} low files: not built", len(unbuilt), 0, _some(unbuilt)),
    ]


def names_it(finding: Finding, said: Verdict) -> bool:
    """Return whether a finding is no mere info and names what the builder's error names."""
    named = {finding.op, finding.node, finding.tensor} - {"", None}
    about = not said.names or bool(named & said.names)
    whole = finding.rule == "opset-unparsed"
    return finding.severity != "info" and (whole or bool(named)) and about


def _buildable() -> Iterator[tuple[str, onnx.ModelProto, dict[str, Any]]]:
    """Yield every backend test and failure class, with values of its inputs."""
    for case in cases():
        proto = case.model or onnx.load(Path(str(case.model_dir)) / "model.onnx")
        names = [i.name for i in inputs_of(proto)]
        yield case.name, proto, dict(zip(names, first_inputs(case), strict=False))
    for make in CLASSES:
        ill = make()
        yield ill.name, ill.proto, {name: values[0] for name, values in ill.inputs.items()}


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
