"""The delivered engine against a user's alternatives, judged alike and timed in turns.

The others are FP32 without and with TF32, everything low, norms in FP32, and what AutoCast leaves
in FP32. Engines that the run itself built are saved from its store, which removes them; the others
are built by a separate client, from the same file and with the same profile.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import numpy as np

from bench.figures import Figure, reported
from bench.gpu.autocast import FILE as AUTOCAST
from bench.gpu.engines import results_by_kind
from bench.gpu.jobs import Host
from bench.gpu.pipe import Pipe, Refused
from halfwise.case import Case, Samples
from halfwise.emulation.ort import Session
from halfwise.fixing.engines.measure import ROUNDS
from halfwise.graph.model import Network, node_name
from halfwise.graph.movement import carried
from halfwise.graph.norms import NORMALISATIONS
from halfwise.graph.roles import Role, roles_of
from halfwise.graph.written_out import written_out
from halfwise.metrics.measures import Excess, totals
from halfwise.options.loading import load_case
from halfwise.options.options import Data
from halfwise.records import EngineResult, NodeName, Run, replace
from halfwise.tensorrt.constrain import constraints

FILE = "race.json"
"""File next to the run's record, with what each engine is, keeps and gave."""
SECONDS, WARMUP = 0.1, 0.03
"""Of one engine in one round."""
ITERATIONS = 20
"""Smallest number of runs of an engine in one round."""
CLOSE = 1.03
DELIVERED = "delivered"


@dataclass
class Racer:
    """One engine.

    Attributes:
        name: What it is.
        keep: Compute nodes that should be FP32.
        low: The low format that the builder was free to choose; None for none.
        tf32: Whether TF32 was allowed.
        engine: Its SHA-256; None if none was built.
        seconds: Time of the build.
        failure: Why there is no engine, or no error.
        excess: Largest error on the held-out samples over what is allowed; 1 is the limit.
        searched: The same on the calibration samples, over what the search may use.
        medians: Median time in every round, ms.
        asked: Nodes constrained to FP32, including those that move data between kept ones.
    """

    name: str
    keep: tuple[str, ...]
    low: str | None
    tf32: bool
    engine: str | None = None
    seconds: float = 0.0
    failure: str = ""
    excess: float | None = None
    searched: float | None = None
    medians: list[float] = field(default_factory=list)
    asked: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether it is within the tolerance on the held-out samples."""
        return self.excess is not None and self.excess <= 1

    def told(self) -> dict[str, Any]:
        """Return the fields for JSON; errors are text."""
        shown = {n: None if e is None else repr(e) for n, e in self._errors().items()}
        lists = {"keep": list(self.keep), "asked": list(self.asked)}
        return {**vars(self), **shown, **lists, "passed": self.passed}

    def _errors(self) -> dict[str, float | None]:
        return {"excess": self.excess, "searched": self.searched}


def norms(network: Network) -> tuple[str, ...]:
    """Return the compute nodes of all normalisations, written out or one node each."""
    groups = {n for op in NORMALISATIONS for group in written_out(network, op) for n in group}
    roles = roles_of(network)
    return tuple(
        node_name(n)
        for n in network.nodes()
        if (node_name(n) in groups or n.op_type in NORMALISATIONS)
        and roles[node_name(n)].role is Role.COMPUTE
    )


def others(network: Network, folder: Path) -> Iterator[Racer]:
    """Yield the alternatives to the delivered engine, without duplicates."""
    yield Racer("fp32", (), None, tf32=False)
    yield Racer("tf32", (), None, tf32=True)
    yield Racer("fp16", (), "fp16", tf32=False)
    sets = {"norms": norms(network)}
    if (file := folder / AUTOCAST).exists():
        sets["autocast"] = tuple(json.loads(file.read_text(encoding="utf-8")).get("nodes", ()))
    seen: set[frozenset[str]] = {frozenset()}
    roles = roles_of(network)
    for name, keep in sets.items():
        if frozenset(keep) not in seen:
            seen.add(frozenset(keep))
            kept = frozenset(map(NodeName, keep))
            asked = constraints(network, kept | carried(network, roles, kept))
            yield Racer(name, keep, "fp16", tf32=False, asked=asked)


class Kept:
    """Links to the files of a worker's store on this machine, by SHA-256; a run removes engines."""

    def __init__(self, folder: Path) -> None:
        """Take the folder for the links; without `HALFWISE_CACHE`, the store, nothing is kept."""
        store = os.environ.get("HALFWISE_CACHE")
        self._files = None if store is None else Path(store) / "files"
        self.folder = folder
        folder.mkdir()

    def look(self) -> None:
        """Link what is new."""
        for path in self._files.glob("*") if self._files is not None else ():
            with contextlib.suppress(OSError):  # it is there, or gone again
                (self.folder / path.name).hardlink_to(path)

    def engine(self, result: EngineResult | None) -> bytes | None:
        """Return the engine of a row; None if it was not kept."""
        if result is None or result.build.engine is None:
            return None
        path = self.folder / result.build.engine.sha256
        return path.read_bytes() if path.exists() else None


@dataclass
class Judge:
    """Judges outputs of engines as the run did, with its own runtime for the references."""

    case: Case
    searched: Samples
    margin: float

    def __post_init__(self) -> None:
        """Compute the references."""
        session = Session(self.case.network.model)
        self._sides = [
            (samples, [session.run(s) for s in samples], allowed)
            for samples, allowed in ((self.case.heldout, 1.0), (self.searched, self.margin))
        ]

    def judge(self, racer: Racer, pipe: Pipe) -> None:
        """Run an engine on all samples and note its errors."""
        assert racer.engine is not None
        found = []
        for samples, references, allowed in self._sides:
            excess = Excess(self.case.criterion, totals(references))
            for sample, reference in zip(samples, references, strict=True):
                excess.update(reference, _run(pipe, racer.engine, sample))
            found.append(excess.final() / allowed)
        racer.excess, racer.searched = found


def _run(pipe: Pipe, engine: str, sample: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return pipe.run(engine, {str(n): np.asarray(a) for n, a in sample.items()})


def judge_of(run: Run, folder: Path) -> Judge:
    """Return a judge with the case of a run, whose model and samples are in `folder`."""
    assert run.search is not None
    heldout = folder / "heldout.npz"
    data = Data(folder / "inputs.npz", heldout=heldout if heldout.exists() else None)
    case = load_case(folder / "model.onnx", data, run.criterion)
    places = {identifier: i for i, identifier in enumerate(case.calibration.ids)}
    chosen = [places[i] for i in run.search.calibration if i in places]
    return Judge(case, case.calibration.select(chosen), run.search.tolerance_factor)


def race(run: Run, kept: Kept, host: Host, folder: Path, end: float) -> list[Racer]:
    """Build, judge and time the delivered engine of a run and all others.

    Args:
        run: A run with a delivered engine, in `folder`/run.
        kept: What it built.
        host: Where engines are built.
        folder: Has the model and its inputs.
        end: When to begin nothing more, by the monotonic clock.
    """
    engines = run.engines
    assert engines is not None
    assert engines.delivered is not None
    assert engines.row is not None
    own, judge = engines.row.build.config, judge_of(run, folder)
    delivered = Racer(DELIVERED, engines.keep, own.low, own.tf32, asked=own.keep)
    delivered.seconds = engines.row.build.seconds
    found = [delivered, *others(judge.case.network, folder)]
    told = own.to_dict()
    alike = {name: told[name] for name in ("profiles", "optimization_level")}
    rows = results_by_kind(engines)
    with Pipe([host.trt_python], host.sources()) as pipe:
        pipe.end = end
        delivered.engine = pipe.put((folder / "run" / engines.delivered.path).read_bytes())
        model = (folder / "model.onnx").read_bytes()
        for racer in found:
            if monotonic() > end:
                racer.failure = "no time left"
                continue
            try:
                row = rows.get(racer.name)
                if racer is not delivered and (engine := kept.engine(row)) and row is not None:
                    racer.engine, racer.seconds = pipe.put(engine), row.build.seconds
                elif racer is not delivered:
                    config = {**alike, "low": racer.low, "tf32": racer.tf32, "keep": racer.asked}
                    built = pipe.build(model, cached=True, **config)
                    racer.engine = built.header["engine"]["sha256"]
                    racer.seconds = built.seconds
                judge.judge(racer, pipe)
            except Refused as refused:
                racer.failure = str(refused)[:300]
        take_turns([r for r in found if not r.failure], judge.case.heldout[0], pipe, end)
    return found


def take_turns(
    racers: Sequence[Racer],
    sample: Mapping[str, Any],
    pipe: Pipe,
    end: float,
    rounds: int = ROUNDS,
) -> None:
    """Time all engines, round by round, every other round in reverse; none begins after `end`."""
    arrays = {str(n): np.asarray(a) for n, a in sample.items()}
    asked = {"seconds": SECONDS, "warmup": WARMUP, "iterations": ITERATIONS}
    for turn in range(rounds):
        if monotonic() > end:
            return
        for racer in racers if turn % 2 == 0 else reversed(racers):
            assert racer.engine is not None
            try:
                answer = pipe.on_arrays("time", racer.engine, arrays, **asked)
                racer.medians.append(answer.header["median_ms"])
            except Refused as refused:
                racer.failure = racer.failure or str(refused)[:300]


def figures(name: str, racers: Sequence[Racer]) -> Iterator[Figure]:
    """Yield error and time of each, and the delivered one's time over the fastest that passes."""
    for racer in racers:
        what = f"{name}: {racer.name}, {len(racer.keep)} kept: error / limit"
        times = f"{median(racer.medians):.4g} ms" if racer.medians else "not timed"
        note = racer.failure or f"{times}, built in {racer.seconds:.1f} s"
        yield reported(what, "none" if racer.excess is None else racer.excess, note)
    delivered = racers[0]
    timed = [r for r in racers[1:] if r.passed and r.medians]
    if not delivered.medians or not timed:
        yield reported(f"{name}: delivered / fastest that passes", "nothing to compare with")
        return
    best = min(timed, key=lambda r: median(r.medians))
    found = against(f"{name}: delivered / fastest that passes", delivered, best, CLOSE)
    yield replace(found, note=f"{best.name}; {found.note}")


def against(what: str, one: Racer, other: Racer, limit: float) -> Figure:
    """Return the ratio of times, which must be at most `limit` unless its interval holds 1.

    With too few rounds for an interval, the median of the ratios must be; without any, the goal is
    missed.
    """
    reach = f"≤ {limit:g}, or the interval holds 1"
    told = [a / b for a, b in zip(one.medians, other.medians, strict=False)]
    if not told:
        return Figure(what, reach, "not timed", reached=False)
    middle, interval, equal = median(told), "too few for an interval", False
    if len(told) >= ROUNDS:
        # The median of the ratios lies there with 98.4 % (the sign test, inverted).
        interval = f"interval {min(told):.4f} to {max(told):.4f}"
        equal = min(told) <= 1 <= max(told)
    note = f"{len(told)} rounds, {interval}{', which holds 1' if equal else ''}"
    return Figure(what, reach, middle, bool(equal or middle <= limit), note)
