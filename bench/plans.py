"""Costs of plans, and of finding them, against plans found before cost counted.

    python bench/run.py plans                compares with bench/plans_before.json
    python bench/plans.py --write FILE       records what the halfwise of this Python finds

A search ends after a number of evaluations, never after a time, so that results are comparable on
any machine: here after as many as it took before, so that costs are those for the same work. What
a user gets may cost more evaluations, and less.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from halfwise.records import replace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.figures import Figure, at_most, equal, reported
from bench.peers.tasks import keywords
from bench.runs import ROOT, Workbench, models_folder
from halfwise.emulation.budget import Budget, OutOfTime
from halfwise.fixing.bench import Bench
from halfwise.fixing.loop import fix
from halfwise.fixing.outcome import worth_of
from halfwise.fixing.space import Space
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from tests.models import CLASSES

BEFORE = Path(__file__).parent / "plans_before.json"
CASES_VARIABLE = "HALFWISE_BENCH_CASES"
CASES = {
    "unimatch16": "pairs",
    "clip14": "clip_inputs",
    "convs": "convs_inputs",
    "det16": "det_inputs",
}
"""Models of the cases folder, and the stem of the file that holds the inputs of each."""
RAW = {"yolox_nano": 200, "ppocr_v3_det": 200}
"""Evaluations after which a search at the default tolerance ends, where many nodes are needed."""
FOREVER = 1e9


@dataclass(frozen=True)
class Task:
    """A model to plan for.

    Attributes:
        name: Its name in the results.
        model: The model, or its file.
        inputs: Its samples, or their file.
        options: Of `halfwise fix`, for the library.
        cap: Largest number of evaluations of the search; None for no limit.
    """

    name: str
    model: Any
    inputs: Any
    options: Mapping[str, Any]
    cap: int | None = None


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        candidates: Compute nodes that might be kept.
        kept: Those that are.
        cost: Predicted, over everything low; None where shapes cannot be seen.
        evaluations: Of the search, with its certificate, until the plan was known.
        excess: Error over what a trial may use, on all calibration samples.
        passed: Whether the search found a plan.
        minimal: Whether no node can be spared.
        fp32: Predicted cost of everything in FP32, over everything low; None in older records.
    """

    candidates: int
    kept: int
    cost: float | None
    evaluations: int
    excess: float
    passed: bool
    minimal: bool
    fp32: float | None = None


def tasks(bench: Workbench) -> Iterator[Task]:
    """Yield a task for each available model."""
    for make in CLASSES:
        ill = make()
        arrays = {name: np.asarray(array) for name, array in ill.inputs.items()}
        yield Task(ill.name, ill.proto, arrays, keywords(ill.options))
    for subject in bench.subjects():
        model, inputs = ROOT / subject.model, ROOT / subject.inputs
        yield Task(subject.name, model, inputs, keywords(subject.options))
    for name, cap in RAW.items():
        real = bench.real(name)
        if real is not None:
            # Only a tolerance that was asked for is searched to the end, or to the cap.
            yield Task(f"{name}-raw", real.model, real.inputs, {"rel_max": 0.01}, cap)
    given = os.environ.get(CASES_VARIABLE)
    for name, inputs_of in CASES.items():
        if given:
            yield Task(name, Path(given, f"{name}.onnx"), Path(given, f"{inputs_of}.npz"), {})


def plan(task: Task) -> Found:
    """Return what the search finds for a model, ended after the evaluations that it may take."""
    request = understand(task.inputs, {**task.options, "time_budget": FOREVER, "budget": FOREVER})
    case = load_case(task.model, request.data, request.criterion)
    with counting(task.cap) as spent:
        fixed = fix(case, request.settings, Silent())
    kept = fixed.result.kept
    worth = worth_of(fixed.space, fixed.assigned)
    return Found(
        fixed.plan.candidates,
        len(kept),
        None if worth is None else worth.cost,
        spent[0],
        fixed.space.bench.excess(fixed.assigned),
        fixed.result.passed,
        fixed.result.minimal,
        None if worth is None else worth.fp32,
    )


@contextmanager
def counting(cap: int | None) -> Iterator[list[int]]:
    """Count the assignments that searches evaluate within the block, and end them after `cap`."""
    spent, since, inside = [0], [0], [0]
    original: dict[tuple[type, str], Callable[..., Any]] = {
        (Budget, "bounding"): Budget.bounding,
        (Space, "find"): Space.find,
        (Bench, "evaluate"): Bench.evaluate,
        (Bench, "contribution"): Bench.contribution,
    }

    @contextmanager
    def bounding(self: Budget, *arguments: Any, **more: Any) -> Iterator[None]:
        inside[0] += 1
        try:
            with original[Budget, "bounding"](self, *arguments, **more):
                yield
        finally:
            inside[0] -= 1

    def find(self: Space, *arguments: Any, **more: Any) -> Any:
        since[0] = self.bench.evaluations
        try:
            return original[Space, "find"](self, *arguments, **more)
        finally:
            spent[0] += self.bench.evaluations - since[0]
            since[0] = sys.maxsize

    def ended(name: str) -> Callable[..., Any]:
        def method(self: Bench[Any], *arguments: Any, **more: Any) -> Any:
            if cap is not None and inside[0] and spent[0] + self.evaluations - since[0] >= cap:
                raise OutOfTime
            return original[Bench, name](self, *arguments, **more)

        return method

    since[0] = sys.maxsize
    changed: dict[tuple[type, str], Any] = {(Budget, "bounding"): bounding, (Space, "find"): find}
    changed |= {(Bench, name): ended(name) for name in ("evaluate", "contribution")}
    for (owner, name), method in changed.items():
        setattr(owner, name, method)
    try:
        yield spent
    finally:
        for (owner, name), method in original.items():
            setattr(owner, name, method)


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Compare costs at the earlier number of evaluations, for each available model.

    Compared is the cost of what a user would take: the plan, or the FP32 model if that costs less,
    as it may in tiny models, whose Casts cost more than low nodes save. The title of such a run
    says so (`reporting/remarks.py`).
    """
    before = {name: Found(**found) for name, found in json.loads(BEFORE.read_text("utf-8")).items()}
    figures, costs = [], []
    for task in tasks(bench):
        old = before.get(task.name)
        new = plan(task if old is None else replace(task, cap=old.evaluations))
        note = f"{new.kept} kept, {new.evaluations} evaluations, excess {new.excess:.3g}"
        note += "" if new.minimal else ", not shown to be minimal"
        if old is None or old.cost is None or new.cost is None:
            figures.append(reported(f"{task.name}: cost", new.cost or math.nan, note))
            continue
        cost, earlier = (min(one.cost, new.fp32 or math.inf) for one in (new, old) if one.cost)
        note += f", cost {new.cost:.3f}, FP32 {new.fp32 or math.nan:.3f}"
        note += f"; before {old.kept}, {old.evaluations}, {old.excess:.3g}, cost {old.cost:.3f}"
        figures.append(at_most(f"{task.name}: cost over that before", cost / earlier, 1, note))
        what = f"{task.name}: passed, if it did before"
        figures.append(equal(what, new.passed or not old.passed, wanted=True))
        if new.evaluations > old.evaluations:  # a search may end a little later than it is asked to
            what = f"{task.name}: evaluations over those before"
            figures.append(at_most(what, new.evaluations / old.evaluations, 1, note))
        costs.append((cost, earlier))
    total = sum(new for new, _ in costs) / sum(old for _, old in costs)
    figures.append(at_most("all: sum of costs over that before", total, 0.9))
    changed = [pair for pair in costs if pair[0] != pair[1]]
    if changed:
        total = sum(new - 1 for new, _ in changed) / sum(old - 1 for _, old in changed)
        what = "models whose plan changed: what they cost beyond everything low, over that before"
        figures.append(reported(what, total, f"of {len(changed)}"))
    missing = bench.missing()
    if not os.environ.get(CASES_VARIABLE):
        missing = "; ".join(filter(None, (missing, f"{CASES_VARIABLE} is not set")))
    return figures, missing


def main(arguments: Sequence[str] | None = None) -> None:
    """Record what is found, model by model; those that are in the file already are left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=Path, required=True)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args(arguments)
    file: Path = given.write
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    for task in tasks(Workbench(Path(), models_folder())):
        if task.name not in known and (not given.names or task.name in given.names):
            known[task.name] = asdict(plan(task))
            file.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", "utf-8")
            print(task.name, flush=True)


if __name__ == "__main__":
    main()
