"""The ONNX files that engines are built from; each is written once."""

from pathlib import Path
from shutil import rmtree

import onnx_ir as ir

from halfwise.fixing.planner import Planner
from halfwise.fixing.rewrite import EXTERNAL_DATA_BYTES
from halfwise.graph.model import Network
from halfwise.graph.weights import is_large, weight_bytes
from halfwise.records import NodeName

FP32_FILE = "model.fp32.onnx"
"""The FP32 model with halfwise's names of nodes: weakly typed engines come from it."""


class ModelFiles:
    """Writes the FP32 model, and mixed ones of any plan, into a folder of its own."""

    def __init__(self, folder: Path) -> None:
        """Take an existing folder."""
        self._folder = folder
        self._mixed: dict[frozenset[NodeName], Path] = {}

    def fp32(self, network: Network) -> Path:
        """Return the file of the FP32 model."""
        path = self._folder / FP32_FILE
        if not path.exists():
            save(network.model, path)
        return path

    def mixed(self, planner: Planner, kept: frozenset[NodeName]) -> Path:
        """Return the file of the strongly typed model that keeps `kept`.

        Raises:
            OSError: it cannot be written; nothing of it stays.
        """
        if kept not in self._mixed:
            path = self._folder / f"mixed-{len(self._mixed) + 1}" / "model.onnx"
            path.parent.mkdir()
            try:
                save(planner.rewrite(kept)[0].model, path)
            except OSError:
                rmtree(path.parent, ignore_errors=True)
                raise
            self._mixed[kept] = path
        return self._mixed[kept]


def save(model: ir.Model, path: Path) -> None:
    """Write a model, with its weights beside it where they are many."""
    beside = weight_bytes(model) > EXTERNAL_DATA_BYTES or is_large(model)
    ir.save(model, path, external_data=f"{path.name}.data" if beside else None)
