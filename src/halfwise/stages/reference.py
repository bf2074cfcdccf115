"""Run the reference on samples that nobody observes."""

from collections.abc import Sequence
from pathlib import Path

from halfwise.backends.ort import Session
from halfwise.backends.probe import ExtremaProbe, observable
from halfwise.case import Samples
from halfwise.graph.model import Network
from halfwise.metrics import Outputs
from halfwise.records import TensorName


def reference_outputs(session: Session, samples: Samples) -> list[Outputs]:
    """Return the FP32 outputs of every sample, in order; kept in memory."""
    return [session.run(sample) for sample in samples]


def nonfinite_tensors(
    network: Network, samples: Samples, *, device: str = "cpu", libraries: Sequence[Path] = ()
) -> frozenset[TensorName]:
    """Return the tensors that hold NaN or infinities in FP32 on any sample, such as masks of -inf.

    What is not finite there is no fault of a candidate's.
    """
    model = network.model
    probe = ExtremaProbe(model, observable(model), device=device, libraries=libraries)
    found: set[TensorName] = set()
    for sample in samples:
        _, extrema = probe.run(sample)
        found |= {name for name, extremum in extrema.items() if extremum.nonfinite}
    return frozenset(found)
