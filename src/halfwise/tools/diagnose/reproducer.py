"""Cut out what goes wrong, with its real inputs, as a folder for a bug report."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import Samples
from halfwise.emulation.runner import TOLERANCES
from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.workbench import save
from halfwise.graph.dataflow import GIVEN, read_by, region_model
from halfwise.graph.model import Network, node_name, normalise
from halfwise.metrics.relative import relative_rms
from halfwise.records import Comparison, NodeName, TensorName
from halfwise.tools.compare import Walk
from halfwise.tools.compare.engine_maker import EngineMaker
from halfwise.wording import count, number

FOLDER = "reproducer"
_STEPS_BACK = 2
"""Nodes before the one at fault that come along, since a fusion may need them."""
_FLAGS = {
    "fp32": "--noTF32",
    "tf32": "",
    "fp16": "--fp16",
    "bf16": "--bf16",
}


def save_reproducer(
    engines: EngineMaker, walk: Walk, found: Comparison, folder: Path, worst: str | None
) -> tuple[str, ...]:
    """Write the part of the model around the first divergence into `folder`/reproducer.

    It holds `model.onnx`, `inputs.npz` and `expected.npz` (one sample each, with an axis
    for it) and a README. All its inputs are what the right side has there, on the worst sample.

    Returns:
        What was written and whether the part alone goes wrong too; nothing without a divergence.
    """
    if not found.first:
        return ()
    ids = walk.samples.ids
    index = ids.index(worst) if worst in ids else 0
    sample = walk.samples.select([index])
    target = next(n.tensor for n in found.nodes if n.status == "born" and n.region == found.first)
    given = _border(walk, found.first, target)
    found_there = next(islice(walk.a.get((*given, target)), index, None))
    values = {TensorName(name): array for name, array in found_there.items()}
    model, feed = part(walk.network, [target], given, values, dict(sample[0]))
    place = folder / FOLDER
    place.mkdir(parents=True)
    save(model, place / "model.onnx")
    _save_arrays(place / "inputs.npz", feed)
    expected = values[target]
    _save_arrays(place / "expected.npz", {target: expected})
    kind = walk.b.arithmetic
    nodes = [node_name(n) for n in model.graph]
    said = _reproduces(engines, model, feed, target, expected, kind)
    (place / "README.md").write_text(_readme(nodes, target, kind, said), encoding="utf-8")
    return (f"{FOLDER}/ holds {count(len(nodes), 'node')} and their real inputs; {said}.",)


def _save_arrays(path: Path, arrays: Mapping[Any, NDArray[Any]]) -> None:
    """Write arrays as .npz, each with an axis for the sample.

    `np.savez` takes names as keywords, and cannot take "file".
    """
    with ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array[np.newaxis], allow_pickle=False)


def _border(walk: Walk, nodes: tuple[NodeName, ...], target: TensorName) -> tuple[TensorName, ...]:
    """Return the tensors where the part begins: a few nodes before those at fault."""
    inside, edge = {target}, [target]
    for name, item in walk.found.items():
        if node_name(item.node) in nodes:
            inside.add(name)
            edge.append(name)
    for _ in range(_STEPS_BACK):
        edge = [n for e in edge for n in read_by(walk.found[e].node) if n in walk.found]
        inside.update(edge)
    read = {n for e in inside for n in read_by(walk.found[e].node)}
    return tuple(n for n in walk.found if n in read - inside and walk.found[n].lack != "constant")


def _reproduces(
    engines: EngineMaker,
    model: ir.Model,
    feed: dict[str, NDArray[Any]],
    target: TensorName,
    expected: NDArray[Any],
    kind: str,
) -> str:
    """Return whether an engine of the part alone is wrong too, as the end of a sentence."""
    try:
        network = normalise(model.clone(), path=None, sha256="")
        samples = Samples(("reproducer",), lambda _: feed)
        case = replace(engines.case, network=network, calibration=samples, metric=None)
        _, outputs = engines.of(case).side(kind).plain()
    except HalfwiseError as error:
        return f"an engine of them alone could not be tried: {error.message}"
    off = relative_rms(expected, outputs[0][target])
    if off > TOLERANCES["fp32" if kind == "fp32" else "fp16"]:
        return f"an engine of them alone is off by {number(off)} (relative RMS) too"
    return "an engine of them alone is right, so the fault needs more of the model around it"


def _readme(nodes: list[NodeName], target: TensorName, kind: str, said: str) -> str:
    return (
        f"`model.onnx` holds {count(len(nodes), 'node')} of a model; on `inputs.npz` it should "
        f"give `{target}` as in `expected.npz`; {said}.\n\n"
        f"    trtexec --onnx=model.onnx {_FLAGS[kind]}\n"
        f"    halfwise compare model.onnx --inputs inputs.npz --b engine:{kind}\n"
    )


Arrays = Mapping[Any, NDArray[Any]]


def part(
    network: Network,
    targets: Sequence[TensorName],
    given: Sequence[TensorName],
    values: Arrays,
    sample: Arrays,
) -> tuple[ir.Model, dict[str, NDArray[Any]]]:
    """Return the part that computes `targets` from `given`, and its inputs.

    Inputs are called as the tensors that they stand for, but for those that the part computes too.

    Args:
        network: The model; not changed.
        targets: What to compute.
        given: Where the part begins.
        values: Arrays of `targets` and `given`.
        sample: Inputs of the model.
    """
    model = region_model(network, targets, given)
    feed: dict[str, NDArray[Any]] = {}
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
        output.shape = ir.Shape(values[output.name].shape)
    return model, feed
