"""The rounds of engines recorded in `gpu_rounds.json`, and the plans that predict them."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.gpu.race import FILE as RACE
from bench.runs import ROOT
from halfwise.case import Case, Samples, Settings
from halfwise.emulation.budget import Budget
from halfwise.emulation.rounding import fp32_nodes
from halfwise.fixing.bench import Bench, Tolerance
from halfwise.fixing.emulating import Emulation
from halfwise.fixing.evidence import Observed
from halfwise.fixing.plan.plan import Plan, Variant
from halfwise.fixing.space import LowSpace
from halfwise.graph.conversion import upcast
from halfwise.graph.model import Network
from halfwise.options.loading import load_case, load_model
from halfwise.options.options import Data
from halfwise.progress import Silent
from halfwise.records import Criterion, Run

RESULTS = ROOT / "bench" / "results"
ROUNDS = RESULTS / "gpu_rounds.json"
_RENAMED = {"bench/boxes.py:f1": "detection-f1"}
"""Metrics that judged runs, and their names since they are built in."""


@dataclass(frozen=True)
class Seen:
    """The rounds of one run, as the file records them.

    Attributes:
        model_sha256: SHA-256 of its model.
        name: Name of its model's folder.
        date: When it ran.
        engines: TensorRT's version and the GPU.
        settings: What shaped its prediction: criterion, io, accumulate, headroom, margin.
        calibration: Identifiers of its calibration samples.
        heldout: Whether it had a file of held-out samples.
        fp32: Nodes that the engine with nothing kept computed in FP32 by itself.
        rounds: Pairs of kept nodes and measured error, as text; 1 is the limit.
        full: Error of its FP32 engine, as text; None if it was not measured.
    """

    model_sha256: str
    name: str
    date: str
    engines: str
    settings: Mapping[str, Any]
    calibration: Sequence[str]
    heldout: bool
    fp32: Sequence[str]
    rounds: Sequence[tuple[Sequence[str], str]]
    full: str | None = None


def read_run(path: Path) -> Run:
    """Return the record of a run, compressed or not."""
    data = path.read_bytes()
    return Run.model_validate_json(gzip.decompress(data) if path.suffix == ".gz" else data)


def seen_in(run: Run, network: Network, name: str) -> Seen | None:
    """Return the rounds of a run; None if it has none, or built strongly typed engines."""
    engines, search = run.engines, run.search
    if engines is None or search is None or engines.typing != "weak" or not engines.rounds:
        return None
    plain = [r for r in engines.results if r.build.config.low is not None and not r.kept]
    layers = plain[0].proof.layers if plain and plain[0].proof is not None else ()
    full = [r.excess for r in engines.results if r.rung == "fp32" and r.excess is not None]
    return Seen(
        model_sha256=run.provenance.model_sha256,
        name=name,
        date=run.provenance.date,
        engines=f"TensorRT {engines.worker.tensorrt}, {engines.worker.gpu}",
        settings={
            "criterion": run.criterion.model_dump(mode="json"),
            "io": run.io,
            "accumulate": run.accumulate,
            "headroom": run.headroom,
            "margin": search.tolerance_factor,
        },
        calibration=search.calibration,
        heldout="heldout" in run.provenance.options,
        fp32=sorted(fp32_nodes(network, layers)),
        rounds=[(r.keep, repr(r.measured)) for r in engines.rounds if r.measured is not None],
        full=repr(full[0]) if full else None,
    )


def plans_of(seen: Seen, folder: Path) -> LowSpace:
    """Return plans with the samples and settings of the run."""
    given = dict(seen.settings)
    criterion = Criterion.model_validate(given.pop("criterion"))
    name = criterion.metric
    criterion = criterion.model_copy(update={"metric": _RENAMED.get(name or "", name)})
    heldout = folder / "heldout.npz" if seen.heldout else None
    case = load_case(folder / "model.onnx", Data(folder / "inputs.npz", heldout=heldout), criterion)
    settings = Settings(**given)
    case = replace(case, calibration=_chosen(case, seen.calibration))
    variant, budget, watcher = Variant(case, settings), Budget(), Silent()
    observed = Observed(budget, watcher)
    references = observed.look(variant, case.calibration).references
    tolerance = Tolerance(case.criterion, case.metric, 1.0 if case.metric else settings.margin)
    bench: Bench[Plan] = Bench(Emulation(observed), case.calibration, references, tolerance)
    return LowSpace.of(variant, bench, observed, budget, watcher)


def _chosen(case: Case, identifiers: Sequence[str]) -> Samples:
    samples = case.calibration + case.heldout
    places = {identifier: i for i, identifier in enumerate(samples.ids)}
    return samples.select([places[identifier] for identifier in identifiers])


def take(paths: Iterable[Path], folders: Mapping[str, Path]) -> list[Seen]:
    """Return all recorded rounds with those of `paths`, and record these.

    Args:
        paths: Records of runs, compressed or not; useless ones are named.
        folders: Folders of models by their hash, see `model_folders`.
    """
    known = {}
    if ROUNDS.exists():
        found = [Seen(**kept) for kept in json.loads(ROUNDS.read_text(encoding="utf-8"))]
        known = {(seen.model_sha256, seen.date): seen for seen in found}
    before = len(known)
    for path in paths:
        run = read_run(path)
        folder = folders.get(run.provenance.model_sha256)
        if folder is None:
            print(f"{path}: its model is in none of the folders of models")
            continue
        network, _ = upcast(load_model(folder / "model.onnx"))
        if seen := seen_in(run, network, folder.name):
            seen = replace(seen, rounds=[*seen.rounds, *raced(path.with_name(RACE))])
            known[seen.model_sha256, seen.date] = seen
        else:
            print(f"{path}: no rounds of weakly typed engines")
    if len(known) > before:
        text = json.dumps([asdict(seen) for seen in known.values()], indent=1, ensure_ascii=False)
        ROUNDS.write_text(text + "\n", encoding="utf-8")
    return list(known.values())


def model_folders(folders: Iterable[Path]) -> dict[str, Path]:
    """Return the folders that hold a `model.onnx`, right below `folders`, by the model's hash."""
    models = (model for folder in folders for model in sorted(folder.glob("*/model.onnx")))
    return {hashlib.sha256(model.read_bytes()).hexdigest(): model.parent for model in models}


def raced(path: Path) -> list[tuple[list[str], str]]:
    """Return the rounds of a delivered engine's rivals; none without the file of a race."""
    if not path.exists():
        return []
    racers = json.loads(path.read_text(encoding="utf-8"))
    sets = [r for r in racers if r["name"] in ("norms", "autocast") and r["searched"] is not None]
    return [(r["keep"], r["searched"]) for r in sets]
