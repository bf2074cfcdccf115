"""Finds plans with INT8 for the small models of `bench.gpu.int8`, without a GPU.

    python -m bench.gpu.int8_plans [NAME …]

writes `bench/results/gpu_int8_plans.json`: names of nodes and the method of ranges, from which a
GPU host remakes the quantised models. Each model takes up to two minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import halfwise
from bench.gpu import models
from bench.gpu.models import Made
from bench.gpu.networks import NETWORKS
from bench.runs import ROOT
from halfwise.errors import HalfwiseError

FILE = ROOT / "bench" / "results" / "gpu_int8_plans.json"
REL_MAX = 0.02
"""What is accepted: twice the default tolerance, at which INT8 leaves some nodes of most models."""
SMALL: Mapping[str, Callable[[], Made]] = {
    "digits": models.digits,
    "small_conv": models.small_conv,
    **{name: make for name, make in NETWORKS.items() if not name.startswith(("lstm", "gru"))},
    "digits_ffn": models.digits_ffn,
}


_NODES = ("keep", "movement", "int8", "left_out")


@dataclass(frozen=True)
class Planned:
    """The plan of a run.

    Attributes:
        keep: Compute nodes in FP32.
        movement: Nodes that move data between them.
        int8: Nodes in INT8.
        left_out: Nodes for which INT8 is not enough.
    """

    keep: tuple[str, ...]
    movement: tuple[str, ...]
    int8: tuple[str, ...]
    left_out: tuple[str, ...]


def planned(made: Made) -> Planned:
    """Return the plan of `fix --to int8` without repairs.

    Raises:
        ValueError: nothing can have INT8, or no plan passes.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        made.save(folder)
        run = halfwise.fix(
            folder / "model.onnx",
            folder / "inputs.npz",
            heldout=folder / "heldout.npz",
            to="int8",
            rel_max=REL_MAX,
            no_repair=True,
        ).run
    plan = run.plan
    if plan is None or not plan.int8:
        raise ValueError("there is no plan with INT8")
    return Planned(
        tuple(kept.node for kept in plan.keep),
        tuple(plan.data_movement),
        tuple(plan.int8),
        tuple(kept.node for kept in plan.left_out),
    )


def read(path: Path = FILE) -> dict[str, Planned]:
    """Return all recorded plans, by model."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return {name: _planned(plan) for name, plan in found.items()}


def _planned(plan: Mapping[str, Any]) -> Planned:
    return Planned(*(tuple(plan[key]) for key in _NODES))


def write(name: str, plan: Planned, path: Path = FILE) -> None:
    """Record the plan of a model."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    text = json.dumps({**found, name: asdict(plan)}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Plan for the models that the command line names, by default all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"among {', '.join(SMALL)}")
    given = parser.parse_args()
    for name in given.names or list(SMALL):
        if name not in SMALL:
            parser.error(f"there is no {name}, but {', '.join(SMALL)}")
        try:
            plan = planned(SMALL[name]())
        except (ValueError, HalfwiseError) as error:
            print(f"{name}: {error}", flush=True)
            continue
        write(name, plan)
        kept, left, whole = len(plan.keep), len(plan.left_out), len(plan.int8)
        print(f"{name}: {whole} INT8, {left} left out, {kept} kept", flush=True)


if __name__ == "__main__":
    main()
