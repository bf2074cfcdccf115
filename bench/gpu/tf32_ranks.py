"""Compares `halfwise diagnose`'s ranking of products by TF32 with products run in TF32.

    python -m bench.gpu.tf32_ranks --trt-python PYTHON [--models DIR] NAME …

`diagnose` ranks in emulation: each product alone in TF32. Here each product runs in TF32 kernels
of an engine, on exactly its FP32 inputs, and its result replaces the FP32 one in ONNX Runtime. One
engine per model holds all products, cut apart. NAME is `digits` or a folder
of DIR with model.onnx and inputs.npz.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from scipy.stats import spearmanr

from bench.figures import Figure, Result, at_least, reported, table
from bench.gpu.engines import samples_of
from bench.gpu.jobs import add_host, host_of
from bench.gpu.pipe import Pipe
from bench.runs import ROOT
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import TF32_INPUT, Rounding, emulate_tf32, tf32_nodes
from halfwise.graph.dataflow import GIVEN, giving_out, region_model
from halfwise.graph.loading import load_network
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.metrics.difference import relative_rms
from halfwise.records import TensorName
from halfwise.tools.compare.sides import Regions
from halfwise.tools.diagnose.tf32 import IN_TF32

RESULTS = ROOT / "bench" / "results"
CLOSE, WANTED = 0.05, 0.95
"""Share of the products whose measured contribution is within 5 % of one of the two emulated."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Product:
    """The effect of TF32 in one product.

    Attributes:
        node: Its name.
        nearest: Largest relative RMS error of an output, emulated, rounding to nearest.
        zero: The same, rounding toward zero.
        measured: The same with the engine's result in its place.
        local: Relative RMS error of its own result in the engine.
    """

    node: str
    nearest: float
    zero: float
    measured: float
    local: float


def products(network: Network, sample: Arrays, pipe: Pipe) -> list[Product]:
    """Return every product on one sample."""
    names = set(tf32_nodes(network))
    nodes = [n for n in network.nodes() if node_name(n) in names]
    results = [tensor_name(n.outputs[0]) for n in nodes]
    computed = {tensor_name(v) for n in network.nodes() for v in n.outputs if v.name}
    read = {tensor_name(v) for n in nodes for v in n.inputs if v is not None} & computed
    tensors = Session(giving_out(network.model, read | set(results))).run(sample)
    right = Session(network.model).run(sample)
    nearest = _emulated(network, sample, right, len(nodes), "nearest")
    zero = _emulated(network, sample, right, len(nodes), "zero")
    in_engine = _in_engine(network, {**sample, **tensors}, results, sorted(read), pipe)
    found = []
    for node, name, near, toward_zero in zip(nodes, results, nearest, zero, strict=True):
        after = _outputs_with(network, sample, name, in_engine[name], right)
        measured = max(relative_rms(right[n], after[n]) for n in right)
        local = relative_rms(tensors[name], in_engine[name])
        found.append(Product(node_name(node), near, toward_zero, measured, local))
    return found


def _emulated(
    network: Network, sample: Arrays, right: Arrays, count: int, rounding: Rounding
) -> list[float]:
    session = Session(emulate_tf32(network, switched=True, rounding=rounding))
    found = []
    for index in range(count):
        outputs = session.run({**sample, TF32_INPUT: np.arange(count) == index})
        found.append(max(relative_rms(right[n], outputs[n]) for n in right))
    return found


def _in_engine(
    network: Network,
    tensors: Arrays,
    results: Sequence[TensorName],
    read: Sequence[TensorName],
    pipe: Pipe,
) -> dict[str, np.ndarray]:
    """Return each product's result in an engine with TF32, from the tensors it reads in FP32."""
    model, feeds = part(network, results, read, tensors, tensors)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        ir.save(model, path)
        engine = pipe.build(path.read_bytes(), tf32=True).header["engine"]["sha256"]
    return pipe.run(engine, feeds)


def part(
    network: Network,
    targets: Sequence[TensorName],
    given: Sequence[TensorName],
    values: Arrays,
    sample: Arrays,
) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """Return the part that computes `targets` from `given`, and its inputs.

    Inputs keep their tensors' names, except for tensors that the part also computes.

    Args:
        network: The model; not changed.
        targets: What to compute.
        given: Where the part begins.
        values: Arrays of `targets` and `given`.
        sample: Inputs of the model.
    """
    model = region_model(network, targets, given)
    feed: dict[str, np.ndarray] = {}
    for value in list(model.graph.inputs):
        name = str(value.name).removesuffix(GIVEN)
        if not value.uses():
            model.graph.inputs.remove(value)
            continue
        array = values[name] if name in values else sample[name]
        assert value.dtype is not None
        if name not in targets:
            value.name = name
        value.shape = ir.Shape(array.shape)
        feed[str(value.name)] = array.astype(value.dtype.numpy())
    for output in (v for node in model.graph for v in node.outputs):
        output.shape = None
    for output in model.graph.outputs:
        output.shape = ir.Shape(values[str(output.name)].shape)
    return model, feed


def _outputs_with(
    network: Network, sample: Arrays, name: TensorName, array: np.ndarray, right: Arrays
) -> dict[str, np.ndarray]:
    """Return the outputs if the tensor `name` has other values."""
    ends = [TensorName(n) for n in right]
    found: dict[str, Any] = dict(Regions(network, ends, [name]).run(sample, {name: array}))
    if name in ends:  # an output that is the product's own result is computed anew there
        found[name] = array
    return found


def figures(model: str, found: Sequence[Product]) -> list[Figure]:
    """Return how emulated and measured contributions agree, over the products that ran in TF32."""
    ran = [p for p in found if p.local > IN_TF32]
    note = f"{len(ran)} of {len(found)} products ran in TF32"
    if not ran:
        return [reported(f"{model}: products that ran in TF32", 0, f"of {len(found)}")]
    ratios = [(p.measured / p.nearest, p.measured / p.zero) for p in ran]
    close = [min(ratio, key=lambda r: abs(r - 1)) for ratio in ratios]
    truncated = sum(abs(z - 1) < abs(n - 1) for n, z in ratios)
    figures = [
        at_least(
            f"{model}: share of products measured within 5 % of an emulated contribution",
            sum(abs(r - 1) <= CLOSE for r in close) / len(ran),
            WANTED,
            note,
        ),
        reported(f"{model}: of these, rounded toward zero", truncated),
        reported(f"{model}: largest deviation", max(abs(r - 1) for r in close)),
    ]
    measured = [p.measured for p in ran]
    for rounding in ("nearest", "zero") if len(ran) > 2 else ():
        rank = spearmanr([getattr(p, rounding) for p in ran], measured).statistic
        what = f"{model}: rank correlation with all emulated by rounding to {rounding}"
        figures.append(reported(what, float(rank), note))
    return figures


def main() -> int:
    """Measure the models that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="NAME")
    add_host(parser)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    host = host_of(given)
    result = Result(
        "gpu_tf32_ranks", f"python -m bench.gpu.tf32_ranks … {' '.join(given.names)}", [], None
    )
    result.details = {}
    with Pipe([host.trt_python], host.sources()) as pipe:
        result.machine |= pipe.told()
        for name in given.names:
            model, inputs = host.subject(name)
            network, sample = load_network(model), samples_of(inputs)[0]
            found = products(network, sample, pipe)
            result.figures += figures(name, found)
            result.details[name] = [vars(p) for p in sorted(found, key=lambda p: -p.measured)]
            result.save(given.results)
            print(table([result]), flush=True)
    return 0 if result.reached else 1


if __name__ == "__main__":
    sys.exit(main())
