"""Run the reference on samples that nobody observes."""

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.deadlines import forgiving
from halfwise.emulation.probe import observable
from halfwise.emulation.tensors import inspect_samples
from halfwise.errors import RunFailed
from halfwise.graph.model import Network
from halfwise.metrics import Outputs
from halfwise.records import TensorName


def inspected_reference(
    network: Network, samples: Samples, *, runtime: Runtime = CPU
) -> tuple[list[Outputs], frozenset[TensorName]]:
    """Return the outputs of every sample, and the tensors that are not finite on any of them.

    What holds NaN or infinities in FP32 already, such as a mask of -inf, is no fault of a
    candidate's.

    Raises:
        RunFailed, TookTooLong: it cannot be run on a sample.
    """
    model = network.model
    with forgiving(any_number=False):
        results, nonfinite = inspect_samples(model, observable(model), samples, runtime=runtime)
    references: list[Outputs] = []
    for result in results:
        if isinstance(result, RunFailed):
            raise result
        references.append(result)
    return references, frozenset(nonfinite)
