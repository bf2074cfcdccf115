"""One plan for two stand-in devices that need different ones: is it right on both, and smallest?

    python bench/run.py devices        all
    python -m bench.devices SEED …     those with these seeds; prints the result of each

Each trial draws, for each of two stand-ins, one or two nodes of a chain that must be FP32 there: if
low, their result is a third too large. So the smallest plan that is right on both is known: all of
these nodes. TensorRT and libcuda are those of `tests/fake_tensorrt`; the command and its workers
are real.
"""

from __future__ import annotations

import json
import random
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import halfwise
from bench.engine_faults import quick_times
from bench.figures import Figure, at_most, equal, reported
from bench.runs import Workbench
from halfwise.records import Run
from halfwise.tensorrt.workers import configuration
from tests.fake_tensorrt.start import build_cuda_library, worker_command

DEVICES = ("orin", "a100")
NODES = 16
BUILDS = 12
"""Builds per kind of device: finding a needed node takes up to three."""
TRIALS = range(8)
OFF = 4 / 3


@dataclass(frozen=True)
class Trial:
    """What two devices need.

    Attributes:
        needed: Nodes that must be FP32, by device.
        plan: Nodes that the run keeps.
        run: Its record.
    """

    needed: dict[str, frozenset[str]]
    plan: frozenset[str]
    run: Run

    @property
    def differ(self) -> bool:
        """Whether the nodes needed on each device are not enough on the other."""
        one, other = self.needed.values()
        return not (one <= other or other <= one)

    @property
    def right(self) -> bool:
        """Whether the engines of both devices passed on held-out data."""
        judged = [e.verdict is not None and e.verdict.passed for e in self.run.devices]
        return self.run.verdict.passed and judged == [True, True]

    @property
    def smallest(self) -> bool:
        """Whether the plan is exactly what the two devices need."""
        return self.plan == frozenset().union(*self.needed.values())

    @property
    def builds(self) -> int:
        """Builds on the device with the most."""
        return max(len(engines.builds) for engines in self.run.devices)


def tried(seed: int, folder: Path, library: Path) -> Trial:
    """Fix the chain on two stand-ins with needs drawn from `seed`; `folder` is created."""
    folder.mkdir()
    drawn = random.Random(seed)  # noqa: S311 - what is drawn has to be the same each time
    names = [f"n{i}" for i in range(NODES)]
    needed = {d: frozenset(drawn.sample(names, drawn.choice((1, 2)))) for d in DEVICES}
    lines = ["[workers]"]
    for number, (name, nodes) in enumerate(needed.items()):
        gpu = {"HALFWISE_FAKE_CUDA_NAME": name, "HALFWISE_FAKE_CUDA_UUID": str(number)}
        lossy = dict.fromkeys(sorted(nodes), OFF)
        command = worker_command(folder / name, library, lossy=lossy, environment=gpu)
        lines.append(f"{json.dumps(name)} = {json.dumps(shlex.join(command))}")
    file = configuration({"XDG_CONFIG_HOME": str(folder)})
    file.parent.mkdir()
    file.write_text("\n".join(lines), encoding="utf-8")
    with _in(folder), quick_times():
        run = halfwise.fix(
            chain(names),
            {"x": samples(seed)},
            target="tensorrt",
            trt_worker=list(DEVICES),
            builds=1,
            max_builds=BUILDS,
            allow_random=True,
        ).run
    plan = () if run.plan is None else (kept.node for kept in run.plan.keep)
    return Trial(needed, frozenset(plan), run)


def chain(names: Sequence[str]) -> onnx.ModelProto:
    """Return a chain of products, for which FP16 is enough."""
    nodes, weights, last = [], [], "x"
    for i, name in enumerate(names):
        factor = (1 + 0.02 * np.cos(np.arange(32) + i)).astype(np.float32)
        weights.append(numpy_helper.from_array(factor, f"w{i}"))
        nodes.append(helper.make_node("Mul", [last, f"w{i}"], [f"{name}_out"], name=name))
        last = f"{name}_out"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 32]) for n in ("x", last)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def samples(seed: int) -> NDArray[np.float32]:
    """Return f32[8, 1, 32], drawn."""
    return np.random.default_rng(seed).uniform(0.5, 1.5, (8, 1, 32)).astype(np.float32)


@contextmanager
def _in(folder: Path) -> Iterator[None]:
    """Work in a folder that has the user's configuration, too."""
    with chdir(folder), mock.patch.dict("os.environ", {"XDG_CONFIG_HOME": str(folder)}):
        yield


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Run all trials; nothing is skipped if there is a C compiler."""
    folder = bench.folder / "devices"
    folder.mkdir()
    try:
        library = build_cuda_library(folder)
    except RuntimeError as error:
        return [], str(error)
    found = [tried(seed, folder / str(seed), library) for seed in TRIALS]
    bench.details["devices"] = [
        {
            "needed": {device: sorted(nodes) for device, nodes in trial.needed.items()},
            "plan": sorted(trial.plan),
            "builds": trial.builds,
        }
        for trial in found
    ]
    total = len(found)
    return [
        reported(f"pairs that need different plans, of {total}", sum(t.differ for t in found)),
        equal("right on both devices", sum(t.right for t in found), total),
        equal("smallest", sum(t.smallest for t in found), total),
        equal(
            "told that no node can go",
            sum(t.run.plan is not None and t.run.plan.minimal for t in found),
            total,
        ),
        at_most("builds per device", max(t.builds for t in found), 2 * BUILDS + 3),
        reported("builds per device, mean", sum(t.builds for t in found) / total),
    ], None


def main(seeds: Sequence[str]) -> None:
    """Run the trials with these seeds."""
    with tempfile.TemporaryDirectory() as name:
        library = build_cuda_library(Path(name))
        for seed in map(int, seeds):
            trial = tried(seed, Path(name) / str(seed), library)
            needed = {device: sorted(nodes) for device, nodes in trial.needed.items()}
            print(f"{seed}: {needed}; plan {sorted(trial.plan)}; {trial.builds} builds")
            print(f"   right {trial.right}, smallest {trial.smallest}, differ {trial.differ}")


if __name__ == "__main__":
    main(sys.argv[1:])
