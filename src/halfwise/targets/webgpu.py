"""ONNX Runtime's WebGPU provider in Node.js: a file's own arithmetic, in FP16."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import parser

from halfwise.emulation.ort import said
from halfwise.errors import RunFailed
from halfwise.scratch import scratch
from halfwise.targets.worker import Crashed, Worker
from halfwise.wording import excerpt

_WORKER = Path(__file__).with_name("webgpu_worker.js")

_SMALLEST = """
<ir_version: 8, opset_import: ["" : 17]> smallest (float[1] x) => (float[1] y) { y = Add(x, x) }
"""

Array = NDArray[Any]


class WebGpu(Worker):
    """Runs models, all in one process.

    Sums are formed in the type of the node, so FP16 sums overflow and round as nowhere else. Nodes
    that the provider lacks run on the CPU in FP32, on values that are rounded to FP16.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Take a command that starts Node.js, which finds `onnxruntime-node`."""
        super().__init__([*command, str(_WORKER)])

    @cached_property
    def version(self) -> str:
        """The version of `onnxruntime-node`, once a model has run: that needs an adapter.

        Raises:
            Crashed: it does not start, or no model can run.
        """
        version = super().version
        with scratch() as folder:
            onnx.save(parser.parse_model(_SMALLEST), folder / "smallest.onnx")
            try:
                self.run(folder / "smallest.onnx", [{"x": np.ones(1, np.float32)}], seconds=60)
            except RunFailed as failed:
                raise Crashed(failed.message) from failed
        return version

    def run(
        self,
        model: Path,
        samples: Sequence[Mapping[str, Array]],
        *,
        fusions: bool = False,
        seconds: float = 300,
    ) -> tuple[Mapping[str, Array], ...]:
        """Return the outputs of a model, by name for each sample.

        Args:
            model: An ONNX file; external weights lie beside it.
            samples: Inputs by name, with the types of the model's inputs.
            fusions: Let ONNX Runtime fuse nodes, as it does by default; else they run as written.
            seconds: A run that takes longer is given up, and has failed.

        Raises:
            RunFailed: it does not run: what ONNX Runtime, the driver or the process said.
        """
        with scratch() as folder:
            request = {
                "model": str(model.resolve()),
                "level": "all" if fusions else "disabled",
                "folder": str(folder),
                "samples": [
                    {name: _stored(array, folder / f"{i} {j}") for j, (name, array) in feeds}
                    for i, sample in enumerate(samples)
                    for feeds in [list(enumerate(sample.items()))]
                ],
            }
            try:
                answer = self.ask(request, seconds)
            except Crashed as crash:
                raise RunFailed(excerpt(str(crash))) from crash
            if "error" in answer:
                raise RunFailed(excerpt(_said(answer["error"], model)))
            return tuple(
                {name: _loaded(**stored) for name, stored in outputs.items()}
                for outputs in answer["outputs"]
            )


def _said(error: str, model: Path) -> str:
    """Return what ONNX Runtime says of a file, whose place tells nothing."""
    return said(error.replace(f"Load model from {model.resolve()} failed:", ""))


def _stored(array: Array, file: Path) -> dict[str, Any]:
    kind = "string" if array.dtype.kind in "OU" else array.dtype.name
    strings = json.dumps([*map(str, array.flat)]).encode() if kind == "string" else None
    file.write_bytes(np.ascontiguousarray(array).tobytes() if strings is None else strings)
    return {"type": kind, "dims": list(array.shape), "file": str(file)}


def _loaded(type: str, dims: Sequence[int], file: str) -> Array:  # noqa: A002 - ONNX Runtime's word
    if type == "string":
        return np.array(json.loads(Path(file).read_bytes()), object).reshape(dims)
    return np.fromfile(file, np.dtype(type)).reshape(dims)
