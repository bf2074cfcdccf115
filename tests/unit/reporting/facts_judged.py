"""Facts on engines, verdicts, notes and other commands, to put in words: see `phrases`."""

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any, get_args

from halfwise import records
from halfwise.metrics.recognised import KINDS, SEEN
from halfwise.records import (
    Cause,
    Change,
    Criterion,
    EngineDiagnosis,
    Failure,
    FailureBound,
    FileRun,
    IntermediateNonfinite,
    JudgedBatch,
    LadderRung,
    MadeUp,
    MetricResult,
    NodeName,
    Note,
    Recognised,
    Remark,
    Run,
    RungTried,
    ShapeVerdict,
    Step,
    TaskScore,
    TensorName,
    Unjudged,
    Unsupported,
    Verdict,
    Worth,
    replace,
)
from halfwise.reporting import causes, diagnosis, remarks, view
from halfwise.reporting import engines as of_engines
from halfwise.reporting import plan as rungs
from halfwise.reporting import verdict as verdicts
from halfwise.reporting.parts import WORDS
from tests.unit.reporting import runs
from tests.unit.reporting.engine_runs import build, engines, failed, result
from tests.unit.reporting.facts_planned import (
    TASK,
    A,
    B,
    followed_by,
    int8_plan,
)
from tests.unit.reporting.test_repairs import SCALED
from tests.unit.reporting.test_verdict import BATCH, BOXES, axis, bound, group, nonfinite_in
from tests.unit.reporting.test_worth import NOTHING

# Engines.


def tried(**changed: Any) -> RungTried:
    return RungTried(**{"rung": "fp16", "end": "tolerance"} | changed)


def tried_rungs() -> Iterator[str]:
    yield from (rungs.rung_line(tried(end=end)) for end in get_args(records.RungEnd))
    yield rungs.proven_line(result("FP32, TF32 on", 2, 0.216, rung="tf32"))
    yield rungs.proven_line(result("FP32, TF32 off", 2, 0.5, rung="fp32", latency=None))


def delivered() -> Iterator[str]:
    """Yield why what is delivered is not low, and what is unknown of it."""

    def told(end: str, *, rung: str = "fp32", of: str = "fp16", **changed: Any) -> str:
        found = engines(rung=rung, rungs=(tried(rung=of, end=end),), **changed)
        return f"{rungs.in_full((found,))} {rungs.rung_caution(found)}".strip()

    yield from (told(end) for end in get_args(records.RungEnd))
    yield told("unbuildable", rung="tf32")
    yield told("tolerance", rung="tf32", of="tf32")
    yield told("tolerance", causes=(Cause(kind="refused", builds=(3,)),))
    row = engines().row
    assert row is not None
    untimed = replace(row, untimed="It crashed.")
    yield told("tolerance", results=(untimed,))
    yield told("lost", results=(replace(untimed, lost=True),))


def blamed() -> Iterator[str]:
    known: dict[str, Any] = {"nodes": (A, B), "excess": 9.0, "other": 0.5}
    for kind in get_args(records.CauseKind):
        yield rungs.cause_line(Cause(kind=kind, builds=(2, 3), **known))
        if kind != "ignored":
            yield rungs.cause_line(Cause(kind=kind, builds=(2,)))
    yield from WORDS["spared"].values()


def built() -> Iterator[str]:
    worker = engines().worker
    bare = replace(worker, gpu=None, tensorrt=None, compute_capability=None, driver=None)
    overridden = replace(worker, tf32_override="0")
    wrong = result("mixed", 1, 1.0, verdict=runs.verdict(passed=False))
    file = engines().delivered
    assert file is not None
    there = replace(file, side="worker")
    tf32 = replace(build(3, "mixed").config, tf32=True, optimization_level=5)
    row = result("mixed", 3, 1.0, build=build(3, "mixed", config=tf32))
    nothing: dict[str, Any] = {"delivered": None, "spread": (), "results": ()}
    for found in (
        engines(worker=bare, **nothing),
        engines(worker=overridden, **nothing),
        engines(rung="fp16", **nothing),
        engines(**nothing | {"results": (wrong,)}),
        engines(spread=(0.4,), confirmed=1, delivered=there, results=(row,)),
        engines(rung="tf32", results=(row,)),
    ):
        yield from of_engines.made(found)
    yield from of_engines._remarks(engines(results=(row,)))
    crashed = "The build ended with SIGSEGV."
    for builds in ((failed(2, message=crashed),), (failed(3, said="No tactic."), failed(4))):
        yield from of_engines._failures(builds)
    judged = ShapeVerdict(shapes={}, at="min", verdict=runs.verdict(passed=False), reason="Cut.")
    yield of_engines.shape_line(judged)
    yield of_engines.shape_line(replace(judged, verdict=None, reason=""))
    broken = result("FP16", 4, 1.0, verdict=None, latency=None, failure="it does not run.")
    low = replace(row, latency=None, untimed="It crashed.")
    yield from of_engines._remarks(engines(worker=overridden, results=(broken, low), notes=()))


def ladder() -> Iterator[str]:
    """Yield what is told beside a ladder: what is unknown, and why types were not tried."""
    why = (Failure(kind="rung", text="output y is far off"),)
    asked = runs.provenance(options={"to": "int8"})
    note = Note(kind="quantised", facts={**COUNTS, "whose": "model"})
    own = replace(asked, notes=(note,))
    untried = Remark(kind="int8-untried", names={"why": "x has one value."})
    fp32, fp16 = LadderRung(rung="fp32", passed=True), LadderRung(rung="fp16", passed=True)
    failing = replace(fp16, passed=False, failures=why)
    int8 = LadderRung(rung="int8", passed=True, chosen=True)
    for low, changed in (
        ((replace(fp32, passed=None), failing), {}),
        ((replace(fp32, passed=False), failing), {}),
        ((fp32, LadderRung(rung="tf32", passed=False, failures=why)), {}),
        ((fp32, replace(fp16, passed=None)), {}),
        ((fp32, fp16), {}),
        ((fp32, fp16), {"provenance": own}),
        ((fp32, fp16), {"plan": runs.plan((), remarks=(untried,))}),
    ):
        found = rungs.ladder_lines(runs.run(**{"rungs": low, "provenance": asked, **changed}))
        assert found is not None
        yield from found.lines
    ends = (
        *(fp16, replace(fp16, passed=None), failing, int8),
        *(replace(fp32, by=by) for by in get_args(records.RightBy)),
        LadderRung(rung="int8", passed=None, left_out=3, candidates=3),
    )
    for made in (runs.run(rungs=ends), runs.run(rungs=ends, engines=engines())):
        table = rungs.ladder_table(made)
        assert table is not None
        yield " | ".join(row[-1] for row in table.rows)


# The verdict.


def titles() -> Iterator[str]:
    empty, flat = Unjudged(kind="empty", name="det"), Unjudged(kind="flat", name="ix")
    metric = Unjudged(kind="metric", name="top1")
    idle = Unjudged(kind="never-ran", name="choose", body="else_branch", op="If")
    drawn = runs.provenance(notes=(Note(kind="random", severity="warning", facts={}),))
    score = MetricResult(name="top1", reference=1, candidate=1, allowed_drop=0.01, passed=True)
    untested = {"passed": False, "judged": False}
    one = {"unseen": False, "samples": runs.HELDOUT[:1]}
    for changed in (
        {"passed": False, "on_real_data": False},
        {**untested, "on_real_data": False, "unjudged": (empty, flat)},
        {**untested, "unjudged": (empty, metric, idle)},
        {**untested, **one},
        {"passed": False, "unseen": False, "samples": (), "outputs": {}},
        {"sums": "fp32"},
        {"failure_bound": bound(10, 0, 0.2589)},
        {"metric": score, "samples": runs.HELDOUT[:4]},
        {"metric": replace(score, evidence=1, unit="rows")},
        {"passed": False, "failures": (Failure(kind="worse", text="x"),)},
    ):
        yield view.report(runs.run(verdict=runs.verdict(**changed))).title
    yield view.report(runs.run(provenance=drawn)).title
    recorded = runs.verdict(level="recorded", runner="trt-runner-N0")
    yield view.report(runs.verification(verdict=recorded)).title


def worth() -> Iterator[str]:
    measured = replace(NOTHING, measured=2.9, measured_fp32=3.0)
    for made in (
        NOTHING,
        measured,
        Worth(cost=3.0, fp32=3.0),
        Worth(cost=1.0, fp32=0.8),
        Worth(cost=3.0, fp32=2.0),
    ):
        yield remarks.nothing_gained(runs.run(worth=made))
    int8 = runs.plan((), int8=(NodeName("a"),))
    for priced in (NOTHING, measured):
        yield remarks.cost_line(runs.run(worth=priced, plan=int8))
    given = Worth(cost=1.0, fp32=1.7)
    note = Note(kind="quantised", facts={"whose": "model"})
    yield from [*view._figures(runs.verification(worth=given))][:-1]
    own = runs.provenance(notes=(note,))
    yield from [*view._figures(runs.verification(worth=given, provenance=own))][1:-1]


def asked(mask: Recognised) -> Iterator[str]:
    """Yield what is asked by default, with labels, and of one output by one metric."""
    seen = replace(mask, kind="class-scores", evidence=("rows-sum",))
    top1, sure = (
        replace(seen, metric=metric, outputs=("y",), required=least)
        for metric, least in (("top1", 0.99), ("confidence", 0.9))
    )
    labelled = MetricResult(
        name="auto",
        reference=1,
        candidate=0.5,
        allowed_drop=1,
        passed=True,
        parts=(
            TaskScore(metric="top1", outputs=("y",), value=0.75, required=0.74, passed=True),
            TaskScore(metric="confidence", outputs=("y",), value=1, required=0.9, passed=True),
        ),
    )
    by_use = Criterion(metric="auto", metric_drop=1.0, recognised=(top1, sure))
    alone = Criterion(metric="mask-iou", metric_drop=0.05, recognised=(mask,))
    alike = {name: runs.output_error() for name in ("y", "h")}
    own, beside = {"y": alike["y"]}, alike
    targets = (FileRun(runner="ONNX Runtime", outputs=own), FileRun(runner="WebGPU", outputs=own))
    for criterion, verdict in (
        (Criterion(), runs.verdict()),
        (by_use, runs.verdict(outputs=own, strict=0.9)),
        (by_use, runs.verdict(metric=labelled, outputs=beside, strict=3.04)),
        (by_use, runs.verdict(outputs=own, strict=inf)),
        (by_use, runs.verdict(outputs=own, passed=False, strict=0.2)),
        (by_use, runs.verdict(outputs=own, passed=False, strict=0.2, as_file=targets)),
        (alone, runs.verdict()),
    ):
        yield " · ".join(verdicts.asked(criterion, verdict, heldout=verdict.unseen))


def acceptable() -> Iterator[str]:
    mask = Recognised(kind="mask", metric="mask-iou", outputs=("m",), required=0.99, evidence=())
    flow = replace(mask, metric="epe", outputs=("a", "b"), required=-0.1)
    for criterion in (
        Criterion(),
        Criterion(max_abs=0.5, snr_db=40, cosine=0.9),
        TASK,
        replace(TASK, drop_source="MLPerf"),
        Criterion(metric="epe", metric_drop=0.1),
        Criterion(metric="auto", recognised=(mask, flow)),
    ):
        yield verdicts.allowed(criterion)
    yield from asked(mask)
    parts = (
        TaskScore(metric="mask-iou", outputs=("m",), value=0.5, required=0.99, passed=False),
        TaskScore(metric="rel-max", outputs=("h",), value=-0.2, required=-0.01, passed=True),
    )
    both = MetricResult(
        name="auto", reference=1, candidate=0.5, allowed_drop=1, passed=True, parts=parts
    )
    yield from verdicts.part_lines({"all FP16": both, "mixed": both})
    few = replace(parts[0], evidence=1, unit="mask pixels")
    yield from verdicts.part_lines({"mixed": replace(both, parts=(few,))})
    yield verdicts.figures(both)
    alone = MetricResult(name="epe", reference=0, candidate=-0.2, allowed_drop=0.1, passed=False)
    yield verdicts.figures(alone)
    boxes = replace(few, unit="boxes")
    yield from map(verdicts.rests_on, (boxes, replace(boxes, evidence=3)))
    for score in (alone, replace(alone, name="top1", labelled=False)):
        found = view.metric_lines(runs.verification(verdict=runs.verdict(metric=score)))
        assert found is not None
        yield from found.lines
    yield from view._largest(
        runs.verification(
            verdict=runs.verdict(outputs={"a": runs.output_error(snr_db=40), "b": runs.BROKEN}),
            criterion=Criterion(snr_db=30, max_abs=0.6),
        )
    )


def bounds() -> Iterator[str]:
    few = replace(bound(20, 0, 0.5), joined=10)

    def told(found: FailureBound | None, **changed: Any) -> Iterable[str]:
        lines = verdicts.bound_part(runs.run(verdict=runs.verdict(failure_bound=found), **changed))
        return () if lines is None else lines.lines

    for found in (bound(10, 0, 0.2589), bound(12, 1, 0.3387), bound(12, 2, 0.4382)):
        yield from told(found)
    yield from (*told(bound(2, 2, 1)), *told(few))
    yield from told(bound(10, 0, 0.26), criterion=Criterion(snr_db=40))


def unjudged() -> Iterator[str]:
    body = {"body": "then_branch", "op": "If"}
    given: tuple[dict[str, Any], ...]
    for kind in get_args(records.UnjudgedKind):
        given = ({"reference": 0.1, "other": 0.2, "allowed": 0.1},)
        given += ({"labelled": True},) if kind in ("metric", "guessing") else ()
        given += ({},) if kind == "zeros" else ()
        given = (body, {**body, "inputs": ("rate",)}) if kind == "never-ran" else given
        for facts in given:
            yield verdicts.not_judged(Unjudged(kind=kind, name="y", **facts), heldout=True)
    rise = Unjudged(kind="metric", name="epe", reference=-0.5, other=-0.6, allowed=0.1)
    yield verdicts.not_judged(rise, heldout=False)


def sizes() -> Iterator[str]:
    def told(*axes: records.DynamicAxis, batch: JudgedBatch | None = None) -> Iterator[str]:
        return verdicts.size_lines(runs.verdict(axes=axes, batch=batch))

    yield from told(axis(3, 5, symbol=None), axis(*range(1, 30)), axis(640))
    yield from told(*(axis(1, why=why, detail="d") for why in get_args(records.judged.NotBatched)))
    two = replace(axis(1, 2), inputs={TensorName("ids"): 0, TensorName("mask"): 1})
    yield from told(two, batch=BATCH)
    yield from told(axis(1, 2), batch=replace(BATCH, whole=True, passed=False))
    near = group(room=10.0, passed=False)
    offset = group(scale=2e4, span=2e3, max_abs=900.0, allowed=200.0)
    outputs = {"output0": runs.output_error(groups=(BOXES, near, offset))}
    scales = verdicts.scale_lines(runs.verdict(outputs=outputs))
    assert scales is not None
    yield from scales.lines
    file = FileRun(runner="r", passed=True, outputs={"y": runs.BROKEN})
    score = MetricResult(name="top1", reference=1, candidate=1, allowed_drop=0.01, passed=True)
    scored = replace(file, metric=score)
    yield from verdicts.file_lines(runs.verdict(as_file=(scored,), metric=score))
    refused = FileRun(runner="r", not_run="no kernel.", outputs={})
    built = FileRun(runner="TensorRT for RTX (SM86)", built=True, outputs={})
    folded = replace(built, folded=(NodeName("kept"),), passed=False)
    fixed = replace(built, static="R")
    yield from verdicts.file_lines(runs.verdict(as_file=(file, refused, built, folded, fixed)))


def not_finite() -> Iterator[str]:
    def told(found: Verdict) -> Iterable[str]:
        lines = verdicts.inside(found)
        return () if lines is None else lines.lines

    yield from told(nonfinite_in(True, True))
    yield from told(nonfinite_in(True, False))
    yield from told(nonfinite_in(True, True, None))
    side = replace(runs.SIDE, nonfinite=446, elements=960)
    yield from told(runs.verdict(outputs={"y": runs.output_error(reference=side)}))


def compared() -> Iterator[str]:
    for kind in get_args(records.FigureKind):
        change = Change(kind=kind, of="y", before=0.001, now=0.0012, limit=0.00105, passed=False)
        yield view.worsened(change)
    gone = replace(change, now=None, passed=True)
    yield view.worsened(gone)
    found = records.Baseline(run="before", date="2026", same_samples=False, changes=(gone,))
    fine = replace(change, passed=True)
    alike = replace(found, same_samples=True, changes=(fine,))
    for one in (
        alike,
        replace(alike, changes=(fine, fine, gone), same_model=False),
        found,
    ):
        yield view.baseline_line(runs.run(compared=one))


# Notes and steps.

LAYOUT = {"input": "x", "shape": (2, 3), "samples": 2, "sample": (1, 3), "ranked": True}
COUNTS = {"products": 3, "whole": 1, "half": 1, "integers": 1, "quantised": 9}
LINTED: dict[str, Any] = {"rules": ("1 × constant-beyond-fp16",), "more": 0}
NOTES: Mapping[str, tuple[dict[str, Any], ...]] = {
    "samples": ({"samples": 1}, {"samples": 3, "files": 2}),
    "array": ({"array": "a", "where": "f.npz", "input": "x"},),
    "layout": (
        {**LAYOUT, "layout": "stacked"},
        {**LAYOUT, "layout": "batched", "stored": "float64", "dtype": "float32", "cast": "nearest"},
        {**LAYOUT, "layout": "single", "samples": 1},
        {**LAYOUT, "layout": "single", "counts": 0},
        {**LAYOUT, "layout": "single", "ranked": 0},
    ),
    "first-sample": (
        {"input": "x", "shape": (3,), "added": 0},
        {"input": "x", "shape": (3,), "added": 1, "array": "a"},
    ),
    "ignored": ({"folder": "f", "names": ("a", "b")},),
    "random": ({"samples": 4, "shapes": "x 1×3"},),
    "preprocess": ({"function": "f.py:f"},),
    "mistyped": ({"names": tuple("abcdef")},),
    "stored": ({"formats": ("FP16", "BF16")},),
    "ranks": ({"inputs": ("x", "y"), "ranks": (2, 3)},),
    "split": ({"searched": 1, "heldout": 2},),
    "mixed-rows": ({"rows": 8},),
    "copies": ({"copies": 1, "heldout": 2}, {"copies": 1, "heldout": 1}),
    "linted": (LINTED, {**LINTED, "more": 2}),
    "left-out": tuple({"whose": whose, "names": ("y",)} for whose in ("candidate", "model")),
    "quantised": (
        {**COUNTS, "whose": "model"},
        {**COUNTS, "whose": "candidate", "whole": 2, "half": 0, "integers": 0},
        {**COUNTS, "whose": "candidate", "products": 1, "whole": 0, "half": 0, "integers": 0},
    ),
    "folded": ({"nodes": ("a",)},),
    "recognised": tuple(
        {"outputs": names, "kind": next(iter(KINDS)), "evidence": [*SEEN][:2], "metrics": metrics}
        for names, metrics in ((("a",), ("psnr",)), (("a", "b"), ("detection-f1", "map")))
    ),
    "refused": ({"whose": "samples", "error": "E"},),
    "aside": (
        {"outputs": ("y",), "nodes": ("a",), "ops": ("A",), "more": 2, "read": ("x",)},
        {"nodes": ("a", "b"), "ops": ("A", "B"), "more": 0},
    ),
    "branch": ({"branch": "then_branch", "node": "a"},),
    "unobserved": ({"nodes": ("a",)}, {"nodes": ("a", "b"), "opset": 8}),
    "draws": ({"nodes": ("a",)},),
    "unbuilt": ({"reasons": "R", "more": 0}, {"reasons": "R; S", "more": 2}),
    "late": ({"since": "11.0", "reasons": "R", "more": 0},),
    "static": ({"reasons": "R", "more": 1, "shapes": ("x: 1×2",), "file": "F"},),
    "frozen": ({"reasons": "R", "more": 0},),
}
MADE_UP = (
    MadeUp(input="x", kind="uniform", mean=0.5, deviation=0.29),
    MadeUp(input="y", kind="normal", mean=0, deviation=1),
    MadeUp(input="h", kind="constant", mean=0, deviation=0),
)


def notes() -> Iterator[str]:
    for kind in get_args(records.NoteKind):
        for facts in NOTES.get(kind, ({},) if kind != "made-up" else ()):
            yield f"{kind}: {remarks.note_text(Note(kind=kind, facts=facts))}"
    for found in MADE_UP:
        yield remarks.note_text(Note(kind="made-up", severity="warning", made_up=found))
    yield remarks.note_text(Note(kind="single", severity="warning", of="held out", facts={}))
    yield remarks.clause(Note(kind="linted", facts=LINTED), repairs=7)
    yield remarks.not_real(())
    yield remarks.not_real(MADE_UP[1:])


STEPS: tuple[Step, ...] = (
    Step(kind="engines", numbers={"engines": 1}, text="a.engine"),
    Step(kind="engines", numbers={"engines": 2}, text="a.engine (orin), b.engine (cloud)"),
    Step(kind="untested"),
    *(Step(kind="untested", names={"options": "O"}, items=i) for i in (("a",), ("a", "b"))),
    *(Step(kind=k) for k in ("search-on", "keep-less", "ask-strict")),
)


def next_steps() -> Iterator[str]:
    yield from (f"{step.kind}: {told}" for step in STEPS for told in remarks.steps_told((step,)))


# The other commands.


def faults() -> Iterator[str]:
    def found(**changed: Any) -> EngineDiagnosis:
        return EngineDiagnosis(**{"symptom": "outputs", "limit_db": 60.0, **changed})

    placed: dict[str, Any] = {"region": (A, B), "snr_db": 12.0}
    for symptom in get_args(records.SymptomKind):
        yield diagnosis.cause(found(symptom=symptom, **placed), "engine", "", emulated=False)
    yield diagnosis.cause(found(**placed), "engine", "", emulated=True)
    yield diagnosis.cause(found(symptom="build"), "engine", "It died...", emulated=False)
    for changed in ({}, {"everywhere": True}, {"interrupted": True}):
        yield diagnosis.cause(found(**changed), "engine", "", emulated=False)
    for changed in (
        placed,
        placed | {"snr_db": -inf},
        *(
            placed | {"symptom": symptom, "explained": explained}
            for symptom in get_args(records.SymptomKind)
            for explained in (True, False)
        ),
    ):
        for sign in diagnosis.evidence(found(**changed)):
            yield f"{sign.severity}: {sign.text}"
    yield from diagnosis.advice(found(**placed))


def of_node() -> Iterator[str]:
    pinned = Unsupported(node=NodeName("/pin"), op="Custom", reason="ONNX does not know it")
    made = runs.run(
        plan=runs.plan(
            (runs.kept("/a"),),
            data_movement=(NodeName("/move"),),
            unsupported=(pinned,),
            lowered={NodeName("/low"): "--lower /low"},
            int8=(NodeName("/fc"),),
            repairs=(replace(SCALED, nodes=(NodeName("/a"),)),),
        ),
        guards=(runs.guard("/a"),),
    )
    for node, told in causes.told_of_nodes(made, None).items():
        yield from (f"{node} {key}: {words}" for key, words in told)
    inside = IntermediateNonfinite(tensor=TensorName("t"), producer=A, elements=2)
    for elements in (1, 2):
        each = replace(inside, elements=elements)
        verdict = runs.verdict(
            intermediate_nonfinite=(each,),
            failed_runs=(records.FailedRun(sample="s", node=None, why="out of bounds"),) * elements,
        )
        yield from _causes(runs.verification(verdict=verdict))
    for told in causes.told_of_nodes(runs.verification(verdict=verdict), None).values():
        yield from (f"a {key}: {words}" for key, words in told)
    bare = runs.kept("/d", guard=None, reason="Unknown why.", error_without=None)
    ignored = Cause(kind="ignored", builds=(3,), nodes=(A,))
    fixed = runs.run(plan=runs.plan((bare,)), engines=engines(causes=(ignored,)))
    yield from _causes(fixed)
    plain, repaired = runs.run(plan=runs.plan(())), runs.run(plan=int8_plan(repairs=(SCALED,)))
    kept = runs.run(plan=runs.plan(()), followed=followed_by(kept=("/a",)))
    yield from map(causes.grown_with, (plain, repaired, kept, runs.verification()))


def _causes(run: Run) -> Iterator[str]:
    for found in causes.causes(run, None):
        if found.state != "harmless":
            yield f"{causes.LABELS[found.state]}: {found.title}"
            yield from (f"  {one.node}: {one.text}" for one in found.found)
