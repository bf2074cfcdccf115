"""Predicted costs of plans against the times of engines on a GPU (`results/gpu_*.json`).

Nothing of `fixing/cost.py` was fitted to these models: its constants are ratios of data sheets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from scipy.stats import spearmanr

from bench.figures import Figure, at_least, reported
from bench.gpu.int8 import SIZES, choices
from bench.gpu.jobs import BATCH
from bench.gpu.models import MAKERS
from bench.gpu.repair_plans import SCALED
from bench.runs import ROOT, Workbench
from halfwise.emulation.runner import seen_shapes
from halfwise.fixing.cost import CostModel
from halfwise.formats import FP16
from halfwise.graph.casts import low_type
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.movement import carried
from halfwise.graph.roles import roles_of
from halfwise.records import NodeName

RESULTS = ROOT / "bench" / "results"
MODELS = ("digits", "digits_ffn", "magika", "ppocr_v3_det", "yolox_nano", "resnet50", "vit_b")
ROUNDS = {"vit_b": "vit_b16"}
"""Names in gpu_rounds.json, where they differ."""
LARGE_MS = 1.0
"""FP32 engines that take longer are not bound by the time to start kernels."""
RANKS = 0.8


@dataclass(frozen=True)
class Pair:
    """One ratio of times, over that of the engine with everything low.

    Attributes:
        model: The model.
        what: "FP32", "TF32", or how many nodes are kept.
        predicted: By cost.
        measured: By medians of the engines' times.
        fp32_ms: Time of the FP32 engine.
    """

    model: str
    what: str
    predicted: float
    measured: float
    fp32_ms: float


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return how predictions rank and how far they are off, for FP32 and for mixed plans."""
    pairs = [pair for name in MODELS for pair in _pairs(name, bench)]
    figures = []
    full = ("FP32", "TF32")
    for kind, some in (
        *((kind, [p for p in pairs if p.what == kind]) for kind in full),
        ("mixed", [p for p in pairs if p.what not in full]),
    ):
        note = "; ".join(
            f"{p.model} {p.what}: {p.predicted:.2f}, measured {p.measured:.2f}" for p in some
        )
        ranks = float(spearmanr([p.predicted for p in some], [p.measured for p in some]).statistic)
        what = f"{kind} over all low: rank correlation of predicted with measured"
        figures.append(
            at_least(what, ranks, RANKS, note) if kind == "FP32" else reported(what, ranks, note)
        )
        for size, chosen in (
            ("all", some),
            (f"FP32 takes {LARGE_MS:g} ms or more", [p for p in some if p.fp32_ms >= LARGE_MS]),
        ):
            off = [abs(np.log(p.predicted / p.measured)) for p in chosen]
            figures.append(
                reported(
                    f"{kind} over all low, {size}: median factor between the two",
                    float(np.exp(np.median(off))),
                    f"of {len(chosen)}, at most {np.exp(max(off)):.2f}",
                )
            )
    figures += [figure for name in SIZES for figure in _int8(name)]
    return figures, bench.missing()


def _int8(name: str) -> Iterator[Figure]:
    """Yield what INT8 beside FP16 costs over FP16 alone, by prediction and in engines."""
    found = json.loads((RESULTS / "gpu_int8.json").read_text(encoding="utf-8"))["figures"]
    times = {figure["what"]: figure["measured"] for figure in found}
    network = network_from_proto(SCALED[name].plain())
    sample = {str(v.name): SCALED[name].images(BATCH, 0) for v in network.graph.inputs}
    low: frozenset[NodeName] = frozenset()
    model = CostModel(network, roles_of(network, low_type(FP16)), seen_shapes(network, sample))
    for kind, nodes in choices(network).items():
        predicted = model.cost(low, int8=nodes) / model.cost(low)
        note = f"measured {times[f'{name}: time of {kind} / fp16']:.3f}"
        yield reported(f"{name}: {kind} over FP16, predicted", predicted, note)


def _pairs(name: str, bench: Workbench) -> Iterator[Pair]:
    network = _network(name, bench)
    if network is None:
        return
    found = json.loads((RESULTS / f"gpu_{name}.json").read_text(encoding="utf-8"))["details"]
    times = {kind: engine["latency"] for kind, engine in found["engines"].items()}
    low, fp32 = (times[kind]["median_ms"] for kind in ("fp16", "fp32"))
    sample = {
        str(v.name): np.zeros(times["fp16"]["shapes"][str(v.name)], v.dtype.numpy())
        for v in network.graph.inputs
        if v.dtype is not None
    }
    roles = roles_of(network, low_type(FP16))
    model = CostModel(network, roles, seen_shapes(network, sample))
    base = model.cost(carried(network, roles, frozenset()))
    yield Pair(name, "FP32", model.cost(frozenset(roles)) / base, fp32 / low, fp32)
    tf32 = times["tf32"]["median_ms"]
    predicted = model.cost(frozenset(roles), tf32=True) / base
    yield Pair(name, "TF32", predicted, tf32 / low, fp32)
    rounds = found["rounds"]
    plain = [float(r["median_ms"]) for r in rounds if not r["kept"] and r["median_ms"]]
    for kept in _kept(ROUNDS.get(name, name), [r["kept"] for r in rounds]):
        mixed = [
            float(r["median_ms"])
            for r in rounds
            if r["kept"] == len(kept) and r["median_ms"] and "TF32" not in r["step"]
        ][:1]
        predicted = model.cost(kept | carried(network, roles, kept)) / base
        if plain and mixed:
            measured = mixed[0] / float(np.median(plain))
            yield Pair(name, f"{len(kept)} kept", predicted, measured, fp32)


def _kept(name: str, counts: list[int]) -> list[frozenset[NodeName]]:
    """Return the plans of the recorded run that has rounds of these many kept nodes."""
    runs: list[dict[str, Any]] = json.loads((RESULTS / "gpu_rounds.json").read_text("utf-8"))
    for run in runs:
        plans = [frozenset(map(NodeName, kept)) for kept, _ in run["rounds"]]
        if run["name"] == name and [len(plan) for plan in plans] == counts:
            return [plan for plan in dict.fromkeys(plans) if plan]
    return []


def _network(name: str, bench: Workbench) -> Network | None:
    if name in MAKERS:
        return network_from_proto(MAKERS[name]().model)
    subject = bench.real(name)
    return None if subject is None else network_from_proto(onnx.load(subject.model))
