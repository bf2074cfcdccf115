"""Tensors inside a model, on samples, a few at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from halfwise.backends.ort import Session
from halfwise.case import Samples
from halfwise.graph.cut import giving_out
from halfwise.metrics import Outputs
from halfwise.records import TensorName


class ModelTensors:
    """What ONNX Runtime gives for tensors of a model's main graph.

    Each time a session is made that computes no more than it is asked for: ONNX Runtime keeps all
    that a session could give out as long as it runs, so memory is that of plain inference and of
    what is asked for at a time.
    """

    def __init__(
        self,
        model: ir.Model,
        samples: Samples,
        *,
        optimise: bool = False,
        device: str = "cpu",
        libraries: Sequence[Path] = (),
    ) -> None:
        """Take a model and the samples to run it on; `optimise` lets ONNX Runtime fuse."""
        self._model, self._samples = model, samples
        self._optimise, self._device, self._libraries = optimise, device, libraries
        graph = model.graph
        self.names = frozenset(TensorName(v.name) for node in graph for v in node.outputs if v.name)
        self.constants = frozenset(TensorName(name) for name in graph.initializers)

    def get(self, names: Sequence[TensorName]) -> Iterator[Outputs]:
        """Yield, for each sample, the tensors among `names` that the model computes."""
        wanted = [name for name in names if name in self.names]
        if not wanted:
            yield from ({} for _ in self._samples)
            return
        session = Session(
            giving_out(self._model, wanted),
            device=self._device,
            optimise=self._optimise,
            libraries=self._libraries,
        )
        for sample in self._samples:
            yield session.run(sample, wanted)
