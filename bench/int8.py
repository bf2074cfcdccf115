"""INT8 plans against plain MinMax and against other tools' choices of what to leave out.

    python -m bench.int8                    all models
    python -m bench.int8 "digits" …         some; their figures replace earlier ones
    python -m bench.int8 --own "digits" …   the same, with the peers' earlier rankings judged anew

Each model is fixed with `--to int8`. The other tools' methods rank the same nodes by the same
emulation, on top of the same FP16 plan and with the same ranges, and leave out nodes until the
result passes as the search requires (`int8_peers.py`). All are judged on held-out samples.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench import digits_cnn
from bench.figures import Figure, Result, at_least, at_most, equal, machine, reported, table
from bench.inference import difference
from bench.int8_peers import Defaults, bisected, by_itself, debugged, first_passing, left_alone
from bench.runs import MODELS_VARIABLE, ROOT, Workbench, digits, models_folder
from halfwise.case import Case, Sample, Settings
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import RunFailed
from halfwise.fixing.bench import Bench
from halfwise.fixing.int8.placing import quantisable, quantised
from halfwise.fixing.kernels import elements, flops
from halfwise.fixing.loop import fix
from halfwise.fixing.space import Int8Space
from halfwise.graph.model import node_name
from halfwise.metrics import Computed, Outputs, metric_loss
from halfwise.options.loading import load_case
from halfwise.options.options import Data
from halfwise.progress import Silent
from halfwise.records import Criterion, NodeName, replace
from tests.unit.fixing.int8.products import peaks_of

POINTS = 0.005
"""How far top-1 may be from that of FP32."""
MACS = 0.8
COST = 0.7
EVALUATIONS = 0.5
FEW = 8
"""Candidates up to which all plans are tried."""
COMPARED = 8
"""Samples on which files and emulations are compared."""
CALIBRATION = 48
"""Test images that calibrate, as in `examples/digits`; the others are held out."""

Left = frozenset[NodeName]
OWN = "halfwise"
DEFAULTS = "onnxruntime's defaults"
RESULTS = ROOT / "bench" / "results"


@dataclass(frozen=True)
class Task:
    """A model, its data, and the goal of its INT8 plan.

    Attributes:
        name: Its name in the results.
        trained: Whether a script of the repository trained it: then `MACS` is the goal.
    """

    name: str
    model: Path
    data: Data
    criterion: Criterion
    trained: bool = False


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures of the available models, and which models are missing."""
    return measured(bench, ())


def measured(
    bench: Workbench, names: Sequence[str], known: Mapping[str, Any] | None = None
) -> tuple[list[Figure], str | None]:
    """Return the figures of the available models in `names`; of all if it is empty.

    `known` are details of an earlier run, whose peers' choices are not made again.
    """
    details: dict[str, Any] = {}
    for task in tasks(bench, names):
        if not names or task.name in names:
            print(f"{task.name} …", file=sys.stderr, flush=True)
            case, earlier = load_case(task.model, task.data, task.criterion), (known or {})
            found = Found(task, case, earlier.get(task.name, {}).get("plans"))
            details[task.name] = {
                "figures": [asdict(figure) for figure in found.figures()],
                "plans": {name: asdict(score) for name, score in found.scores.items()},
            }
    bench.details["int8"] = details
    return figures_of(details), bench.missing()


def figures_of(details: Mapping[str, Any]) -> list[Figure]:
    """Return the figures of all models together, and those of each."""
    own = [Figure(**told) for task in details.values() for told in task["figures"]]
    return [*together({name: task["plans"] for name, task in details.items()}), *own]


def tasks(bench: Workbench, names: Sequence[str] = ()) -> Iterator[Task]:
    """Yield every available model; files are made only for those in `names`."""
    top1 = Criterion(metric="top1", metric_drop=POINTS)
    images, test = digits_cnn.load_split()
    used, left = _written(bench.folder, test)
    cnn = bench.folder / "digits_cnn.onnx"
    if not names or any(name.startswith(cnn.stem) for name in names):
        onnx.save(digits_cnn.written(digits_cnn.train(images)), cnn)
    for name, model in (("digits", ROOT / digits().model), ("digits_cnn", cnn)):
        data = replace(used, heldout=left.inputs, heldout_labels=left.labels)
        yield Task(name, model, data, top1, trained=True)
        yield Task(f"{name}, default tolerance", model, replace(data, labels=None), Criterion())
    asked = {
        "magika": (top1,),
        "ppocr_v3_det": (Criterion(metric="mask-iou", metric_drop=0.01),),
        "yolox_nano": (
            Criterion(metric="detection-f1", metric_drop=0.01),
            Criterion(metric="map", metric_drop=0.01),
        ),
    }
    for name, criteria in asked.items():
        if (subject := bench.real(name)) is not None:
            for criterion in criteria:
                data = Data(str(subject.inputs))
                yield Task(f"{name}, {criterion.metric}", subject.model, data, criterion)


def _written(folder: Path, test: digits_cnn.Split) -> tuple[Data, Data]:
    """Write the calibration images, and all others, as samples of one image."""
    parts = []
    for name, rows in (("used", slice(None, CALIBRATION)), ("left", slice(CALIBRATION, None))):
        np.savez(folder / f"{name}.npz", images=test.images[rows][:, None])
        labels = folder / f"{name}.json"
        labels.write_text(json.dumps(test.labels[rows].tolist()))
        parts.append(Data(str(folder / f"{name}.npz"), labels=labels))
    return parts[0], parts[1]


@dataclass(frozen=True)
class Score:
    """The result of leaving some nodes out of INT8.

    Attributes:
        left: How many of the candidates.
        names: Which.
        passes: Whether it passes on the samples of the search.
        extra: What it costs over all candidates in INT8, in costs of everything in FP16.
        heldout: The metric lost on held-out samples; without one, the error over what is allowed.
        evaluations: Plans that were run to find it.
    """

    left: int
    names: tuple[NodeName, ...]
    passes: bool
    extra: float
    heldout: float
    evaluations: int


class LeftOut:
    """Runs what leaves nodes out of INT8."""

    def __init__(self, space: Int8Space) -> None:
        """Take the plans."""
        self._space, self._judge = space, space.bench.judge

    def prepare(self, left: Left, /) -> None:
        """Load it."""
        self._judge.prepare(self._space.plan(left))

    def run(self, sample: Sample, left: Left, /) -> Outputs:
        """Return its outputs."""
        return self._judge.run(sample, self._space.plan(left))

    def release(self) -> None:
        """Free what was loaded."""
        self._judge.release()


class Found:
    """What a run finds for one task, and what other tools would."""

    def __init__(self, task: Task, case: Case, known: Mapping[str, Any] | None = None) -> None:
        """Run it; `known` are the scores of an earlier run."""
        self.task, self.case = task, case
        fixed = fix(case, Settings(int8=True), Silent())
        self.fixed = fixed.rungs[-1] if fixed.rungs else fixed
        space = self.fixed.space
        assert isinstance(space, Int8Space), f"{task.name}: no INT8 rung"
        self.space, self.candidates = space, space.choices
        self.network = space.variant.case.network
        # Without those that joined later: the rung found its ranges earlier.
        samples = space.variant.case.calibration
        self.peaks = peaks_of(self.network, samples)
        own, judge = space.bench, LeftOut(space)
        self.searched = Bench(judge, own.samples, own.references, own.tolerance)
        references = [Session(case.network.model).run(sample) for sample in case.heldout]
        self.heldout = Bench(judge, case.heldout, references, own.tolerance)
        self.own = self.score(self.fixed.result.kept, self.fixed.evaluations)
        self.peers = self._peers() if known is None else self._again(known)

    @property
    def scores(self) -> dict[str, Score]:
        """All scores, ours first."""
        return {OWN: self.own, **self.peers}

    @property
    def macs(self) -> float:
        """The share of multiply-accumulates in INT8."""
        network, shapes = self.space.variant.case.network, self.space.variant.shapes
        work = {
            node_name(n): flops(n, shapes, elements(n.outputs[0], shapes)) for n in network.nodes()
        }
        quantised = self.candidates - self.fixed.result.kept
        return sum(work.get(name, 0.0) for name in quantised) / sum(work.values())

    def score(self, left: Left, evaluations: int) -> Score:
        """Return the score of leaving these out."""
        left &= self.candidates
        passes = self.searched.evaluate(left).passed
        return Score(
            len(left),
            tuple(sorted(left)),
            passes,
            self.price_of(left),
            self._lost(left),
            evaluations,
        )

    def price_of(self, left: Left) -> float:
        """Return the cost of leaving these out."""
        least, cost = self.space.cost(frozenset()), self.space.cost(left)
        assert least is not None
        assert cost is not None
        return cost - least

    def _lost(self, left: Left) -> float:
        return self._worth([*self.heldout.outputs(left)])

    def _worth(self, results: Sequence[Computed]) -> float:
        bench, tolerance = self.heldout, self.heldout.tolerance
        if tolerance.metric is None:
            return bench.excess_of(results) * tolerance.factor
        computed = [one for one in results if not isinstance(one, RunFailed)]
        return metric_loss(tolerance.metric, bench.references, computed, bench.samples.labels)

    def _again(self, known: Mapping[str, Any]) -> dict[str, Score]:
        """Judge what peers left out in an earlier run; only onnxruntime's own model is not run."""
        found = {}
        for peer, told in known.items():
            if peer != OWN:
                score, left = Score(**told), frozenset(map(NodeName, told["names"]))
                judged = self.score(left, score.evaluations)
                own = replace(score, names=judged.names, extra=judged.extra)
                found[peer] = own if peer == DEFAULTS else judged
        return found

    def _peers(self) -> dict[str, Score]:
        """Return what each ranking leaves out until it passes; no ranking if all in INT8 passes."""
        if self.searched.evaluate(frozenset()).passed:
            return {"all in INT8": self.score(frozenset(), 1)}
        int8 = quantised(self.network, self.candidates, self.peaks)
        debugger = debugged(self.network, int8, self.searched.samples)
        rankings = {
            "each quantised by itself": by_itself(self.searched, self.candidates),
            "each left out by itself": left_alone(self.searched, self.candidates),
            "onnxruntime's debugger": debugger,
        }
        found = {}
        for name, ranking in rankings.items():
            left, tried = first_passing(self.searched, ranking.nodes)
            found[name] = self.score(left, ranking.evaluations + tried)
        defaults = self._defaults(debugger.nodes)
        return found | ({} if defaults is None else {DEFAULTS: defaults})

    def _defaults(self, ranked: Sequence[NodeName]) -> Score | None:
        """Return what onnxruntime's defaults leave out until they pass, by its ranking, with FP32.

        Other nodes that it quantises are left out last; they cost nothing here.
        """
        samples, others = self.searched.samples, set(map(node_name, self.network.nodes()))
        made = Defaults(self.case.network, samples)

        def passes(left: Left) -> bool:
            session = Session(made.without(left))
            return self.searched.excess_of([session.run(s) for s in samples]) <= 1

        found = bisected(passes, [*ranked, *sorted(others.difference(ranked))])
        if found is None:
            return None
        left, tried = found
        session = Session(made.without(left))
        lost = self._worth([session.run(sample) for sample in self.heldout.samples])
        own = left & self.candidates
        return Score(len(own), tuple(sorted(own)), True, self.price_of(own), lost, tried + 1)

    def plain(self) -> float:
        """Return the loss of all candidates in INT8 with MinMax, the rest FP32, held out."""
        seen = peaks_of(self.network, self.searched.samples)
        session = Session(quantised(self.network, quantisable(self.network), seen).model)
        return self._worth([session.run(sample) for sample in self.heldout.samples])

    def figures(self) -> list[Figure]:
        """Return the figures of the task."""
        name, own = self.task.name, self.own
        peers = "; ".join(
            f"{peer}: {score.left} left out, cost {score.extra:.4f}, held out {score.heldout:.4f}, "
            f"{score.evaluations} evaluations"
            for peer, score in self.peers.items()
        )
        whole = len(self.candidates)
        note = f"{own.left} of {whole} left out, {self.macs:.1%} of multiply-accumulates in INT8"
        passed = self.fixed.verdict.passed
        metric = self.task.criterion.metric or "error over what is allowed"
        figures = [
            reported(f"{name}: the INT8 plan passes", passed, note),
            reported(f"{name}: cost kept out of INT8", own.extra, peers),
            reported(f"{name}: {metric} lost on held-out samples by plain MinMax", self.plain()),
            self._evaluated(whole),
            *self._cheapest(),
            *self._equal(),
        ]
        if not self.task.trained:
            what = f"{name}: {metric} lost on {len(self.case.heldout)} held-out samples"
            return [*figures, reported(what, own.heldout)]
        what = f"{name}: top-1 lost on all {len(self.case.heldout)} held-out images"
        shares = at_least(f"{name}: multiply-accumulates in INT8", self.macs, MACS)
        return [*figures, at_most(what, own.heldout, POINTS), shares]

    def _cheapest(self) -> list[Figure]:
        """Return the least cost of all plans that pass, if there are few candidates."""
        if not self.own.left or len(self.candidates) > FEW:
            return []
        counts = range(len(self.candidates) + 1)
        plans = [frozenset(p) for n in counts for p in combinations(sorted(self.candidates), n)]
        passing = (p for p in plans if self.searched.evaluate(p).passed)
        least = min(map(self.price_of, passing))
        what = f"{self.task.name}: least cost of all {len(plans)} plans, of those that pass"
        return [reported(what, least)]

    def _evaluated(self, candidates: int) -> Figure:
        tried = self.own.evaluations
        what = f"{self.task.name}: evaluations / candidates"
        return at_most(what, tried / candidates, EVALUATIONS, f"{tried} / {candidates}")

    def _equal(self) -> list[Figure]:
        """Compare the emulation with two files: the plan's, and INT8 with FP32 in ONNX Runtime.

        ONNX Runtime's CPU computes FP16 in FP32: the plan's file is compared in typed emulation.
        """
        space, name = self.space, self.task.name
        plan = space.plan(self.fixed.result.kept)
        rest = space.variant.computing - self.candidates
        every = replace(plan, kept=rest, int8=self.candidates)
        int8 = quantised(self.network, self.candidates, self.peaks).model
        typed = Session(emulate_typed(self.fixed.rewritten.model))
        plain, optimised = (Session(int8, optimise=how) for how in (False, True))
        one = two = three = largest = 0.0
        samples = self.searched.samples
        for sample in samples.select(range(min(COMPARED, len(samples)))):
            run = partial(space.bench.judge.run, sample)
            outputs = plain.run(sample)
            one = max(one, difference(run(plan), typed.run(sample)))
            two = max(two, difference(run(every), outputs))
            three = max(three, difference(outputs, optimised.run(sample)))
            largest = max(largest, *(float(np.abs(a).max(initial=0)) for a in outputs.values()))
        what, note = f"{name}: all in INT8, the rest FP32", f"largest output {largest:.4g}"
        return [
            equal(f"{name}: emulation − typed emulation of the file", one, 0.0),
            equal(f"{what}: emulation − ONNX Runtime", two, 0.0),
            reported(f"{what}: ONNX Runtime optimised − not", three, f"{note}; {machine()['cpu']}"),
        ]


def together(plans: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    """Return the total cost kept out of INT8 over that of the peer that keeps the least.

    Only models count in which both the peer and halfwise leave something out and pass.
    """
    totals: dict[str, tuple[float, float, list[str]]] = {}
    for task, scores in plans.items():
        mine = scores[OWN]
        for peer, score in scores.items():
            if peer != OWN and all(s["left"] and s["passes"] for s in (mine, score)):
                own, other, names = totals.get(peer, (0.0, 0.0, []))
                totals[peer] = own + mine["extra"], other + score["extra"], [*names, task]
    figures = []
    for peer, (own, other, names) in sorted(totals.items(), key=lambda t: -t[1][0] / t[1][1]):
        what = f"cost kept out of INT8 over that of {peer}, in total"
        note = f"{own:.4f} / {other:.4f}: {', '.join(names)}"
        figures.append(at_most(what, own / other, COST, note))
    return figures


def main(names: Sequence[str]) -> None:
    """Measure some models, and merge the figures with earlier ones."""
    file = RESULTS / "int8.json"
    known = json.loads(file.read_text())["details"] if "--own" in names else None
    names = [name for name in names if name != "--own"]
    with tempfile.TemporaryDirectory(prefix="halfwise-bench-") as folder:
        bench = Workbench(Path(folder), models_folder())
        missing = measured(bench, names, known)[1]
    before = json.loads(file.read_text())["details"] if file.exists() and names else {}
    details = {**before, **bench.details["int8"]}
    command = f"{MODELS_VARIABLE}=DIR python -m bench.int8"
    result = Result("int8", command, figures_of(details), missing, details=details)
    result.save(RESULTS)
    print(table([result]))


if __name__ == "__main__":
    main(sys.argv[1:])
