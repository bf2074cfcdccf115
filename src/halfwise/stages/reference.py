"""Run the reference on samples that nobody observes."""

from collections.abc import Sequence
from pathlib import Path

from halfwise.backends.probe import ExtremaProbe, observable
from halfwise.case import Samples
from halfwise.graph.model import Network
from halfwise.metrics import Outputs
from halfwise.records import TensorName


def inspected_reference(
    network: Network, samples: Samples, *, device: str = "cpu", libraries: Sequence[Path] = ()
) -> tuple[list[Outputs], frozenset[TensorName]]:
    """Return the outputs of every sample, and the tensors that are not finite on any of them.

    What holds NaN or infinities in FP32 already, such as a mask of -inf, is no fault of a
    candidate's.
    """
    if not samples:
        return [], frozenset()
    model = network.model
    probe = ExtremaProbe(model, observable(model), device=device, libraries=libraries)
    results: list[Outputs] = []
    nonfinite: set[TensorName] = set()
    for sample in samples:
        outputs, extrema = probe.run(sample)
        results.append(outputs)
        nonfinite |= {name for name, extremum in extrema.items() if extremum.nonfinite}
    return results, frozenset(nonfinite)
