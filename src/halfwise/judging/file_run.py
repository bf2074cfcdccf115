"""Runs a mixed model's file in ONNX Runtime without added rounding.

Its CPU provider has few FP16 kernels. It puts Casts around nodes without a kernel and drops Casts
that undo each other, so intermediate values are FP32, as in a fused kernel. The emulation rounds
each value.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Sample, Samples
from halfwise.emulation.runner import ModelRunner, Runner
from halfwise.emulation.typed import emulate_typed
from halfwise.graph.model import node_name
from halfwise.graph.sensitivity import decided
from halfwise.graph.weights import LOW_TYPES
from halfwise.metrics import Outputs
from halfwise.records import Flip, TensorName


def run_as_file(
    model: ir.Model,
    samples: Samples,
    references: Sequence[Outputs],
    *,
    runtime: Runtime = CPU,
) -> list[Outputs]:
    """Return the outputs of each sample in the references' dtypes.

    Args:
        model: A typed model, as it is written.
        samples: FP32 inputs.
        references: Outputs of the reference.
        runtime: Where to run.

    Raises:
        CaseError: ONNX Runtime cannot load it; a `KernelMissing` if it lacks a kernel.
        RunFailed: it cannot run it.
    """
    results = ModelRunner(model, _fed(model, samples), runtime=runtime).get()
    return [
        {n: _as(output, reference[n]) for n, output in result.items()}
        for result, reference in zip(results, references, strict=True)
    ]


def _as(output: NDArray[np.generic], reference: NDArray[np.generic]) -> NDArray[np.generic]:
    with np.errstate(over="ignore"):
        return output.astype(reference.dtype)


def _fed(model: ir.Model, samples: Samples) -> Samples:
    """Return the samples in the types of the model's inputs."""
    low = {v.name: v.dtype.numpy() for v in model.graph.inputs if v.dtype and v.dtype in LOW_TYPES}

    def load(index: int) -> Sample:
        given = samples[index].items()
        return {n: a.astype(low[n]) if n in low else a for n, a in given}

    return Samples(samples.ids, load)


def flips(
    model: ir.Model,
    decisions: Sequence[ir.Node],
    samples: Samples,
    *,
    accumulate: str = "fp32",
    runtime: Runtime = CPU,
) -> tuple[Flip, ...]:
    """Return the decisions that differ between the file as run and its emulation.

    Args:
        model: The mixed model.
        decisions: Nodes of the original to examine; skipped if the mixed model lacks their outputs.
        samples: Samples to examine.
        accumulate: Format of running sums inside low ops.
        runtime: Where to run.
    """
    emulation = emulate_typed(model, accumulate=accumulate)
    return differing(
        decisions,
        ModelRunner(emulation, samples, runtime=runtime),
        ModelRunner(model, _fed(model, samples), runtime=runtime),
    )


def differing(decisions: Sequence[ir.Node], one: Runner, other: Runner) -> tuple[Flip, ...]:
    """Return the decisions that differ between two models on the same samples, in their order.

    Args:
        decisions: Nodes to examine, if both models have their outputs.
        one: A model.
        other: Another with the same tensor names.
    """
    wanted = [t for node in decisions for t in decided(node)]
    unlike, total = dict.fromkeys(wanted, 0), dict.fromkeys(wanted, 0)
    for a, b in zip(one.get(wanted), other.get(wanted), strict=True):
        for name in map(TensorName, a.keys() & b.keys()):
            unlike[name] += _differing(a[name], b[name])
            total[name] += max(a[name].size, b[name].size)
    found = ((node, t) for node in decisions for t in [t for t in decided(node) if total[t]][:1])
    return tuple(
        Flip(node=node_name(node), op=node.op_type, elements=unlike[tensor], of=total[tensor])
        for node, tensor in found
        if unlike[tensor]
    )


def _differing(one: NDArray[np.generic], other: NDArray[np.generic]) -> int:
    """Return how many elements differ; all of them if the shapes do."""
    if one.shape != other.shape:
        return max(one.size, other.size)
    return int(np.count_nonzero(one != other))
