"""Run a model on samples and count what is not finite inside it."""

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from halfwise.backends.probe import ExtremaProbe
from halfwise.case import Samples
from halfwise.metrics import Outputs
from halfwise.records import TensorName


def inspect_samples(
    model: ir.Model,
    tensors: Sequence[TensorName],
    samples: Samples,
    *,
    device: str = "cpu",
    libraries: Sequence[Path] = (),
) -> tuple[list[Outputs], dict[TensorName, int]]:
    """Return the outputs of each sample, and per tensor the elements that are not finite.

    Args:
        model: A model whose chosen tensors are FP32: a reference, or an emulation.
        tensors: Tensors of the main graph.
        samples: What to run it on; without any nothing is loaded.
        device: Where to run.
        libraries: Custom operator libraries.

    Returns:
        Outputs in the order of the samples, and counts over all of them: NaN and infinities of
        the tensors that have some, in the order in which they were met.
    """
    outputs: list[Outputs] = []
    nonfinite: dict[TensorName, int] = {}
    if not samples:
        return outputs, nonfinite
    probe = ExtremaProbe(model, tensors, magnitudes=False, device=device, libraries=libraries)
    for sample in samples:
        results, extrema = probe.run(sample)
        outputs.append(results)
        for name, extremum in extrema.items():
            if extremum.nonfinite:
                nonfinite[name] = nonfinite.get(name, 0) + extremum.nonfinite
    return outputs, nonfinite
