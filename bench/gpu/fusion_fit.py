"""Compares the errors that emulation predicts, with fusion and without, with those of engines.

    python -m bench.gpu.fusion_fit --models DIR [--models DIR …] [RUN.json …]

Adds the rounds of runs with engines (`run.json`, also compressed) to `gpu_rounds.json`, predicts
every round there again, and writes `gpu_fusion.json` and the table in docs/tensorrt-measured.md. A
model is found by its hash in `DIR/*/model.onnx`, with its inputs next to it; `bench.gpu.models`
makes some. Missing models are named and left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf, log2
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Figure, Result, reported, table
from bench.gpu.rounds import RESULTS, Seen, model_folders, plans_of, take
from bench.runs import ROOT
from halfwise.case import Sample
from halfwise.emulation.rounding import POINTWISE, fused_tensors
from halfwise.emulation.switched import SwitchedRunner, emulate_switched
from halfwise.fixing.bench import Bench
from halfwise.fixing.plan.plan import Plan
from halfwise.fixing.space import LowSpace
from halfwise.graph.model import Network, tensor_name
from halfwise.graph.roles import Role, is_float
from halfwise.metrics import Outputs
from halfwise.records import NodeName, TensorName

PAGE = ROOT / "docs" / "tensorrt-measured.md"
MARK = "<!-- bench/gpu/fusion_fit.py -->"
_SUMS = ("ReduceMean", "ReduceSum", "ReduceL2", "ReduceSumSquare")
_PRODUCTS = ("Conv", "Gemm", "MatMul")
Rule = Callable[[Network], frozenset[TensorName]]


class Fusing:
    """Runs plans without headroom, with tensors that are not rounded between low nodes."""

    def __init__(self, space: LowSpace, fused: frozenset[TensorName]) -> None:
        """Load the model that runs any plan."""
        variant = space.variant
        switched = emulate_switched(
            variant.case.network,
            variant.roles,
            variant.settings.fmt,
            accumulate=variant.settings.accumulate,
            low_io=variant.low_io,
            weights=variant.weights,
            fused=fused,
        )
        self._runner = SwitchedRunner(lambda: switched)

    def prepare(self, plan: Plan, /) -> None:
        """Load the model, unless it is loaded."""
        self._runner.prepare(plan.of.assignment(plan))

    def run(self, sample: Sample, plan: Plan, /) -> Outputs:
        """Return the outputs of a plan."""
        return self._runner.run(sample, plan.of.assignment(plan))

    def release(self) -> None:
        """Do nothing: there is one model."""


def bench_with(space: LowSpace, fused: frozenset[TensorName]) -> Bench[Plan]:
    """Return a bench without headroom in which `fused` are not rounded between low nodes."""
    return space.bench.on(Fusing(space, fused))


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


def predict(seen: Seen, space: LowSpace) -> Iterator[dict[str, Any]]:
    """Yield every round with the errors that each rule predicts, FP32 blocks unknown and known."""
    roles = space.variant.roles
    own = frozenset(NodeName(n) for n in seen.fp32 if roles[NodeName(n)].role is Role.COMPUTE)
    found: dict[frozenset[NodeName], dict[str, float]] = {}
    keeps = [frozenset(map(NodeName, keep)) for keep, _ in seen.rounds]
    for name, rule in RULES.items():
        bench = bench_with(space, rule(space.variant.case.network))
        for keep in dict.fromkeys(keeps):
            errors = found.setdefault(keep, {})
            errors[name] = bench.excess(space.fresh(keep))
            errors[f"{name}, {OWN}"] = bench.excess(space.fresh(keep | own))
    for keep, (_, measured) in zip(keeps, seen.rounds, strict=True):
        yield {
            "run": f"{seen.name} {seen.date}",
            "kept": len(keep),
            "measured": float(measured),
            "predicted": found[keep],
        }


def distance(predicted: float, measured: float) -> float:
    """Return |log2(predicted / measured)|; 0 if both are infinite, inf if one is."""
    if isinf(predicted) or isinf(measured) or not (predicted and measured):
        return 0.0 if predicted == measured else inf
    return abs(log2(predicted / measured))


@dataclass(frozen=True)
class Fit:
    """How far one rule's predictions are from measured errors.

    Attributes:
        rule: Which values stay FP32.
        median: Median of |log2(predicted / measured)| over rounds.
        largest: Its maximum; inf if a finite error was predicted to be infinite.
        agree: Rounds in which predicted and measured error are on the same side of the limit.
        rounds: Number of rounds.
        better: Largest factor by which engines are better if the rule says that they fail.
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
    """Return rounds for JSON; plans that were built repeatedly only once."""
    told: dict[tuple[str, ...], dict[str, Any]] = {}
    for r in rounds:
        predicted = {name: f"{error:.4g}" for name, error in r["predicted"].items()}
        known = told.setdefault(
            (r["run"], str(r["kept"]), *predicted.values()), {**r, "measured": []}
        )
        known["predicted"] = predicted
        known["measured"].append(f"{r['measured']:.4g}")
    return list(told.values())


def main() -> None:
    """Add the rounds of runs, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN.json")
    parser.add_argument("--models", action="append", type=Path, required=True, metavar="DIR")
    given = parser.parse_args()
    folders = model_folders(given.models)
    rounds, lacking = [], []
    for seen in take(given.runs, folders):
        folder = folders.get(seen.model_sha256)
        if folder is None:
            lacking.append(f"{seen.name} {seen.date}")
            continue
        rounds += list(predict(seen, plans_of(seen, folder)))
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
