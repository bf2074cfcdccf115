"""Models of 500 and 5,000 nodes with 20 faults each: what planning costs as graphs grow.

Every second of `halfwise fix` is one of three. *Evaluation* is what ONNX Runtime spends running
models: the reference, its observation, trials, verdicts. *Sessions* is what ONNX Runtime spends
loading them. All else is *planning and rewriting*: loading and checking the model, building
emulations and probes, guards, the search, placing Casts, rewriting, writing the result. It runs on
the main thread and ONNX Runtime on others, so that thread's processor time tells how it grows on a
busy machine too.

The search is measured without repairs, which would leave nothing to find. With repairs the models
are fixed once more: all faults are mended, after a longer wait.

`python bench/scale.py MODEL INPUTS RUN [OPTIONS]` runs `halfwise fix` and prints these three.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import repeated_blocks
from bench.figures import Figure, at_most, equal, reported
from bench.runs import FINISHED, ROOT, CommandFailed, Workbench
from halfwise import cli, compare, report
from halfwise.records import Run

FEW, MANY = 500, 5000
FAULTS, SAMPLES = 20, 8
GROWTH = 12.0
COMPARING = 25.0
"""Growth of `compare`: ten times the nodes, and what ONNX Runtime takes to load so many outputs."""


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures; nothing is ever skipped."""
    figures: list[Figure] = []
    whole, processor = {}, {}
    for nodes in (FEW, MANY):
        folder = bench.folder / f"scale-{nodes}"
        run, spent = fixed(folder, nodes)
        whole[nodes], processor[nodes] = spent["whole"], spent["processor"]
        figures += [*found(nodes, run), *times(nodes, run, spent)]
        figures += repaired(nodes, *command(folder, "repaired"))
    few, many = (comparing(bench.folder / f"scale-{nodes}") for nodes in (FEW, MANY))
    told = f"{few:.2g} and {many:.2g} s, each node with its TF32 form"
    figures.append(
        at_most(f"compare, processor time, {MANY} nodes / {FEW}", many / few, COMPARING, told)
    )
    grown = {"whole run": whole, "planning and rewriting, processor time": processor}
    return [
        *(
            at_most(f"{what}, {MANY} nodes / {FEW}", took[MANY] / took[FEW], GROWTH)
            for what, took in grown.items()
        ),
        *figures,
    ], None


def fixed(folder: Path, nodes: int) -> tuple[Run, dict[str, float]]:
    """Return the run on a model of so many nodes, and what `main` prints."""
    folder.mkdir()
    onnx.save(repeated_blocks.model(nodes, FAULTS), folder / "model.onnx")
    np.savez(folder / "inputs.npz", x=repeated_blocks.samples(SAMPLES))
    return command(folder, "run", "--no-repair")


def command(folder: Path, run: str, *options: str) -> tuple[Run, dict[str, float]]:
    """Return what `fixed` does, of a model that is there already."""
    files = [folder / name for name in ("model.onnx", "inputs.npz", run)]
    words = [sys.executable, __file__, *map(str, files), *options]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode not in FINISHED:
        raise CommandFailed(f"halfwise fix of {files[0]}: {done.stderr.strip()[-300:]}")
    return report(files[2]), json.loads(done.stdout.splitlines()[-1])


def comparing(folder: Path) -> float:
    """Return the processor seconds that `compare` takes on what `fixed` wrote."""
    started = time.process_time()
    compare(folder / "model.onnx", folder / "inputs.npz", b="emulation:tf32")
    return time.process_time() - started


def found(nodes: int, run: Run) -> list[Figure]:
    """Return what the run found, against what was planted."""
    assert run.plan is not None
    places = {keep.node.partition("/")[0] for keep in run.plan.keep}
    faults = {place for place in places if place.startswith("fault_")}
    return [
        equal(f"{nodes} nodes: faults found", len(faults), FAULTS),
        equal(f"{nodes} nodes: kept outside them", len(places - faults), 0),
        equal(f"{nodes} nodes: plan is minimal", run.plan.minimal, wanted=True),
        equal(f"{nodes} nodes: verdict passed", run.verdict.passed, wanted=True),
        reported(f"{nodes} nodes: kept nodes", len(run.plan.keep)),
    ]


def repaired(nodes: int, run: Run, spent: dict[str, float]) -> list[Figure]:
    """Return whether repairs mend all faults, and what that takes."""
    assert run.plan is not None
    return [
        equal(f"{nodes} nodes: repaired: kept nodes", len(run.plan.keep), 0),
        equal(f"{nodes} nodes: repaired: verdict passed", run.verdict.passed, wanted=True),
        *times(nodes, run, spent, "repaired: "),
    ]


def times(nodes: int, run: Run, spent: dict[str, float], how: str = "") -> list[Figure]:
    """Return where the time went."""
    stages = ", ".join(f"{s} {t:.1f} s" for s, t in run.cost.stage_seconds.items())
    return [
        reported(f"{nodes} nodes: {how}planning and rewriting (s)", spent["planning"]),
        reported(f"{nodes} nodes: {how}the same, processor time (s)", spent["processor"]),
        reported(f"{nodes} nodes: {how}evaluation (s)", spent["evaluation"]),
        reported(f"{nodes} nodes: {how}sessions (s)", spent["sessions"]),
        reported(f"{nodes} nodes: {how}whole (s)", spent["whole"], stages),
        reported(f"{nodes} nodes: {how}evaluations", run.cost.evaluations),
    ]


def main(model: str, inputs: str, run: str, *options: str) -> None:
    """Run `halfwise fix` as the command line does, and print where the seconds went."""
    spent = {"evaluation": 0.0, "sessions": 0.0}

    def timed(owner: Any, name: str, kind: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                spent[kind] += time.perf_counter() - started

        setattr(owner, name, call)

    timed(onnxruntime.InferenceSession, "run", "evaluation")
    timed(onnxruntime.InferenceSession, "__init__", "sessions")
    given = ("--inputs", inputs, "--allow", "random", "-o", run, *options)
    sys.argv = ["halfwise", "fix", model, *given]
    started, busy = time.perf_counter(), time.thread_time()
    try:
        cli.main()
    finally:
        whole = time.perf_counter() - started
        processor = time.thread_time() - busy
        planning = whole - sum(spent.values())
        print(json.dumps({**spent, "whole": whole, "planning": planning, "processor": processor}))


if __name__ == "__main__":
    main(*sys.argv[1:])
