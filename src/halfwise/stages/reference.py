"""Run the reference on samples that nobody observes."""

from halfwise.backends.ort import Session
from halfwise.case import Samples
from halfwise.metrics import Outputs


def reference_outputs(session: Session, samples: Samples) -> list[Outputs]:
    """Return the FP32 outputs of every sample, in order; kept in memory."""
    return [session.run(sample) for sample in samples]
