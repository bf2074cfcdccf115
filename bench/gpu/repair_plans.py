"""Finds repairs for the models of `bench.gpu.repairs`, and plans without repairs; needs no GPU.

    python -m bench.gpu.repair_plans [NAME …]

writes `bench/results/gpu_repair_plans.json`: names of nodes and records of repairs, from which a
GPU host remakes the models. Takes half an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import onnx

import halfwise
from bench.gpu import models
from bench.gpu.models import Made
from bench.gpu.resnet import IMAGE_DEVIATION, IMAGE_MEAN, resnet
from bench.runs import ROOT
from halfwise.fixing.repair import making
from halfwise.fixing.repair.scale import Scale
from halfwise.records import Repair

FILE = ROOT / "bench" / "results" / "gpu_repair_plans.json"
SCALE = "scaled"
"""Name of the plan that changes only the scale of tensors."""


@dataclass(frozen=True)
class Scaled:
    """A model with a planted factor that does not change its function, and the model without it.

    Attributes:
        make: Makes it, with samples.
        plain: Makes it without the factor: FP16 is enough for it.
        images: Makes further samples [count, *shape of one], from a count and a seed.
        recorded: Its name in gpu_rounds.json, where engines with its kept nodes passed.
        samples: Number taken for calibration and held out, each; None for all.
    """

    make: Callable[[], Made]
    plain: Callable[[], onnx.ModelProto]
    images: Callable[[int, int], np.ndarray]
    recorded: str | None = None
    samples: tuple[int, int] | None = None

    def few(self) -> Made:
        """Return the model with the samples that plans are found on."""
        made = self.make()
        seen, held = self.samples or (None, None)
        inputs = {name: array[:seen] for name, array in made.inputs.items()}
        return Made(
            made.model, inputs, {name: array[:held] for name, array in made.heldout.items()}
        )


SCALED: Mapping[str, Scaled] = {
    "resnet50": Scaled(
        models.resnet50,
        lambda: resnet(planted=1.0),
        lambda count, seed: models.photographs(IMAGE_MEAN, IMAGE_DEVIATION, count, seed),
        "resnet50",
    ),
    "vit_b": Scaled(
        models.vit_b16,
        lambda: models.vit_b16_scaled(1.0),
        lambda count, seed: models.photographs(0.5, 0.5, count, seed),
        "vit_b16",
        samples=(2, 1),
    ),
}


@dataclass(frozen=True)
class Planned:
    """The result of a run: repairs, and kept nodes of the repaired model."""

    keep: tuple[str, ...]
    repairs: tuple[Repair, ...] = ()


def planned(scaled: Scaled) -> dict[str, Planned]:
    """Return the plan without repairs, with them, and with changes of scale alone.

    Without repairs it is the plan of the recorded run, if there is one.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        scaled.few().save(folder)
        found = {"repaired": _fixed(folder)}
        if {repair.rule for repair in found["repaired"].repairs} != {"scale"}:
            with patch.object(making, "RULES", (Scale(),)):
                found[SCALE] = _fixed(folder)
        kept = _recorded(scaled.recorded)
        found["kept"] = Planned(kept) if kept else _fixed(folder, no_repair=True)
    return found


def _fixed(folder: Path, **options: Any) -> Planned:
    inputs, heldout = folder / "inputs.npz", folder / "heldout.npz"
    run = halfwise.fix(folder / "model.onnx", inputs, heldout=heldout, **options).run
    assert run.plan is not None
    assert run.verdict.passed
    return Planned(tuple(kept.node for kept in run.plan.keep), run.plan.repairs)


def _recorded(name: str | None) -> tuple[str, ...]:
    for run in json.loads(
        (ROOT / "bench" / "results" / "gpu_rounds.json").read_text(encoding="utf-8")
    ):
        if run["name"] == name:
            return tuple(run["rounds"][0][0])
    return ()


def read(path: Path) -> dict[str, dict[str, Planned]]:
    """Return all recorded plans, by model."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: {
            kind: Planned(
                tuple(plan["keep"]),
                msgspec.convert(plan["repairs"], tuple[Repair, ...], strict=False),
            )
            for kind, plan in plans.items()
        }
        for name, plans in found.items()
    }


def write(name: str, found: Mapping[str, Planned], path: Path) -> None:
    """Add the plans of a model to the recorded ones."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known[name] = {
        kind: {"keep": plan.keep, "repairs": [r.to_dict() for r in plan.repairs]}
        for kind, plan in found.items()
    }
    path.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Plan for the models that the command line names, by default all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*SCALED, []], metavar="NAME")
    given = parser.parse_args(arguments)
    for name in given.names or SCALED:
        found = planned(SCALED[name])
        write(name, found, FILE)
        for kind, plan in found.items():
            rules = ", ".join(sorted({r.rule for r in plan.repairs})) or "none"
            print(f"{name}, {kind}: {len(plan.keep)} kept, repairs: {rules}", flush=True)


if __name__ == "__main__":
    main()
