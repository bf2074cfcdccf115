"""What repairs save: plans with them against plans without, and against other tools' plans.

    python bench/run.py repairs
    python bench/repairs.py [NAME …]         some models, a line for each

The written file of each plan is read again and judged by typed emulation, which shares no code with
the search's emulation.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import plans
from bench.figures import Figure, at_least, equal, reported
from bench.gpu.models import digits_ffn
from bench.plans import FOREVER, Task
from bench.runs import ROOT, Workbench, models_folder
from halfwise.fixing.loop import fix
from halfwise.graph.loading import load_network
from halfwise.judging.judge import judge
from halfwise.judging.reference import inspected_reference
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.reporting.remarks import reason_of
from tests.models import CLASSES

PEERS = ROOT / "bench" / "results" / "peers.json"
NOTHING_KEPT = ("digits", "digits_ffn", "conv_chain", "ppocr_v3_det")
"""Models that must pass with nothing kept."""
FREED = 22
"""Failure classes that are to be freed of all their kept nodes."""


@dataclass(frozen=True)
class Side:
    """The result of a run, with repairs or without.

    Attributes:
        kept: Compute nodes in FP32.
        cost: Predicted, over everything low without repairs, as a part of a larger network, whose
            ends are low; None where shapes cannot be seen.
        passed: Its verdict.
        right: Whether the written file, read anew, passes on the held-out samples.
        seconds: Of the processor, for the whole run.
        rules: How often each rule was made.
        undone: Repairs that were tried and undone, by the reason.
        reasons: Why nodes are kept, as `reporting.remarks.Reason`; by number.
    """

    kept: int
    cost: float | None
    passed: bool
    right: bool
    seconds: float
    rules: Mapping[str, int]
    undone: Mapping[str, int]
    reasons: Mapping[str, int]


@dataclass(frozen=True)
class Pair:
    """One model without repairs and with them."""

    name: str
    without: Side
    repaired: Side

    @property
    def wrong(self) -> bool:
        """Whether the run says that the repaired plan passes, and its file does not."""
        return self.repaired.passed and not self.repaired.right

    @property
    def lost(self) -> bool:
        """Whether what passed without repairs does not pass with them."""
        return self.without.passed and not self.repaired.passed

    def line(self) -> str:
        """Return the pair in a line."""
        costs = (None if s.cost is None else f"{s.cost:.3f}" for s in (self.without, self.repaired))
        rules = ", ".join(f"{count} {name}" for name, count in self.repaired.rules.items())
        undone = ", ".join(f"{count} {name}" for name, count in self.repaired.undone.items())
        reasons = ", ".join(f"{count} {name}" for name, count in self.repaired.reasons.items())
        ends = "wrong" if self.wrong else "passed" if self.repaired.passed else "FAILED"
        told = f"{self.without.kept} → {self.repaired.kept} kept, {ends}"
        cost = f"cost {' → '.join(map(str, costs))}"
        ratio = self.repaired.seconds / self.without.seconds
        parts = (
            told,
            cost,
            rules,
            undone and f"undone: {undone}",
            reasons and f"kept for {reasons}",
        )
        return "; ".join(filter(None, (*parts, f"{ratio:.2f} × the time")))


def tasks(bench: Workbench) -> Iterator[Task]:
    """Yield what `bench.plans` plans for, and the example with an FFN × 30000."""
    yield from plans.tasks(bench)
    made = digits_ffn()
    options = {"max_abs": 0.05}
    yield Task("digits_ffn", made.model, dict(made.inputs), options)


def side(task: Task, **options: Any) -> Side:
    """Return the result of `fix` with further options; a capped task ends after its evaluations."""
    named = {**task.options, "time_budget": FOREVER, "budget": FOREVER, **options}
    request = understand(task.inputs, named)
    case = load_case(task.model, request.data, request.criterion)
    started = time.process_time()
    with plans.counting(task.cap):
        fixed = fix(case, request.settings, Silent())
    seconds = time.process_time() - started
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        ir.save(fixed.rewritten.model, path)
        written = load_network(path).model
        references, nonfinite = inspected_reference(case.network, case.heldout)
        given = (written, case.heldout, references, case.criterion, case.metric)
        accumulate = request.settings.accumulate
        seen = judge(*given, reference_nonfinite=nonfinite, accumulate=accumulate)
    undone = Counter(str(r.kind) for r in fixed.plan.remarks if r.kind.startswith("repair-"))
    return Side(
        kept=len(fixed.result.kept),
        cost=fixed.space.variant.cost(fixed.assigned),
        passed=fixed.verdict.passed,
        right=seen.verdict.passed,
        seconds=seconds,
        # Plain ones: `asdict` takes a Counter's items for what is counted.
        rules=dict(Counter(r.rule for r in fixed.plan.repairs)),
        undone=dict(undone),
        reasons=dict(Counter(str(reason_of(k, fixed.followed)) for k in fixed.plan.keep)),
    )


def pair(task: Task) -> Pair:
    """Return both sides of a model."""
    return Pair(task.name, side(task, no_repair=True), side(task))


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return what repairs save on every available model."""
    pairs = [pair(task) for task in tasks(bench)]
    bench.details["repairs"] = {p.name: asdict(p) for p in pairs}
    missing = bench.missing()
    return [*figures(pairs), *beside_peers(pairs)], missing


def figures(pairs: Sequence[Pair]) -> Iterator[Figure]:
    """Yield what is kept with repairs and without."""
    by_name = {p.name: p for p in pairs}
    for name in NOTHING_KEPT:
        if (found := by_name.get(name)) is not None:
            good = found.repaired.passed and found.repaired.right
            what = f"{name}: kept, passed"
            measured = found.repaired.kept if good else math.inf
            yield equal(what, measured, 0, found.line())
    classes = [by_name[make().name] for make in CLASSES if make().name in by_name]
    keeping = [p for p in classes if p.without.kept]
    freed = [p for p in keeping if p.repaired.passed and p.repaired.right and not p.repaired.kept]
    what = f"failure classes without a kept node, of {len(keeping)} with some without repairs"
    yield at_least(what, len(freed), FREED, ", ".join(p.name for p in freed))
    for what, some in (
        ("models that keep more with repairs", [p for p in pairs if _more(p)]),
        ("models whose repaired file is wrong", [p for p in pairs if p.wrong]),
        ("models that pass without repairs alone", [p for p in pairs if p.lost]),
        ("models whose plan costs more with repairs", [p for p in pairs if _dearer(p)]),
    ):
        yield equal(what, len(some), 0, ", ".join(p.name for p in some))
    sums = [sum(getattr(p, which).seconds for p in pairs) for which in ("repaired", "without")]
    yield reported("processor time with repairs over that without", sums[0] / sums[1])
    for found in pairs:
        if found.without.kept or found.repaired.rules:
            yield reported(f"{found.name}: kept with repairs", found.repaired.kept, found.line())


def _more(found: Pair) -> bool:
    return found.repaired.kept > found.without.kept


def _dearer(found: Pair) -> bool:
    costs = found.repaired.cost, found.without.cost
    return None not in costs and costs[0] > costs[1] * (1 + 1e-9)  # type: ignore[operator]


def beside_peers(pairs: Sequence[Pair]) -> Iterator[Figure]:
    """Yield what other tools keep of the same models, as `bench.peers` recorded it.

    They change types alone: none of them repairs.
    """
    if not PEERS.is_file():
        return
    told = json.loads(PEERS.read_text(encoding="utf-8"))["details"]
    names = [name for name in told["tools"] if name != "halfwise"]
    for name in names:
        both, fewer = [], []
        for found in pairs:
            attempt = told["models"].get(found.name, {"attempts": {}})["attempts"].get(name)
            if attempt is not None and attempt["passed"]:
                both.append((found.repaired.kept, attempt["kept"]))
                fewer += [found.name] if attempt["kept"] < found.repaired.kept else []
        ours, its = (sum(counts) for counts in zip(*both, strict=True)) if both else (0, 0)
        title = told["tools"][name]["title"]
        what = f"kept by {title} where it passes, {len(both)} models; repaired here: {ours}"
        yield reported(what, its, f"fewer than repaired: {', '.join(fewer) or 'none'}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    given = parser.parse_args(arguments)
    for task in tasks(Workbench(Path(), models_folder())):
        if not given.names or task.name in given.names:
            print(f"{task.name}: {pair(task).line()}", flush=True)


if __name__ == "__main__":
    main()
