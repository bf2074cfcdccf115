"""Tiny models, each with one fault that `halfwise lint` names, and without it.

Each function makes both, so that they differ in the fault alone. One file per family of rules.
"""

from pathlib import Path

import onnx

from halfwise.api import lint
from halfwise.records import LintReport
from tests.faults import numbers, quantisation, structure, tensorrt
from tests.faults.fault import Fault, registered

FAULTS: tuple[Fault, ...] = registered()

__all__ = [
    "FAULTS",
    "Fault",
    "linted",
    "numbers",
    "quantisation",
    "structure",
    "tensorrt",
]


def linted(proto: onnx.ModelProto, folder: Path, tensorrt: str | None = None) -> LintReport:
    """Return what is found in a model, written to `folder`."""
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    if tensorrt is not None and tensorrt.startswith("rtx "):
        return lint(path, target="rtx", trt_version=tensorrt.removeprefix("rtx "))
    return lint(path, trt_version=tensorrt)
