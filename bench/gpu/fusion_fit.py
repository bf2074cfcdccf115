"""Compares what emulation predicts, with fusion and without, with what engines did.

    python -m bench.gpu.fusion_fit --models DIR [--models DIR …] [RUN.json …]

Takes the rounds of runs with engines (`run.json`, also compressed) into `gpu_rounds.json`, predicts
every round there anew, and writes `gpu_fusion.json` and the table in docs/tensorrt.md. A model is
found by its hash in `DIR/*/model.onnx`, its inputs beside it; `bench.gpu.models` makes some. What
is not found is named and left out.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isinf, log2
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Figure, Result, reported, table
from bench.runs import ROOT
from halfwise.case import Case, Samples, Settings
from halfwise.emulation.rounding import POINTWISE, fp32_nodes, fused_tensors
from halfwise.emulation.switched import SwitchedRunner, emulate_switched
from halfwise.fixing.evidence import gather
from halfwise.fixing.planner import Planner
from halfwise.fixing.trial import Trials
from halfwise.graph.casts import low_type
from halfwise.graph.conversion import upcast
from halfwise.graph.model import Network, tensor_name
from halfwise.graph.roles import Role, is_float, roles_of
from halfwise.options.loading import load_case, load_model
from halfwise.options.options import Data
from halfwise.progress import Silent
from halfwise.records import Criterion, NodeName, Run, TensorName

RESULTS = ROOT / "bench" / "results"
ROUNDS = RESULTS / "gpu_rounds.json"
PAGE = ROOT / "docs" / "tensorrt.md"
MARK = "<!-- bench/gpu/fusion_fit.py -->"
_SUMS = ("ReduceMean", "ReduceSum", "ReduceL2", "ReduceSumSquare")
_PRODUCTS = ("Conv", "Gemm", "MatMul")
Rule = Callable[[Network], frozenset[TensorName]]


@dataclass(frozen=True)
class Seen:
    """What one run saw, as the file of rounds has it.

    Attributes:
        model_sha256: Its model.
        name: Name of the folder that its model was in.
        date: When it ran.
        engines: TensorRT's version and the GPU.
        settings: What shaped its prediction: criterion, io, accumulate, headroom, margin.
        calibration: Identifiers of its calibration samples.
        heldout: Whether it had a file of held-out samples.
        fp32: Nodes that the engine with nothing kept computed in FP32 by itself.
        rounds: Pairs of kept nodes and measured error, 1 being the limit; the error is text.
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


def read_run(path: Path) -> Run:
    """Return the record of a run, compressed or not."""
    data = path.read_bytes()
    return Run.model_validate_json(gzip.decompress(data) if path.suffix == ".gz" else data)


def seen_in(run: Run, network: Network, name: str) -> Seen | None:
    """Return what a run saw; None where it has no rounds, or built strongly typed engines."""
    engines, search = run.engines, run.search
    if engines is None or search is None or engines.typing != "weak" or not engines.rounds:
        return None
    plain = [r for r in engines.results if r.build.config.low is not None and not r.kept]
    layers = plain[0].proof.layers if plain and plain[0].proof is not None else ()
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
    )


def planner_of(seen: Seen, folder: Path) -> Planner:
    """Return a planner with the samples and settings of the run."""
    given = dict(seen.settings)
    criterion = Criterion.model_validate(given.pop("criterion"))
    heldout = folder / "heldout.npz" if seen.heldout else None
    case = load_case(folder / "model.onnx", Data(folder / "inputs.npz", heldout=heldout), criterion)
    settings = Settings(**given)
    case = replace(case, calibration=_chosen(case, seen.calibration))
    roles = roles_of(case.network, low_type(settings.fmt))
    planner = Planner(case, settings, roles, Silent())
    planner.begin(gather(case.network, roles, case.calibration, settings, Silent().step))
    return planner


def _chosen(case: Case, identifiers: Sequence[str]) -> Samples:
    samples = case.calibration + case.heldout
    places = {identifier: i for i, identifier in enumerate(samples.ids)}
    return samples.select([places[identifier] for identifier in identifiers])


def trials_with(planner: Planner, fused: frozenset[TensorName]) -> Trials:
    """Return trials without headroom in which `fused` are not rounded between low nodes."""
    switched = emulate_switched(
        planner.case.network,
        planner.roles,
        planner.settings.fmt,
        accumulate=planner.settings.accumulate,
        low_io=planner.low_io,
        weights=planner.weights,
        fused=fused,
    )
    return planner.trials.on(SwitchedRunner(lambda: switched))


def _between(network: Network, makers: Sequence[str], readers: Sequence[str]) -> Iterator[str]:
    for node in network.nodes():
        for value in node.outputs:
            ops = {use.node.op_type for use in value.uses()}
            if node.op_type in makers and ops and ops <= set(readers) and is_float(value):
                yield tensor_name(value)


def _more(makers: Sequence[str], readers: Sequence[str]) -> Rule:
    return lambda n: fused_tensors(n) | {TensorName(v) for v in _between(n, makers, readers)}


RULES: Mapping[str, Rule] = {
    "nothing": lambda _: frozenset(),
    "the profile": fused_tensors,
    "the profile, what sums read": _more(tuple(POINTWISE), (*POINTWISE, *_SUMS)),
    "the profile, what sums give": _more(_SUMS, tuple(POINTWISE)),
    "the profile, what products give": _more(_PRODUCTS, tuple(POINTWISE)),
}
"""Which values stay FP32 between low nodes; all but the first two are there for comparison."""
OWN = "the engine's own FP32"


def predict(seen: Seen, planner: Planner) -> Iterator[dict[str, Any]]:
    """Yield every round with the errors that each rule predicts, FP32 blocks unknown and known."""
    roles = planner.roles
    own = frozenset(NodeName(n) for n in seen.fp32 if roles[NodeName(n)].role is Role.COMPUTE)
    found: dict[frozenset[NodeName], dict[str, float]] = {}
    keeps = [frozenset(map(NodeName, keep)) for keep, _ in seen.rounds]
    for name, rule in RULES.items():
        trials = trials_with(planner, rule(planner.case.network))
        for keep in dict.fromkeys(keeps):
            errors = found.setdefault(keep, {})
            errors[name] = trials.excess(keep)
            errors[f"{name}, {OWN}"] = trials.excess(keep | own)
    for keep, (_, measured) in zip(keeps, seen.rounds, strict=True):
        yield {
            "run": f"{seen.name} {seen.date}",
            "kept": len(keep),
            "measured": float(measured),
            "predicted": found[keep],
        }


def distance(predicted: float, measured: float) -> float:
    """Return |log2(predicted / measured)|; 0 where both are infinite, inf where one is."""
    if isinf(predicted) or isinf(measured) or not (predicted and measured):
        return 0.0 if predicted == measured else inf
    return abs(log2(predicted / measured))


@dataclass(frozen=True)
class Fit:
    """How far one rule's predictions are from what engines did.

    Attributes:
        rule: Which values stay FP32.
        median: Median of |log2(predicted / measured)| over rounds.
        largest: Its maximum; inf where a finite error was predicted to be infinite.
        agree: Rounds in which predicted and measured error are on one side of the limit.
        rounds: Number of rounds.
        better: Times by which engines are better at most, where the rule says that they fail.
    """

    rule: str
    median: float
    largest: float
    agree: int
    rounds: int
    better: float


def fits(rounds: Sequence[Mapping[str, Any]]) -> Iterator[Fit]:
    """Yield the fit of every rule."""
    for rule in rounds[0]["predicted"]:
        pairs = [(r["predicted"][rule], r["measured"]) for r in rounds]
        far = [distance(*pair) for pair in pairs]
        yield Fit(
            rule=rule,
            median=median(far),
            largest=max(far),
            agree=sum((p <= 1) == (m <= 1) for p, m in pairs),
            rounds=len(pairs),
            better=max((p / m for p, m in pairs if p > 1 and m), default=0.0),
        )


def figures(found: Iterable[Fit]) -> Iterator[Figure]:
    """Yield the fits as figures."""
    for fit in found:
        yield reported(
            f"{fit.rule}: median of |log2(predicted / measured)|",
            f"{fit.median:.2f}",
            f"largest {fit.largest:.2f}; {fit.agree} of {fit.rounds} decisions agree; where it "
            f"says fail, engines are up to {fit.better:.2g} times better",
        )


def document(found: Iterable[Fit], text: str) -> str:
    """Return the page with the table of fits between its marks."""
    head, _, rest = text.partition(f"{MARK}\n")
    _, _, tail = rest.partition(f"\n{MARK}\n")
    rows = ["| not rounded | median | largest | decisions right |", "|---|---|---|---|"]
    rows += [
        f"| {f.rule} | {_times(f.median)} | {_times(f.largest)} | {f.agree} of {f.rounds} |"
        for f in found
    ]
    return f"{head}{MARK}\n\n" + "\n".join(rows) + f"\n\n{MARK}\n{tail}"


def _times(bits: float) -> str:
    return "∞" if isinf(bits) else f"{2**bits:.3g} ×"


def _told(rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rounds as JSON can hold them; plans that were built again only once."""
    told: dict[tuple[str, ...], dict[str, Any]] = {}
    for r in rounds:
        predicted = {name: f"{error:.4g}" for name, error in r["predicted"].items()}
        known = told.setdefault(
            (r["run"], str(r["kept"]), *predicted.values()), {**r, "measured": []}
        )
        known["predicted"] = predicted
        known["measured"].append(f"{r['measured']:.4g}")
    return list(told.values())


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _known() -> dict[tuple[str, str], Seen]:
    if not ROUNDS.exists():
        return {}
    found = [Seen(**kept) for kept in json.loads(ROUNDS.read_text(encoding="utf-8"))]
    return {(seen.model_sha256, seen.date): seen for seen in found}


def _write(known: Iterable[Seen]) -> None:
    text = json.dumps([asdict(seen) for seen in known], indent=1, ensure_ascii=False)
    ROUNDS.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Take what runs saw, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN.json")
    parser.add_argument("--models", action="append", type=Path, required=True, metavar="DIR")
    given = parser.parse_args()
    folders = {_sha256(m): m.parent for d in given.models for m in sorted(d.glob("*/model.onnx"))}
    known = _known()
    for path in given.runs:
        run = read_run(path)
        folder = folders.get(run.provenance.model_sha256)
        if folder is None:
            print(f"{path}: its model is not in {', '.join(map(str, given.models))}")
            continue
        network, _ = upcast(load_model(folder / "model.onnx"))
        if seen := seen_in(run, network, folder.name):
            known[seen.model_sha256, seen.date] = seen
        else:
            print(f"{path}: no rounds of weakly typed engines")
    _write(known.values())
    rounds, lacking = [], []
    for seen in known.values():
        folder = folders.get(seen.model_sha256)
        if folder is None:
            lacking.append(f"{seen.name} {seen.date}")
            continue
        rounds += list(predict(seen, planner_of(seen, folder)))
    if not rounds:
        parser.error("there is no round whose model is there")
    command = "python -m bench.gpu.fusion_fit --models DIR"
    skipped = f"{', '.join(lacking)}: no such model" if lacking else None
    found = list(fits(rounds))
    result = Result("gpu_fusion", command, list(figures(found)), skipped, details=_told(rounds))
    result.save(RESULTS)
    PAGE.write_text(document(found, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(table([result]))


if __name__ == "__main__":
    main()
