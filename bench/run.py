"""Runs the benches, writes `bench/results/<name>.json` each, and prints a table.

    python bench/run.py              all of them; vit_b and peers take a quarter of an hour each
    python bench/run.py demo …       those named

Exits with 1 if a figure is not reached. Models that are not in the repository are taken from the
folder that HALFWISE_BENCH_MODELS names; without it, benches that need them are skipped, and the
table says so. bench/README.md describes that folder and what each bench shows.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import (
    agreement,
    attack,
    coverage,
    cuda,
    demo,
    devices,
    divergence,
    drop_in,
    engine_faults,
    expected,
    exponents,
    folding,
    fused,
    fuzz,
    int8,
    intake,
    isolation,
    judges,
    large,
    lint,
    noise,
    onnx_backend,
    overhead,
    page,
    peak,
    peers,
    pipelines,
    plans,
    planted_faults,
    preprocessing,
    quantised_files,
    question,
    quick,
    real_models,
    recognised,
    reduced,
    repair_graphs,
    repairs,
    scale,
    scales,
    search_cost,
    sources,
    steady,
    strip,
    targets,
    traffic,
    vit_b,
    weights,
    worth,
)
from bench.figures import Figure, Result, equal, table
from bench.runs import MODELS_VARIABLE, CommandFailed, Workbench, models_folder
from halfwise.errors import HalfwiseError

RESULTS = Path(__file__).resolve().parent / "results"
CORES = 2
"""The figures are for two cores, so benches use no more."""

Measure = Callable[[Workbench], tuple[list[Figure], str | None]]
BENCHES: Mapping[str, Measure] = {
    "demo": demo.measure,
    "real_models": real_models.measure,
    "recognised": recognised.measure,
    "fused": fused.measure,
    "reduced": reduced.measure,
    "overhead": overhead.measure,
    "search_cost": search_cost.measure,
    "plans": plans.measure,
    "repairs": repairs.measure,
    "repair_graphs": repair_graphs.measure,
    "exponents": exponents.measure,
    "question": question.measure,
    "quick": quick.measure,
    "steady": steady.measure,
    "agreement": agreement.measure,
    "judges": judges.measure,
    "vit_b": vit_b.measure,
    "large": large.measure,
    "peak": peak.measure,
    "scale": scale.measure,
    "page": page.measure,
    "strip": strip.measure,
    "sources": sources.measure,
    "onnx_backend": onnx_backend.measure,
    "intake": intake.measure,
    "lint": lint.measure,
    "folding": folding.measure,
    "fuzz": fuzz.measure,
    "devices": devices.measure,
    "divergence": divergence.measure,
    "isolation": isolation.measure,
    "engine_faults": engine_faults.measure,
    "planted_faults": planted_faults.measure,
    "preprocessing": preprocessing.measure,
    "noise": noise.measure,
    "coverage": coverage.measure,
    "targets": targets.measure,
    "traffic": traffic.measure,
    "worth": worth.measure,
    "scales": scales.measure,
    "int8": int8.measure,
    "quantised_files": quantised_files.measure,
    "expected": expected.measure,
    "attack": attack.measure,
    "cuda": cuda.measure,
    "peers": peers.measure,
    "drop_in": drop_in.measure,
    "pipelines": pipelines.measure,
    "weights": weights.measure,
}


def run(
    names: Sequence[str],
    bench: Workbench,
    results: Path,
    benches: Mapping[str, Measure] = BENCHES,
) -> list[Result]:
    """Run the named benches, write a file for each that measured, and return what they found.

    If halfwise fails in a bench, one figure says so; the other benches continue.
    """
    found = []
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            figures, skipped = benches[name](bench)
        except (CommandFailed, HalfwiseError) as error:
            figures, skipped = [equal("ran to its end", str(error), "without error")], None
        variable = f"{MODELS_VARIABLE}=DIR " if bench.models else ""
        command = f"{variable}python bench/run.py {name}"
        told = bench.details.get(name)
        found.append(Result(name, command, figures, skipped, details=told))
        if figures:
            found[-1].save(results)
    return found


def use_two_cores() -> None:
    """Restrict this process and its children to two of the cores that it may use."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"among {', '.join(BENCHES)}")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="peers: take what the same tool already made of a model",
    )
    given = parser.parse_args(arguments)
    names = given.names or list(BENCHES)
    if unknown := [name for name in names if name not in BENCHES]:
        parser.error(f"no bench is called {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    use_two_cores()
    with tempfile.TemporaryDirectory(prefix="halfwise-bench-") as folder:
        bench = Workbench(Path(folder), models_folder(), resume=given.resume)
        results = run(names, bench, RESULTS)
    print(table(results))
    return 0 if all(result.reached for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
