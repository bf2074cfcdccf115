"""Exponents of a transformer of 4,700 nodes, half of whose LayerNorms overflow: time and reach."""

from __future__ import annotations

import time

import numpy as np

from bench import vit as planting
from bench.figures import Figure, at_most, equal
from bench.runs import Workbench
from examples.digits import vit
from halfwise.case import Settings
from halfwise.emulation.budget import Budget
from halfwise.fixing.evidence import Observed
from halfwise.fixing.plan.plan import Variant
from halfwise.fixing.repair.rule import place
from halfwise.fixing.repair.scale import Scale
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent

SIZES = {"dim": 16, "depth": 60, "heads": 2, "patch": 4, "image": 8, "classes": 4, "channels": 1}
SECONDS = 10.0


def measure(_bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures; nothing is ever skipped."""
    weights = vit.random_weights(0, **SIZES)
    model = vit.build_vit(weights, heads=2, patch=4, image=8)
    norms = vit.layer_norms(weights)[::2]
    planting.plant(model, norms)
    images = np.random.default_rng(0).normal(size=(2, 1, 1, 8, 8)).astype(np.float32)
    request = understand({model.graph.input[0].name: images}, {})
    case = load_case(model, request.data, request.criterion)
    settings: Settings = request.settings
    seen = Observed(Budget(), Silent()).look(Variant(case, settings), case.calibration)
    started = time.process_time()
    repairs = list(Scale().propose(seen))
    spent = time.process_time() - started
    muls = sum("@" in name for repair in repairs for name in repair.exponents)
    told = {guard for repair in repairs for guard in repair.guards}
    asked = {place(g) for g in seen.guards if g.kind in ("overflow", "square")}
    nodes = sum(1 for _ in case.network.nodes())
    return [
        at_most("proposing (s of a processor)", spent, SECONDS, f"{nodes} nodes"),
        equal("repairs", len(repairs), len(norms)),
        equal("overflows that are not answered", len(asked - told), 0, f"of {len(asked)}"),
        equal("Muls", muls, 0),
    ], None
