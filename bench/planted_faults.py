"""24 faults planted in the stand-in for TensorRT: does `diagnose` find where they are?

    python bench/run.py planted_faults            all
    python -m bench.planted_faults [PART …]       those whose name holds a part; prints what is told

Operators and fusions of 2 to 4 nodes that compute something else, in all builds, only where nothing
of them is marked, or at one batch size; NaN; builders that crash at a pattern or refuse it. The
networks (`planted_networks.py`) have 50 to 500 nodes and are right in FP16. A fault is localised
where `diagnose` names at most four nodes and one of them is planted, or planted nodes alone.
TensorRT and libcuda are those of `tests/fake_tensorrt`, the command and its worker the real ones.
"""

from __future__ import annotations

import math
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

import halfwise
from bench.figures import Figure, at_least, equal, reported
from bench.planted_networks import FAMILIES, Drawn
from bench.runs import Workbench
from halfwise.errors import HalfwiseError
from halfwise.records import Run, Rung
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.model import read_model
from tests.fake_tensorrt.regions import Region, Wrong
from tests.fake_tensorrt.start import build_cuda_library, worker_command

WANTED = 23
NAMED = 4
"""Nodes that may be named."""
AT_ONCE = 2
DB30 = 10 ** (-30 / 20)
DB20 = 0.1
_PRECISION = ("tf32", "precision")


def builds_allowed(nodes: int) -> float:
    """Return how many builds may be used on a graph of so many nodes."""
    return 4 + 2 * math.log2(nodes)


@dataclass(frozen=True)
class Trial:
    """One fault.

    Attributes:
        name: What is planted.
        family: Of networks.
        blocks: How deep the network is.
        fault: What goes wrong.
        batches: Sizes of the samples' first axis.
        version: Of TensorRT.
    """

    name: str
    family: str
    blocks: int
    fault: Wrong | Fault
    batches: tuple[int, ...] = (2, 2)
    version: str = "8.6.1"

    def network(self) -> Drawn:
        """Return the network."""
        return FAMILIES[self.family](self.blocks, sum(map(ord, self.name)), list(self.batches))

    def knobs(self) -> dict[str, Any]:
        """Return what the stand-in is told."""
        return {"faults" if isinstance(self.fault, Fault) else "wrong": [self.fault]}

    def planted(self, drawn: Drawn) -> frozenset[str]:
        """Return the nodes of the fault; there is at least one place for it."""
        region = self.fault.region if isinstance(self.fault, Fault) else self.fault
        assert region is not None
        graph = read_model(onnx.load_from_string(drawn.proto.SerializeToString())).graph
        places = region.places(graph, set(), 3)
        assert places, self.name
        return frozenset(str(node.name) for place in places for node in place)


def _at(scope: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{scope}/{name}" for name in names)


def _operators() -> list[Trial]:
    conv, norm = _at("layer4", "conv2/Conv"), _at("blocks.5/norm2", "Div")
    return [
        Trial("a convolution by 1.1", "convolutions", 8, Wrong(nodes=conv, do="scale", size=0.1)),
        Trial("every Softmax, rolled", "transformer", 3, Wrong(ops=("Softmax",), do="roll")),
        Trial("every GRU, garbage", "recurrent", 5, Wrong(ops=("GRU",))),
        Trial("a GRU, 30 dB", "recurrent", 12, Wrong(nodes=_at("gru6", "GRU"), size=DB30)),
        Trial("a Div, 30 dB", "transformer", 10, Wrong(nodes=norm, size=DB30)),
        Trial("an AveragePool, zero", "branches", 16, Wrong(ops=("AveragePool",), do="zero")),
    ]


def _fusions() -> list[Trial]:
    conv = _at("layer9", "conv1/Conv", "bn1/BatchNormalization", "Relu")
    norm = _at("blocks.2/norm1", "Sub", "Mul", "ReduceMean_1", "Add")
    gelu = _at("blocks.7/mlp/act", "Erf", "Add", "Mul")

    def fusion(nodes: tuple[str, ...], **how: Any) -> Wrong:
        return Wrong(nodes=nodes, unless="between", **how)

    return [
        Trial("Conv, norm and Relu fused", "convolutions", 20, fusion(conv, size=0.3)),
        Trial("part of a norm fused, 30 dB", "transformer", 6, fusion(norm, size=DB30)),
        Trial(
            *("Conv and Tanh fused, scaled", "branches", 22),
            fusion(_at("mixed12/b3", "Conv", "Tanh"), do="scale", size=0.2),
        ),
        Trial("part of a GELU fused, rolled", "transformer", 9, fusion(gelu, do="roll")),
        Trial(
            *("Transpose and GRU fused", "recurrent", 9),
            fusion(_at("gru4", "Transpose", "GRU"), size=DB20),
            (2, 2),
            "10.16.1",
        ),
        Trial(
            "Add and Relu fused, zero",
            "convolutions",
            55,
            fusion(_at("layer30", "Add", "Relu_1"), do="zero"),
        ),
    ]


def _unmarked() -> list[Trial]:
    def unmarked(nodes: tuple[str, ...], **how: Any) -> Wrong:
        return Wrong(nodes=nodes, unless="touched", **how)

    attention = _at("blocks.6/attn", "MatMul", "Mul", "Softmax", "MatMul_1")
    convs = _at("layer6", "conv2/Conv", "bn2/BatchNormalization", "Add")
    return [
        Trial("three nodes, unmarked", "convolutions", 13, unmarked(convs, size=0.5)),
        Trial(
            *("a Softmax, unmarked", "transformer", 4),
            unmarked(_at("blocks.1/attn", "Softmax"), do="roll"),
        ),
        Trial(
            *("Concat and Conv, unmarked", "branches", 8),
            unmarked(_at("mixed3", "Concat", "Conv"), do="roll"),
        ),
        Trial(
            *("a GRU, unmarked, 30 dB", "recurrent", 16),
            unmarked(_at("gru10", "GRU"), size=DB30),
        ),
        Trial("an attention, unmarked", "transformer", 8, unmarked(attention, size=0.5)),
    ]


def _others() -> list[Trial]:
    batch = Wrong(nodes=_at("layer3", "bn1/BatchNormalization"), size=DB20, batch=4)
    first = Wrong(
        nodes=_at("blocks.2/mlp", "fc1/MatMul", "fc1/Add"), unless="between", do="roll", batch=1
    )
    nan = Wrong(nodes=_at("layer21", "bn2/BatchNormalization"), do="nan")
    fused = Wrong(nodes=_at("blocks.4/norm2", "Sqrt", "Div"), unless="between", do="nan")
    crash = Region(nodes=_at("blocks.1/attn", "Softmax", "MatMul_1"))
    pattern = Region(ops=("Concat", "Conv", "BatchNormalization"))
    marks = Region(nodes=_at("gru3", "Transpose", "GRU"), unless="between")
    return [
        Trial("a norm at batch 4", "convolutions", 10, batch, (1, 2, 4)),
        Trial("MatMul and Add at batch 1", "transformer", 4, first, (1, 2, 4)),
        Trial("NaN of a norm", "convolutions", 34, nan),
        Trial("NaN of a fusion", "transformer", 7, fused),
        Trial("a crash at a pair", "transformer", 3, Fault("build", "segv", region=crash)),
        Trial("a refusal at a chain", "branches", 4, Fault("build", "foreign", region=pattern)),
        Trial("out of memory, unmarked", "recurrent", 7, Fault("build", "memory", region=marks)),
    ]


def trials() -> list[Trial]:
    """Return all faults."""
    return [*_operators(), *_fusions(), *_unmarked(), *_others()]


@dataclass(frozen=True)
class Found:
    """What was told of one fault.

    Attributes:
        nodes: Of the network.
        planted: Nodes of the fault.
        named: Nodes that the diagnosis names.
        builds: How many builds it used.
        rung: The rung that failed; None where none did.
        seconds: What it took.
        error: Why there is no diagnosis; empty where there is one.
        told: What the rung says.
    """

    nodes: int
    planted: Sequence[str]
    named: Sequence[str]
    builds: int
    rung: str | None
    seconds: float
    error: str = ""
    told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def localised(self) -> bool:
        """Whether the named nodes are few, and one of them or all of them are planted."""
        named, planted = set(self.named), set(self.planted)
        few = len(named) <= NAMED and bool(named & planted)
        return few or (bool(named) and named <= planted)

    @property
    def in_time(self) -> bool:
        """Whether the builds are few enough."""
        return self.builds <= builds_allowed(self.nodes)

    @property
    def problems(self) -> list[str]:
        """What is not as it should be."""
        places = f"{len(self.named)} nodes named ({', '.join(self.named[:6])})"
        return [
            *([] if self.localised else [places]),
            *([] if self.in_time else [f"{self.builds} builds"]),
            *([f"blamed on {self.rung}"] if self.rung in _PRECISION else []),
            *([self.error] if self.error else []),
        ]


def diagnosed(trial: Trial, folder: Path, library: Path) -> Found:
    """Diagnose the network of a trial with engines of the stand-in; `folder` is made."""
    folder.mkdir()
    drawn = trial.network()
    command = worker_command(folder, library, trial.version, **trial.knobs())
    started, run, error = time.monotonic(), None, ""
    try:
        run = halfwise.diagnose(
            drawn.proto,
            drawn.samples,
            out=folder / "run",
            target="tensorrt",
            trt_command=shlex.join(command),
            allow_random=True,
        ).run
    except HalfwiseError as failed:
        error = f"{type(failed).__name__}: {failed.message}"
    rung = _failed(run)
    builds = folder / "worker-counts" / "build"
    return Found(
        nodes=drawn.nodes,
        planted=sorted(trial.planted(drawn)),
        named=() if rung is None else rung.nodes,
        builds=builds.stat().st_size if builds.exists() else 0,
        rung=None if rung is None else rung.name,
        seconds=time.monotonic() - started,
        error=error,
        told={} if rung is None else rung.model_dump(mode="json", exclude_defaults=True),
    )


def _failed(run: Run | None) -> Rung | None:
    rungs = () if run is None or run.diagnosis is None else run.diagnosis
    return next((rung for rung in rungs if rung.passed is False), None)


def _all(planned: Sequence[Trial], folder: Path, library: Path) -> list[Found]:
    def tried(number: int) -> Found:
        trial = planned[number]
        found = diagnosed(trial, folder / str(number), library)
        said = "; ".join(found.problems) or "right"
        print(
            f"{number + 1} {trial.name} ({found.nodes} nodes, {found.builds} builds of "
            f"{builds_allowed(found.nodes):.1f}, {found.seconds:.0f} s): {said}",
            file=sys.stderr,
            flush=True,
        )
        return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(tried, range(len(planned))))


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Let all faults happen; nothing is skipped where there is a C compiler."""
    folder = bench.folder / "planted_faults"
    folder.mkdir()
    try:
        library = build_cuda_library(folder)
    except RuntimeError as error:
        return [], str(error)
    planned = trials()
    found = _all(planned, folder, library)
    bench.details["planted_faults"] = {
        trial.name: {
            "nodes": one.nodes,
            "planted": one.planted,
            "named": one.named,
            "builds": one.builds,
            "problems": one.problems,
        }
        for trial, one in zip(planned, found, strict=True)
    }
    share = [one.builds / builds_allowed(one.nodes) for one in found]
    return [
        at_least(f"faults localised, of {len(found)}", sum(f.localised for f in found), WANTED),
        equal("within 4 + 2 log2(nodes) builds", sum(f.in_time for f in found), len(found)),
        equal("blamed on precision", sum(f.rung in _PRECISION for f in found), 0),
        reported("largest share of the builds allowed", max(share)),
        reported("seconds for each", sum(one.seconds for one in found) / len(found)),
    ], None


def main(parts: Sequence[str]) -> None:
    """Diagnose the faults whose names hold one of the parts, and print what is told."""
    chosen = [t for t in trials() if not parts or any(part in t.name for part in parts)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for trial, found in zip(
            chosen, _all(chosen, folder, build_cuda_library(folder)), strict=True
        ):
            print(f"\n{trial.name}: planted {', '.join(found.planted)}; rung {found.rung}")
            print(found.told.get("cause", found.error))
            for sign in found.told.get("evidence", ()):
                print(f"  {sign.get('severity')}: {sign.get('text')} {sign.get('nodes', '')}")


if __name__ == "__main__":
    main(sys.argv[1:])
