"""Run a model on samples and count what is not finite inside it."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.probe import ExtremaProbe
from halfwise.errors import RunFailed
from halfwise.metrics import Computed
from halfwise.records import TensorName


@dataclass(frozen=True)
class Nonfinite:
    """NaN and infinities of one tensor.

    Attributes:
        elements: Their number over all samples, at least 1.
        samples: Indices of the samples that have some.
    """

    elements: int
    samples: tuple[int, ...]


def inspect_samples(
    model: ir.Model,
    tensors: Sequence[TensorName],
    samples: Samples,
    *,
    runtime: Runtime = CPU,
) -> tuple[list[Computed], dict[TensorName, Nonfinite]]:
    """Return the outputs of each sample, and per tensor what is not finite.

    Args:
        model: A model whose chosen tensors are FP32: a reference, or an emulation.
        tensors: Tensors of the main graph.
        samples: What to run it on; without any nothing is loaded.
        runtime: Where to run.

    Returns:
        Outputs in the order of the samples, or why it could not be run on one, and the tensors that
        have NaN or infinities, in the order in which they were met.
    """
    outputs: list[Computed] = []
    nonfinite: dict[TensorName, Nonfinite] = {}
    if not samples:
        return outputs, nonfinite
    probe = ExtremaProbe(model, tensors, magnitudes=False, runtime=runtime)
    for index, sample in enumerate(samples):
        try:
            results, extrema = probe.run(sample)
        except RunFailed as failure:
            outputs.append(failure)
            continue
        outputs.append(results)
        for name, extremum in extrema.items():
            if extremum.nonfinite:
                before = nonfinite.get(name, Nonfinite(0, ()))
                elements = before.elements + extremum.nonfinite
                nonfinite[name] = Nonfinite(elements, (*before.samples, index))
    return outputs, nonfinite
