"""Scores the bands predicted before engines are built, over all recorded rounds of engines.

    python -m bench.bands                                    from stored results, in seconds
    python -m bench.bands --models DIR … [RUN.json …]        adds further runs first

The second form also emulates rounds that were not emulated yet, if it finds their model by its hash
in `DIR/*/model.onnx`, with inputs (`bench.gpu.models` makes some). Errors in emulation are computed
by the code that a run uses, and stored in `gpu_emulated.json`. Both forms write the table in
docs/tensorrt-measured.md.

The single fitted number is never fitted on the model that is scored. The nodes that the engine with
nothing kept computes in FP32 by itself count only for engines built after it.

The goals count predictions: several engines of one plan of a model, with the same settings, test
one prediction, and weigh as much as one engine of another plan. An engine as exact as FP32's is
inside every band, since in weak typing the builder may compute everything in FP32.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from halfwise.fixing.planner import Planner

from bench.figures import Figure, Result, at_least, at_most, reported, table
from bench.gpu.rounds import RESULTS, Seen, model_folders, planner_of, take
from bench.runs import ROOT, Workbench
from halfwise.fixing.engines.prediction import SPREAD, Bands, Emulated
from halfwise.graph.roles import Role
from halfwise.records import Band, NodeName

PAGE = ROOT / "docs" / "tensorrt-measured.md"
MARK = "<!-- bench/bands.py -->"
EMULATED = RESULTS / "gpu_emulated.json"
INSIDE = 0.9
"""Share of the other models' rounds that must be inside the band when the spread is fitted."""
AS_FP32 = 2.0
"""Factor on the FP32 engine's error within which an error is FP32's: 6 dB, as in `constrain`."""
SPREADS = [step / 20 for step in range(101)]


@dataclass(frozen=True)
class Round:
    """One engine, and its prediction.

    Attributes:
        model: Name of its model.
        kept: Number of kept nodes.
        measured: Its error; 1 is the limit.
        emulated: Its errors in emulations.
        full: Error of the FP32 engine; 0 if it is unknown.
        plan: The same for all engines of one plan of a model, with the same settings.
    """

    model: str
    kept: int
    measured: float
    emulated: Emulated
    full: float = 0.0
    plan: str = ""

    def band(self, spread: float) -> Band:
        """Return what low precision explains; where nothing is low, nothing."""
        return self.emulated.band(spread) or Band(least=0.0, most=0.0)

    def inside(self, spread: float) -> bool:
        """Return whether the band holds it, or it is as exact as FP32."""
        return self.as_fp32 or self.band(spread).holds(self.measured)

    @property
    def as_fp32(self) -> bool:
        """Whether its error is that of FP32."""
        return self.measured <= AS_FP32 * self.full

    @property
    def decided(self) -> bool:
        """Whether pass or fail was predicted correctly, by the expected way of computing."""
        return (self.emulated.own <= 1) == (self.measured <= 1)


class Emulator:
    """Emulates rounds; runs of one model with the same settings and samples share what they can."""

    def __init__(self) -> None:
        """Start without any."""
        self._known: dict[str, tuple[Planner, Bands]] = {}

    def emulate(self, seen: Seen, folder: Path) -> list[Emulated]:
        """Return the emulated errors of each round of a run, from what was known before it."""
        key = json.dumps([seen.model_sha256, seen.settings, seen.calibration], sort_keys=True)
        if key not in self._known:
            planner = planner_of(seen, folder)
            self._known = {key: (planner, Bands(planner, planner.engine_trials()))}
        planner, bands = self._known[key]
        own, found = frozenset[NodeName](), []
        for keep, _ in seen.rounds:
            found.append(bands.emulated(frozenset(map(NodeName, keep)), own))
            if not keep:
                names = map(NodeName, seen.fp32)
                own = frozenset(n for n in names if planner.roles[n].role is Role.COMPUTE)
        return found


def stored() -> dict[str, list[Emulated]]:
    """Return all stored emulations, by hash of the model and date of the run."""
    if not EMULATED.exists():
        return {}
    found = json.loads(EMULATED.read_text(encoding="utf-8"))["rounds"]
    return {key: [_emulated(told) for told in rounds] for key, rounds in found.items()}


def _emulated(told: Mapping[str, Any]) -> Emulated:
    numbers: dict[str, Any] = {k: None if v is None else float(v) for k, v in told.items()}
    return Emulated(**numbers)


def store(known: Mapping[str, Sequence[Emulated]]) -> None:
    """Store emulations; numbers are text, since JSON has no infinity."""
    told = {
        key: [{k: None if v is None else repr(v) for k, v in asdict(e).items()} for e in rounds]
        for key, rounds in sorted(known.items())
    }
    source = "python -m bench.bands --models DIR, of the rounds in gpu_rounds.json, in their order"
    text = json.dumps({"source": source, "rounds": told}, indent=1)
    EMULATED.write_text(text + "\n", encoding="utf-8")


def key_of(seen: Seen) -> str:
    """Return the key under which the emulations of a run are stored."""
    return f"{seen.model_sha256} {seen.date}"


def rounds_of(seen: Seen, emulated: Sequence[Emulated]) -> Iterator[Round]:
    """Yield the rounds of one run."""
    full = float(seen.full or 0)
    criterion = {k: v for k, v in seen.settings["criterion"].items() if v}  # the rest is default
    how = [seen.model_sha256, {**seen.settings, "criterion": criterion}]
    for (keep, measured), told in zip(seen.rounds, emulated, strict=True):
        plan = json.dumps([*how, sorted(keep)], sort_keys=True)
        yield Round(seen.name, len(keep), float(measured), told, full, plan)


def fit(rounds: Sequence[Round], inside: float = INSIDE) -> float:
    """Return the smallest spread with which a share of the rounds is inside, else the best."""
    shares = {spread: _share(r.inside(spread) for r in rounds) for spread in SPREADS}
    enough = (spread for spread, share in shares.items() if share >= inside)
    return next(enough, max(shares, key=lambda spread: shares[spread]))


def _share(found: Iterable[bool]) -> float:
    told = list(found)
    return sum(told) / len(told)


def scored(rounds: Sequence[Round]) -> Iterator[tuple[Round, float]]:
    """Yield every round with the spread fitted on the rounds of all other models."""
    models = dict.fromkeys(r.model for r in rounds)
    spreads = {m: fit([r for r in rounds if r.model != m]) for m in models}
    yield from ((r, spreads[r.model]) for r in rounds)


def by_plan(rounds: Sequence[Round], values: Sequence[float]) -> list[float]:
    """Return the mean value of each plan's engines."""
    plans: dict[str, list[float]] = {}
    for r, value in zip(rounds, values, strict=True):
        plans.setdefault(r.plan, []).append(value)
    return list(map(mean, plans.values()))


def figures(rounds: Sequence[Round]) -> Iterator[Figure]:
    """Yield the goals, and the figures behind them."""
    told = list(scored(rounds))
    decided = [float(r.decided) for r in rounds]
    inside = [float(r.inside(spread)) for r, spread in told]
    widths = [r.band(spread).decibels for r, spread in told]
    models, plans = len({r.model for r in rounds}), len({r.plan for r in rounds})
    note = f"{plans} plans of {models} models, the spread fitted on the other models"
    yield at_least("pass or fail as predicted", mean(by_plan(rounds, decided)), 0.9, note)
    yield at_least("inside the band", mean(by_plan(rounds, inside)), 0.85, note)
    width = median(by_plan(rounds, widths))
    yield at_most("median width of the band (dB)", width, 6, note)
    note = f"{len(rounds)} engines, each counted"
    yield reported("pass or fail as predicted, of engines", mean(decided), note)
    yield reported("inside the band, of engines", mean(inside), note)
    yield reported("median width of engines' bands (dB)", median(widths), note)
    strict = [r.band(spread).holds(r.measured) for r, spread in told]
    yield reported("inside without those as exact as FP32, of engines", _share(strict), note)
    below = sum(r.measured < r.band(spread).least and not r.as_fp32 for r, spread in told)
    off = [(r, r.band(spread)) for r, spread in told if r.measured > 1]
    yield reported("below the band", below, "the builder computed more in FP32 than was known")
    yield reported(
        "engines that are off by more than the band explains",
        sum(not band.explains(r.measured) for r, band in off),
        f"of {len(off)}; where kernels are right, each is a false alarm",
    )
    yield reported("spread fitted on all models", fit(rounds), f"{SPREAD} is used")


def document(rounds: Sequence[Round], text: str) -> str:
    """Return the page with the table of models between its marks."""
    head, _, rest = text.partition(f"{MARK}\n")
    _, _, tail = rest.partition(f"\n{MARK}\n")
    rows = ["| model | as predicted | inside | median width |", "|---|---|---|---|"]
    told = list(scored(rounds))
    for name in (*dict.fromkeys(r.model for r in rounds), "all"):
        own = [(r, spread) for r, spread in told if name in (r.model, "all")]
        decided = sum(r.decided for r, _ in own)
        inside = sum(r.inside(spread) for r, spread in own)
        width = median(r.band(spread).decibels for r, spread in own)
        cells = (name, f"{decided} of {len(own)}", f"{inside} of {len(own)}", f"{width:.1f} dB")
        rows.append(f"| {' | '.join(cells)} |")
    return f"{head}{MARK}\n\n" + "\n".join(rows) + f"\n\n{MARK}\n{tail}"


def details(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return every round with its band, as JSON can hold it."""
    return [
        {
            "model": r.model,
            "kept": r.kept,
            "measured": f"{r.measured:.4g}",
            "least": f"{band.least:.4g}",
            "most": f"{band.most:.4g}",
            "inside": r.inside(spread),
            "as_fp32": r.as_fp32,
            "spread": spread,
        }
        for r, spread in scored(rounds)
        for band in (r.band(spread),)
    ]


def gathered(runs: Sequence[Path], folders: Mapping[str, Path]) -> tuple[list[Round], str | None]:
    """Return all rounds, including those of `runs`, and which are not emulated; None if all are.

    Args:
        runs: Records of further runs.
        folders: Folders of models by their hash.
    """
    known, emulator = stored(), Emulator()
    rounds, lacking = list[Round](), list[str]()
    for seen in sorted(take(runs, folders), key=lambda s: s.model_sha256):
        key, folder = key_of(seen), folders.get(seen.model_sha256)
        if len(known.get(key, ())) != len(seen.rounds) and folder is not None:
            known[key] = emulator.emulate(seen, folder)
            store(known)
        if len(known.get(key, ())) == len(seen.rounds):
            rounds += rounds_of(seen, known[key])
        else:
            lacking.append(f"{seen.name} {seen.date}")
    skipped = f"{', '.join(lacking)}: not emulated, no such model" if lacking else None
    return rounds, skipped


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures of the stored rounds."""
    rounds, skipped = gathered((), {})
    bench.details["bands"] = details(rounds)
    return list(figures(rounds)), skipped


def main() -> None:
    """Add further runs, emulate new rounds, and score all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN.json")
    parser.add_argument("--models", action="append", type=Path, default=[], metavar="DIR")
    given = parser.parse_args()
    if given.runs and not given.models:
        parser.error("the models of these runs are needed: --models DIR")
    rounds, skipped = gathered(given.runs, model_folders(given.models))
    told = list(figures(rounds))
    result = Result("bands", "python -m bench.bands", told, skipped, details=details(rounds))
    result.save(RESULTS)
    PAGE.write_text(document(rounds, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(table([result]))


if __name__ == "__main__":
    main()
