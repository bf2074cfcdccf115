"""A whole run on a model that needs no change, over plain inference on the same data.

Both run as processes, in turn. Plain inference makes one optimised session of ONNX Runtime, and
runs every sample once; it reports its time from creating the session (inference), and its whole
process is timed like the run's. Wall time is what a user waits; CPU time is valid on a busy machine
too, since the threads of neither spin while they wait.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.figures import Figure, at_most, equal, reported
from bench.runs import ROOT, Workbench
from bench.vit import crop, photographs
from examples.digits import vit

MOST = 6.0
"""The whole run over inference over the data."""
SAMPLES, ROUNDS = 48, 5
PLAIN = """
import json, sys, time
from pathlib import Path
import numpy as np, onnxruntime as ort

def clock():
    return time.perf_counter(), time.process_time()

started = clock()
options = ort.SessionOptions()
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
inputs = Path(sys.argv[2])
if inputs.is_dir():
    data = [dict(np.load(path)) for path in sorted(inputs.glob("*.npz"))]
else:
    stacked = dict(np.load(inputs))
    count = len(next(iter(stacked.values())))
    data = [{name: array[i] for name, array in stacked.items()} for i in range(count)]
ready = clock()
for sample in data:
    session.run(None, sample)
ended = clock()
print(json.dumps([[end - start for start, end in zip(a, ended)] for a in (started, ready)]))
"""
"""Plain inference over a folder of samples, or a file in which they are stacked."""


@dataclass(frozen=True)
class Took:
    """Times in seconds.

    Attributes:
        wall: What a clock shows.
        cpu: Of all threads, in user and system mode.
    """

    wall: float
    cpu: float


class Inference(NamedTuple):
    """Times of plain inference: from creating the session on, and of the runs alone."""

    whole: Took
    runs: Took


def inference(model: Path, inputs: Path) -> tuple[Inference, Took]:
    """Return the times that plain inference reports, and those of its process."""
    printed, process, _ = timed([sys.executable, "-c", PLAIN, str(model), str(inputs)])
    return Inference(*(Took(*each) for each in json.loads(printed))), process


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the ratios of each drawn model, in the median of the rounds."""
    figures: list[Figure] = []
    for name, make in MODELS.items():
        folder = bench.folder / f"quick-{name}"
        folder.mkdir()
        make(folder)
        figures += _figures(name, folder)
    return figures, None


def _figures(name: str, folder: Path) -> list[Figure]:
    model, inputs = folder / "model.onnx", folder / "inputs.npz"
    runs, plains, inners, codes = [], [], [], []
    for i in range(ROUNDS):
        inner, plain = inference(model, inputs)
        words = ["fix", str(model), "--inputs", str(inputs), "-o", str(folder / f"run{i}")]
        _, run, code = timed([sys.executable, "-m", "halfwise", *words])
        inners.append(inner.whole)
        plains.append(plain)
        runs.append(run)
        codes.append(code)
    record = json.loads((folder / "run0" / "run.json").read_text(encoding="utf-8"))

    def ratio(base: list[Took], which: str) -> float:
        pairs = zip(runs, base, strict=True)
        return float(statistics.median(getattr(r, which) / getattr(b, which) for r, b in pairs))

    each = 1000 * statistics.median(t.wall for t in inners) / SAMPLES
    note = f"{SAMPLES} samples of {each:.0f} ms; {_stages(record)}"
    return [
        equal(f"{name}: nothing kept, passed", _is_plain(record, codes), wanted=True),
        at_most(f"{name}: CPU time of the run / of inference", ratio(inners, "cpu"), MOST, note),
        reported(f"{name}: wall time of the run / of inference", ratio(inners, "wall")),
        reported(f"{name}: CPU time of the run / of a process of inference", ratio(plains, "cpu")),
        reported(
            f"{name}: wall time of the run / of a process of inference", ratio(plains, "wall")
        ),
    ]


def _is_plain(record: dict[str, Any], codes: list[int]) -> bool:
    return not record["plan"]["keep"] and set(codes) == {0}


def _stages(record: dict[str, Any]) -> str:
    spent = sorted(record["cost"]["stage_seconds"].items(), key=lambda item: -item[1])
    return ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in spent if seconds >= 0.1)


def timed(command: list[str]) -> tuple[str, Took, int]:
    """Return the output of a command, how long it took, and its exit code."""
    # pip compiles modules as it installs them; with this variable every run would do so again.
    given = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started, before = time.perf_counter(), os.times()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=given)
    after, wall = os.times(), time.perf_counter() - started
    user = after.children_user - before.children_user
    return (
        done.stdout,
        Took(wall, user + after.children_system - before.children_system),
        (done.returncode),
    )


def write_convolutions(folder: Path, *, width: int = 48, seed: int = 0) -> None:
    """Write a residual network of 16 convolutions without norms, on crops of photographs."""
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    x, channels = "x", 3

    def conv(source: str, into: int, *, size: int, stride: int, gain: float = 1.0) -> str:
        name = f"conv{len(weights) // 2}"
        deviation = gain * (2 / (channels * size * size)) ** 0.5
        kernel = rng.normal(0, deviation, (into, channels, size, size)).astype(np.float32)
        bias = rng.normal(0, 0.02, into).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"{name}.weight"))
        weights.append(numpy_helper.from_array(bias, f"{name}.bias"))
        given = [source, f"{name}.weight", f"{name}.bias"]
        pads = [size // 2] * 4
        made = helper.make_node("Conv", given, [name], name, strides=[stride] * 2, pads=pads)
        nodes.append(made)
        return name

    def relu(source: str) -> str:
        nodes.append(helper.make_node("Relu", [source], [f"{source}.relu"], f"{source}.relu"))
        return f"{source}.relu"

    x, channels = relu(conv(x, width, size=7, stride=2)), width
    for stage in range(4):
        if stage:
            x = relu(conv(x, 2 * channels, size=3, stride=2))
            channels *= 2
        for _ in range(2):
            first = relu(conv(x, channels, size=3, stride=1))
            second = conv(first, channels, size=3, stride=1, gain=0.3)
            nodes.append(helper.make_node("Add", [x, second], [f"{second}.sum"], f"{second}.sum"))
            x = relu(f"{second}.sum")
    weights.append(
        numpy_helper.from_array(
            rng.normal(0, channels**-0.5, (channels, 100)).astype(np.float32), "head"
        )
    )
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["pooled"], "pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"))
    nodes.append(helper.make_node("MatMul", ["flat", "head"], ["y"], "head"))
    _write(folder, nodes, weights, rng)


def _write(
    folder: Path,
    nodes: list[onnx.NodeProto],
    weights: list[onnx.TensorProto],
    rng: np.random.Generator,
) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 224, 224])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 100])
    graph = helper.make_graph(nodes, "residual", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    _write_inputs(folder, "x", rng)


def _write_inputs(folder: Path, name: str, rng: np.random.Generator) -> None:
    sources = photographs(rng)
    drawn = [crop(sources[rng.integers(len(sources))], rng)[None] for _ in range(SAMPLES)]
    given: dict[str, Any] = {name: np.stack(drawn)}
    np.savez(folder / "inputs.npz", **given)


def write_transformer(folder: Path, *, seed: int = 0) -> None:
    """Write a vision transformer of 8 blocks of width 384, on crops of photographs."""
    weights = vit.random_weights(
        seed, dim=384, depth=8, heads=6, patch=16, image=224, classes=100, channels=3
    )
    model = vit.build_vit(weights, heads=6, patch=16, image=224)
    onnx.save(model, folder / "model.onnx")
    _write_inputs(folder, model.graph.input[0].name, np.random.default_rng(seed))


MODELS: Mapping[str, Callable[[Path], None]] = {
    "convolutions": write_convolutions,
    "transformer": write_transformer,
}
