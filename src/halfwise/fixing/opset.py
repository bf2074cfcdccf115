"""Raise the opset where operators take BF16 only later, and check that the function is the same."""

import numpy as np

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, RunFailed
from halfwise.formats import BF16, Format
from halfwise.graph.casts import low_type
from halfwise.graph.model import Network
from halfwise.graph.opset import BF16_OPSET, gaining, raise_opset
from halfwise.metrics import Outputs

COMPARED = 4
"""Samples that both models are run on: an adapter that changes the function does so on most."""
TOLERANCE = 1e-6
"""Error over the largest magnitude of an output: some sums run in another order, no more."""


def with_opset_for(
    fmt: Format,
    network: Network,
    samples: Samples,
    *,
    runtime: Runtime = CPU,
) -> tuple[Network, str | None]:
    """Return `network` at an opset whose operators take `fmt`, and a sentence on what was done.

    The network is given back as it is, without a sentence, where nothing is gained: for FP16, and
    where all operators take BF16. With a sentence, where ONNX cannot raise the opset, or where the
    outputs of both models on up to 4 samples differ by more than 1e-6 of an output's largest
    magnitude: then operators stay in FP32 that could be low otherwise.

    Args:
        fmt: The low format.
        network: A network whose reference runs.
        samples: At least one.
        runtime: Where to run.
    """
    gained = gaining(network, low_type(fmt)) if fmt == BF16 else ()
    if not gained:
        return network, None
    operators = ", ".join(gained)
    first = samples.select(range(min(COMPARED, len(samples))))
    try:
        raised = raise_opset(network)
        _demand_same(network, raised, first, runtime)
    except (CaseError, RunFailed) as error:
        return network, (
            f"The opset stays at {network.opset}, where these take no {fmt.name.upper()}: "
            f"{operators}. {error.message}"
        )
    return raised, (
        f"The opset was raised from {network.opset} to {BF16_OPSET}, because only there these take "
        f"{fmt.name.upper()}: {operators}; outputs were the same on {len(first)} samples."
    )


def _demand_same(network: Network, raised: Network, samples: Samples, runtime: Runtime) -> None:
    sessions = [Session(n.model, runtime=runtime) for n in (network, raised)]
    for sample in samples:
        before, after = (session.run(sample) for session in sessions)
        if not same(before, after):
            raise CaseError(
                f"Raised to opset {BF16_OPSET}, the model computes something else.",
                "Export the model at that opset.",
            )


def same(before: Outputs, after: Outputs) -> bool:
    """Return whether outputs have equal shapes and, within `TOLERANCE`, equal values.

    Outputs that are no floating-point numbers have to be equal; so do NaN and infinities.
    """
    return before.keys() == after.keys() and all(_equal(a, after[n]) for n, a in before.items())


def _equal(before: np.ndarray, after: np.ndarray) -> bool:
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    if not np.issubdtype(before.dtype, np.floating):
        return np.array_equal(before, after)
    finite = np.isfinite(before)
    if not np.array_equal(before[~finite], after[~finite], equal_nan=True):
        return False
    a, b = before[finite].astype(np.float64), after[finite].astype(np.float64)
    limit = TOLERANCE * np.abs(a).max(initial=0.0)
    return bool(np.isfinite(b).all() and (np.abs(a - b) <= limit).all())
