"""Other tools' choices of what to leave out of INT8: they rank nodes one by one.

AIMET's "quantization analyzer" quantises each layer alone, and all layers but one; ModelOpt scores
each layer by the loss from its own quantisation; onnxruntime's `qdq_loss_debug` measures how far
each tensor of a quantised model is from the original's. All leave the cut in the ranking to the
user. Here it is the first that passes.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.quantization import qdq_loss_debug, quantize_static
from onnxruntime.quantization.calibrate import CalibrationDataReader

from halfwise.case import Sample, Samples
from halfwise.fixing.bench import Bench
from halfwise.graph.model import Network, node_name
from halfwise.graph.quantised import quantised_nodes
from halfwise.metrics import Excess, totals
from halfwise.records import Criterion, NodeName

Nodes = frozenset[NodeName]


@dataclass(frozen=True)
class Ranking:
    """Nodes, the first to be left out first.

    Attributes:
        nodes: All candidates.
        evaluations: Number of plans that were run for it.
    """

    nodes: tuple[NodeName, ...]
    evaluations: int


def by_itself(bench: Bench[Nodes], candidates: Nodes) -> Ranking:
    """Rank nodes by the loss when each alone is INT8."""
    lost = {node: _lost(bench, candidates - {node}) for node in sorted(candidates)}
    return Ranking(tuple(sorted(lost, key=lambda n: lost[n], reverse=True)), len(lost))


def left_alone(bench: Bench[Nodes], candidates: Nodes) -> Ranking:
    """Rank nodes by the loss that remains when all others are INT8, smallest first."""
    lost = {node: _lost(bench, frozenset((node,))) for node in sorted(candidates)}
    return Ranking(tuple(sorted(lost, key=lambda n: lost[n])), len(lost))


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Yields samples one by one."""

    def __init__(self, samples: Samples) -> None:
        self._left = iter(samples)

    def get_next(self) -> Sample | None:
        return next(self._left, None)


def debugged(original: Network, int8: Network, samples: Samples) -> Ranking:
    """Rank nodes by the noisiest tensor or weight that they read, by onnxruntime's measure."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.onnx" for name in ("original", "int8")}
        for network, file in zip((original, int8), files.values(), strict=True):
            onnx.save(ir.serde.serialize_model(network.model), file)
        seen = {}
        for name, file in files.items():
            more = file.with_suffix(".more.onnx")
            qdq_loss_debug.modify_model_output_intermediate_tensors(file, more)
            seen[name] = qdq_loss_debug.collect_activations(str(more), _Reader(samples))
        matched = qdq_loss_debug.create_activation_matching(seen["int8"], seen["original"])
        weights = qdq_loss_debug.create_weight_matching(*map(str, files.values()))
    noise = {
        name: told["xmodel_err"]
        for name, told in qdq_loss_debug.compute_activation_error(matched).items()
    }
    noise |= qdq_loss_debug.compute_weight_error(weights)
    nodes = {node_name(node): node for node in original.nodes()}
    found = {
        name: min(noise.get(str(v.name), np.inf) for v in nodes[name].inputs if v is not None)
        for name in quantised_nodes(int8)
    }
    return Ranking(tuple(sorted(found, key=lambda n: found[n])), 1)


class Defaults:
    """Models from `onnxruntime.quantization.quantize_static` with its defaults."""

    def __init__(self, original: Network, samples: Samples) -> None:
        """Take the model and its calibration samples."""
        self._original, self._samples = original, samples

    def without(self, left: Collection[NodeName]) -> ir.Model:
        """Return its model with these nodes excluded."""
        proto = ir.serde.serialize_model(self._original.model)
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
            given, made = (str(Path(folder) / name) for name in ("given.onnx", "made.onnx"))
            onnx.save(proto, given)
            quantize_static(given, made, _Reader(self._samples), nodes_to_exclude=sorted(left))
            return ir.serde.deserialize_model(onnx.load(made))


def bisected(
    passes: Callable[[Nodes], bool], nodes: Sequence[NodeName]
) -> tuple[Nodes, int] | None:
    """Return the fewest first nodes of a ranking that bisection finds, and the plans tried.

    None if not even leaving out all passes.
    """
    if passes(frozenset()):
        return frozenset(), 1
    if not passes(frozenset(nodes)):
        return None
    least, most, tried = 0, len(nodes), 2
    while most - least > 1:
        count, tried = (least + most) // 2, tried + 1
        least, most = (least, count) if passes(frozenset(nodes[:count])) else (count, most)
    return frozenset(nodes[:most]), tried


def first_passing(bench: Bench[Nodes], nodes: Sequence[NodeName]) -> tuple[Nodes, int]:
    """Return the first nodes of a ranking without which the rest passes, and the plans tried.

    Adds one after another, as a user would who cannot know that fewer may do; all if none passes.
    """
    for count in range(len(nodes) + 1):
        if bench.evaluate(frozenset(nodes[:count])).passed:
            return frozenset(nodes[:count]), count + 1
    return frozenset(nodes), len(nodes) + 1


def _lost(bench: Bench[Nodes], left: Nodes) -> tuple[float, float]:
    """Return the error over what is allowed, and the error of the outputs to break ties."""
    results = [*bench.outputs(left)]
    own = Excess(Criterion(), totals(bench.references))
    for reference, result in zip(bench.references, results, strict=True):
        own.update(reference, result)
    return bench.excess_of(results), own.final()
