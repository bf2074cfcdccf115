"""Writes, next to each model, which nodes AutoCast of NVIDIA Model Optimizer leaves in FP32.

    python -m bench.gpu.autocast DIR [NAME …]

runs it with its defaults and the model's inputs as calibration data, in the environment of
`bench.peers`, and writes `DIR/<name>/autocast.json`: the compute nodes of the original that are not
FP16 in its result. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from bench.gpu.engines import samples_of
from bench.peers.environments import HERE, Environment, environment
from halfwise.graph.loading import load_network
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, roles_of

FILE = "autocast.json"
SETTINGS = {"data_max": 512}
"""AutoCast's own default."""
SECONDS = 300
FLOAT16 = ir.DataType.FLOAT16


def chosen(folder: Path, place: Environment) -> dict[str, Any]:
    """Return what AutoCast leaves in FP32 in `folder`/model.onnx, or how it failed."""
    told = {"versions": place.packages, "settings": SETTINGS}
    with tempfile.TemporaryDirectory() as temporary:
        task, out = Path(temporary) / "task", Path(temporary) / "out"
        (task / "calibration").mkdir(parents=True)
        out.mkdir()
        (task / "model.onnx").symlink_to((folder / "model.onnx").resolve())
        for i, sample in enumerate(samples_of(folder / "inputs.npz")):
            np.savez(task / "calibration" / f"{i:04}.npz", **sample)  # type: ignore[arg-type]
        runner = str(HERE / "runners" / "autocast.py")
        words = [place.python, runner, str(task), str(out), json.dumps(SETTINGS)]
        subprocess.run(words, check=True, capture_output=True, timeout=SECONDS)
        result = json.loads((out / "result.json").read_text(encoding="utf-8"))
        if result["failure"]:
            return {"failure": result["failure"], **told}
        mixed = load_network(out / "mixed.onnx")
    return {**kept(load_network(folder / "model.onnx"), mixed), **told}


def kept(original: Network, mixed: Network) -> dict[str, Any]:
    """Return the compute nodes of `original` that are FP32 in `mixed`.

    A fused node counts as the node that computes the first value after it that still exists.
    "lacking" are nodes without one.
    """
    roles = roles_of(original)
    nodes = [n for n in original.nodes() if roles[node_name(n)].role is Role.COMPUTE]
    by_name = {node_name(n): n for n in mixed.nodes()}
    by_value = {v.name: n for n in mixed.nodes() for v in n.outputs}
    found: dict[str, list[str]] = {"nodes": [], "lacking": []}
    for node in nodes:
        there = by_name.get(node_name(node)) or _behind(node, by_value)
        if there is None:
            found["lacking"].append(node_name(node))
        elif not any(v is not None and v.dtype == FLOAT16 for v in (*there.inputs, *there.outputs)):
            found["nodes"].append(node_name(node))
    return {**found, "compute": len(nodes)}


def _behind(node: ir.Node, by_value: Mapping[str | None, ir.Node]) -> ir.Node | None:
    """Return the producer of a node's value, or of its first reader's value that still exists."""
    waiting = [node]
    for reader in waiting:
        for value in reader.outputs:
            if value.name in by_value:
                return by_value[value.name]
            waiting += [use.node for use in value.uses() if use.node not in waiting]
    return None


def main() -> None:
    """Write the files of the folders that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    place = environment("autocast")
    if place.missing:
        parser.error(place.missing)
    names = given.names or sorted(p.parent.name for p in given.models.glob("*/model.onnx"))
    for name in names:
        found = chosen(given.models / name, place)
        text = json.dumps(found, indent=1, ensure_ascii=False)
        (given.models / name / FILE).write_text(text + "\n", encoding="utf-8")
        counts = f"{len(found.get('nodes', ()))} of {found.get('compute')} in FP32"
        print(f"{name}: {found.get('failure') or counts}")


if __name__ == "__main__":
    main()
