"""Facts on plans, repairs and what nodes are kept for, to put in words: see `phrases`."""

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any, get_args

import msgspec

from halfwise import records
from halfwise.records import (
    Because,
    Criterion,
    Curve,
    Failure,
    Followed,
    KeptNode,
    NodeName,
    Note,
    Plan,
    Proof,
    Remade,
    Remark,
    Repair,
    Run,
    Unsupported,
    replace,
)
from halfwise.reporting import causes, plan, remarks, view
from tests.unit.reporting import runs
from tests.unit.reporting.engine_runs import engines
from tests.unit.reporting.test_curve import MADE, ONE, PLAN
from tests.unit.reporting.test_repairs import SCALED

A, B = NodeName("a"), NodeName("b")
TASK = Criterion(metric="top1", metric_drop=0.01)
# Failures, and what ended a search.


def failures() -> Iterator[str]:
    wrong = Failure(kind="non-finite", names={"output": "y"}, numbers={"elements": 1})
    for at in ("seen", "file", "device", "shapes"):
        yield from remarks.reasons(remarks.under(at, "min", remarks.under("batch", 4, [wrong])))
    names = {"output": "y", "sample": "s"}
    numbers = {"max_abs": 2.0, "rel_max": inf, "snr": 3.21}
    off = Failure(kind="tolerance", names=names, numbers=numbers)
    yield from remarks.reasons([off, replace(wrong, numbers={"unlike": 2})])
    yield from remarks.stated([wrong, Failure(kind="cause", text="a kernel {is} [to] blame...")])


def ended() -> Iterator[str]:
    for by, asked in (
        (("work",), 1500.0),
        (("work", "seconds"), 1500.0),
        (("seconds", "interrupt"), 1500.0),
        ((), None),
    ):
        found = runs.search(exhausted=True, budget=asked, ended_by=by)
        yield remarks.unfinished(found)
        yield f"  {remarks.lacking(found)}"
    yield remarks.spent(runs.search(budget=1500.0, ended_by=("seconds",), seconds_budget=0.0))
    yield remarks.unfinished(None)
    yield remarks.unfinished(runs.search(remarks=(Remark(kind="futile"), Remark(kind="spent"))))


def cut() -> Iterator[str]:
    def lines(*stages: str, **changed: Any) -> tuple[str, ...]:
        return remarks.cut_lines(runs.run(search=runs.search(cut=stages, **changed)))

    for stage in get_args(records.CutStage):
        yield f"{stage}: {' '.join(lines(stage))}"
    yield from lines("observe", "search", "growth", seconds_budget=5.0)
    yield from (*lines(late=1), *lines(late=2))
    yield from lines(refused="ONNX Runtime failed: no\x1b kernel.")
    interrupted = {"budget": 1500.0, "ended_by": ("work", "interrupt")}
    yield from (*lines("search", **interrupted), *lines("growth", **interrupted))


# Why nodes are kept, and where an error comes from.


def followed_by(**changed: Any) -> Followed:
    values = {"kept": (), "error": 10.5, "samples": 6}
    return msgspec.convert(values | {"accumulates": False} | changed, Followed)


FOLLOWED: tuple[dict[str, Any], ...] = (
    *({"accumulates": True}, {}, {"samples": 1}, {"kept": (A,)}),
)


def errors() -> Iterator[str]:
    growth = tuple(
        records.Growth(node=NodeName(f"/{i}"), error=i / 100, inherited=0.0) for i in range(7)
    )
    for found in FOLLOWED:
        made = runs.run(followed=followed_by(**found), growth=growth)
        yield from causes.followed_lines(made)
    made = runs.run(followed=followed_by(), criterion=TASK)
    yield from causes.followed_lines(made)
    spare = runs.kept("/b", guard=None, error_without=None, because=Because(spare=True))
    bare = runs.kept("/a", guard=None)
    made = runs.run(plan=runs.plan((bare, spare)), followed=followed_by())
    yield from causes.followed_lines(made)


KEPT: tuple[tuple[dict[str, Any], dict[str, Any] | None], ...] = (
    ({"error_without": 1.5}, {"accumulates": True}),
    ({"error_without": 1.5}, None),
    ({"error_without": inf, "because": Because(nonfinite=True)}, {"accumulates": True}),
    ({"error_without": inf}, None),
    ({"because": Because(contribution=0.7)}, None),
    ({"because": Because(spare=True)}, None),
    ({}, {"accumulates": True}),
    ({"because": Because(opposed=())}, None),
    ({"because": Because(opposed=("--lower /c", "--lower /d"))}, None),
    ({"kept_by": "rule", "because": Because(rule="--keep /a")}, None),
    ({"kept_by": "model"}, None),
    ({"kept_by": "engine"}, None),
    ({"guard": "square", "error_without": 1.5, "because": Because(guard=0)}, None),
    ({"guard": "square", "because": Because(guard=0)}, None),
    ({"guard": "infinite", "because": Because(guard=1)}, None),
    (
        {
            "guard": "square",
            "error_without": inf,
            "because": Because(guard=0, nonfinite=True, at_headroom=True),
        },
        None,
    ),
)


def reasons() -> Iterator[str]:
    """Yield the reason of a kept node, and the cause that it is on the first screen."""
    suspected = runs.guard("/a", severity=0.5)
    inside = runs.guard("/b", "infinite", message="t is infinite inside", nodes=("/a", "/b"))
    for facts, found in KEPT:
        values = {"guard": None, "error_without": None, "because": Because(), **facts}
        kept = runs.kept("/a", **values)
        followed = None if found is None else followed_by(**found)
        told = remarks.explained([kept], (suspected, inside), 2.0, followed)
        made = runs.run(plan=runs.plan(told), followed=followed, guards=(suspected, inside))
        yield told[0].reason
        yield f"  {causes.reason_line(made)}"
    flow = runs.guard("n", "overflow", tensor="t", message="it overflows", nodes=("n", "m"))
    for guard in (flow, replace(flow, kind="eps")):
        yield from (remarks.guard_sentence(guard, NodeName(node)) for node in "nm")


def left(**facts: Any) -> KeptNode:
    because = Because(**{k: facts.pop(k) for k in list(facts) if k in Because.__struct_fields__})
    return KeptNode(node=NodeName("n"), op="Conv", precision="fp16", because=because, **facts)


def int8_plan(*left_out: KeptNode, int8: tuple[str, ...] = ("m",), **changed: Any) -> Plan:
    changed = {"candidates": 4, "casts": 0, "left_out": left_out, **changed}
    return runs.plan((), int8=tuple(map(NodeName, int8)), **changed)


def without_int8() -> Iterator[str]:
    every = (
        left(error_without=3.0),
        left(error_without=inf, nonfinite=True),
        left(contribution=0.7),
        left(beside=A),
        left(),
    )
    yield from (one.reason for one in remarks.explain_left_out(every))
    none = runs.run(plan=int8_plan(int8=()))
    off = runs.verdict(passed=False, reasons=("output y is off",))
    for all_int8 in (None, runs.verdict(), off):
        yield plan.nothing_in_int8(replace(none, without_int8=every[:1], all_int8=all_int8))
    yield plan.nothing_in_int8(replace(none, without_int8=every[-2:]))
    table = plan.left_out_table(replace(none, without_int8=every[:1]))
    assert table is not None
    yield table.title
    mask = Repair(rule="mask", nodes=(A,))
    for made in (
        int8_plan(every[0], repairs=(mask,)),
        int8_plan(every[0], every[3]),
        int8_plan(every[0], minimal=False),
        int8_plan(),
    ):
        yield from plan.int8_lines(runs.run(plan=made))


# The plan.


def planned() -> Iterator[str]:
    def title(**changed: Any) -> str:
        found = causes.trouble(runs.run(plan=runs.plan(**{"keep": (runs.kept("/a"),), **changed})))
        assert found is not None
        return found.title

    clip = Unsupported(node=NodeName("/nms"), op="NonMaxSuppression", reason="takes FP32 only")
    island = runs.kept("/i", guard=None, error_without=None, kept_by="model")
    yield title(unsupported=(clip,))
    yield title(keep=(island,), unsupported=(clip,))
    moved = (NodeName("/t"),)
    for each in (
        runs.plan((), casts=1, candidates=2),
        runs.plan((), casts=0, candidates=1),
        runs.plan((), casts=0, candidates=0, data_movement=moved),
        runs.plan((runs.kept("/a"),), candidates=1, lowered={A: "--lower a"}),
    ):
        yield from plan.plan_lines(each)
    for repairs in ((), (replace(SCALED, rule="one-node"),)):
        whole = runs.plan((), repairs=repairs)
        for passed in (True, False):
            made = runs.run(plan=whole, verdict=runs.verdict(passed=passed))
            yield plan.minimality(made, whole)
    one = runs.plan((runs.kept("/a"),))
    yield plan.minimality(runs.run(plan=one, engines=engines()), one)
    every = runs.plan((island,))
    yield plan.minimality(runs.run(plan=every), every)
    cut = runs.plan((runs.kept("/a"),), minimal=False)
    yield plan.minimality(runs.run(plan=cut, engines=engines()), cut)
    interrupted = runs.search(ended_by=("interrupt",))
    yield plan.minimality(runs.run(plan=cut, engines=engines(), search=interrupted), cut)


def within() -> Iterator[str]:
    """Yield what is told where outputs pass with everything low."""
    asked = {"margin": 0.8, "headroom": 2.0}
    seen = Remark(kind="seen-only", names={"low": "fp16"}, numbers=asked)
    joined = runs.search(joined=("a", "b", "c"))
    nine = runs.verdict(samples=runs.HELDOUT[:9])
    mended = replace(SCALED, before=3.0)
    inner = replace(SCALED, before=0.9)
    kinds = ("decision", "infinite", "headroom")
    cases: tuple[dict[str, Any], ...] = (
        *({"plan": runs.plan((runs.kept("/a", guard=kind),))} for kind in kinds),
        {"plan": runs.plan((runs.kept("/a"),), remarks=(seen,))},
        {"plan": runs.plan((runs.kept("/a"),), remarks=(seen,)), "search": joined, "verdict": nine},
        {"plan": runs.plan((), repairs=(mended,))},
        {"plan": runs.plan((), repairs=(inner,))},
        {"plan": runs.plan(())},
        {"plan": runs.plan(()), "verdict": runs.verdict(sums="fp32")},
    )
    for changed in cases:
        found = causes.trouble(runs.run(baseline=runs.verdict(), guards=(), **changed))
        assert found is not None
        yield found.lines[0]
    yield from _remarks(runs.run(search=joined))
    yield remarks.remark(replace(seen, numbers={**asked, "own": 1, "pinned": 2}))
    ruled = runs.plan((runs.kept("/a", kept_by="rule"),))
    chosen = runs.search(remarks=(Remark(kind="chosen", names={"rule": "choose --worth 1"}),))
    mild = runs.guard("/a", "mask", severity=0.7)
    for changed in (
        {"plan": ruled},
        {"plan": ruled, "search": chosen},
        {"plan": runs.plan((runs.kept("/a", guard="mask"),)), "guards": (mild,)},
    ):
        yield causes.reason_line(runs.run(**changed))


def _remarks(run: Run) -> Iterable[str]:
    return view._remarks(run)


def cautions() -> Iterator[str]:
    two = runs.plan((runs.kept("/a"), runs.kept("/b")), candidates=2)
    quantised = runs.provenance(notes=(Note(kind="quantised", facts={"whose": "model"}),))
    yield view._caution(runs.run(plan=two))
    yield view._caution(runs.run(plan=two, provenance=quantised))
    yield view._caution(runs.run(plan=runs.plan((), candidates=0)))
    yield view._caution(runs.run(verdict=runs.verdict(sums="fp32")))
    near = (runs.guard("/norm", "headroom"),)
    yield view._caution(runs.run(curve=nonfinite_curve(), guards=near))


def nonfinite_curve() -> Curve:
    low = replace(MADE.points[0], error=inf)
    return replace(MADE, points=(low, *MADE.points[1:]), plan=0)


def chosen() -> Iterator[str]:
    unknown = replace(ONE, cost=None)
    yield plan.chosen_line(MADE, ONE, TASK)
    yield plan.chosen_line(MADE, ONE, Criterion())
    yield plan.chosen_line(MADE, unknown, Criterion(rel_max=0.1))
    tf32 = replace(PLAN, bf16="1", tf32=True)
    yield plan.chosen_line(MADE, tf32, Criterion())
    near = (runs.guard("/norm", "headroom"),)
    for made in (
        runs.run(curve=replace(MADE, criterion=Criterion(rel_max=1e-5))),
        runs.run(curve=MADE, guards=near, verdict=runs.verdict(level="engine")),
    ):
        table = plan.curve_table(made)
        assert table is not None
        yield table.note


# Repairs.

MASKED = Repair(rule="mask", nodes=(A,))
OFF = Proof(samples={"calibration": 2, "widened": 3}, repaired=2e-7, equal=False)


def repairs() -> Iterator[str]:
    def lines(*made: Repair, **changed: Any) -> Iterable[str]:
        found = causes.repair_lines(runs.run(plan=runs.plan((), repairs=made), **changed))
        return () if found is None else (found.title, *found.lines)

    yield from lines(replace(SCALED, room=3.9))
    yield from lines(SCALED, criterion=TASK)
    alike = (
        replace(SCALED, nodes=(NodeName(f"/a.{i}"),), advice=f"Divide {i}.") for i in range(20)
    )
    masked = replace(MASKED, proof=OFF)
    yield from lines(*alike, masked, masked)
    kept = runs.plan((runs.kept("/k"),), repairs=(MASKED,))
    found = causes.repair_lines(runs.run(plan=kept, curve=MADE))
    assert found is not None
    yield found.title
    useless = Remark(kind="repair-useless", names={"rule": "scale", "nodes": "/a"})
    undone = causes.repair_lines(runs.run(plan=runs.plan((), remarks=(useless,) * 5)))
    assert undone is not None
    yield from (undone.title, *undone.lines[-2:])
    for remade in (
        Remade(repairs=(MASKED,), failures=(Failure(kind="unmade"),)),
        Remade(repairs=(MASKED, SCALED), proof=OFF),
        Remade(repairs=(MASKED,), proof=SCALED.proof),
        Remade(repairs=(), differs="/Add"),
    ):
        yield causes.remade_line(remade)
    yield causes.mended(runs.plan((), repairs=(SCALED, MASKED)))
    yield causes.mended(runs.plan((), repairs=(MASKED,)))
