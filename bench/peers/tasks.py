"""The models that every tool gets, as files; one split into calibration and held-out samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench.runs import REAL_MODELS, ROOT, Workbench
from halfwise.case import Samples
from halfwise.graph.roles import Role, roles_of
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from tests.models import CLASSES

REAL_FAMILY = "Published models"


@dataclass(frozen=True)
class Task:
    """One model for every tool.

    Attributes:
        name: Name of the model.
        family: The class of failures it belongs to.
        folder: Holds model.onnx, calibration/*.npz and heldout/*.npz (one sample each), and
            judging.json for the runners.
        options: Options of `halfwise fix`, for the library.
        nodes: Compute nodes that may be FP16.
        samples: How many are for calibration, and how many held out.
    """

    name: str
    family: str
    folder: Path
    options: dict[str, Any]
    nodes: int
    samples: tuple[int, int]

    @property
    def model(self) -> Path:
        """The FP32 model."""
        return self.folder / "model.onnx"

    @property
    def arguments(self) -> list[str]:
        """The options for the command line."""
        return [f"--{n.replace('_', '-')}={value}" for n, value in self.options.items()]


def tasks_of(bench: Workbench) -> list[Task]:
    """Return a task for each failure class and each published model that is here, as files."""
    folder = bench.folder / "peers"
    found = []
    for make in CLASSES:
        ill = make()
        inputs = {name: np.asarray(array) for name, array in ill.inputs.items()}
        found.append(_written(folder / ill.name, ill.family, ill.proto, inputs, ill.options))
    for name in REAL_MODELS:
        if subject := bench.real(name):
            with np.load(subject.inputs) as arrays:
                inputs = dict(arrays)
            proto = onnx.load(subject.model)
            found.append(_written(folder / name, REAL_FAMILY, proto, inputs, subject.options))
    return found


def keywords(options: Sequence[str]) -> dict[str, Any]:
    """Return command-line options, `--name value` each, as those of the library."""
    found: dict[str, Any] = {}
    for option, text in zip(options[::2], options[1::2], strict=True):
        named = option in ("--require", "--allow", "--budget", "--engine")
        name, value = text.split("=", 1) if named else (option.removeprefix("--"), text)
        name = name.replace("-", "_")
        try:
            found[name] = float(value)
        except ValueError:
            # Runners work in other folders.
            found[name] = str(ROOT / value) if (ROOT / value.partition(":")[0]).is_file() else value
    return found


def _written(
    folder: Path,
    family: str,
    proto: onnx.ModelProto,
    inputs: dict[str, np.ndarray],
    options: Sequence[str],
) -> Task:
    folder.mkdir(parents=True)
    onnx.save(proto, folder / "model.onnx")
    given = keywords(options)
    request = understand(inputs, given)
    case = load_case(folder / "model.onnx", request.data, request.criterion)
    _write_samples(folder / "calibration", case.calibration)
    _write_samples(folder / "heldout", case.heldout)
    judging = {
        "criterion": case.criterion.to_dict(),
        "accumulate": request.settings.accumulate,
    }
    (folder / "judging.json").write_text(json.dumps(judging), encoding="utf-8")
    nodes = sum(role.role is Role.COMPUTE for role in roles_of(case.network).values())
    samples = (len(case.calibration), len(case.heldout))
    return Task(folder.name, family, folder, given, nodes, samples)


def _write_samples(folder: Path, samples: Samples) -> None:
    folder.mkdir()
    for i, sample in enumerate(samples):
        np.savez(folder / f"{i:04}.npz", **dict(sample))  # type: ignore[arg-type]
