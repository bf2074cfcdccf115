"""Causes are told as records have them, nothing stronger."""

import re

from halfwise.records import (
    Cause,
    FailedRun,
    Guard,
    IntermediateNonfinite,
    KeptNode,
    NodeName,
    Observations,
    Rung,
    Sign,
    TensorName,
    replace,
)
from halfwise.reporting.causes import causes, reason_line
from tests.unit.reporting import runs
from tests.unit.reporting.engine_runs import engines


def guard(node, severity, kind="overflow"):
    name = NodeName(node)
    return Guard(
        kind=kind,
        node=name,
        tensor=TensorName(f"{node}_out"),
        message="it overflows",
        fix="Scale it.",
        nodes=(name,),
        severity=severity,
    )


def kept(node, kind=None, by="search", **changed):
    return KeptNode(node=NodeName(node), op="Mul", guard=kind, kept_by=by, **changed)


def fixed(guards, keep):
    plan = runs.plan(tuple(keep))
    return runs.run(guards=tuple(guards), plan=plan)


def test_a_suspicion_is_a_cause_where_a_node_is_kept_for_it_and_certain_by_its_numbers() -> None:
    guards = [guard("a", 3.0), guard("b", 0.5), guard("c", 9.0)]
    keep = [kept("a", "overflow"), kept("b", "overflow"), kept("d", reason="Unknown why.")]
    keep += [kept("e", by="rule"), kept("f", unknown=True)]
    found = causes(fixed(guards, keep), None)
    assert [(g.state, [one.node for one in g.found]) for g in found] == [
        ("cause", ["a"]),
        ("suspected", ["b"]),
        ("unexplained", ["d"]),
        ("harmless", ["c"]),
    ]
    assert (found[0].found[0].text, found[0].found[0].fix) == ("It overflows", "Scale it.")


def test_no_suspicion_is_harmless_where_the_outputs_fail() -> None:
    failed = replace(fixed([guard("a", 3.0)], []), verdict=runs.verdict(passed=False))
    (group,) = causes(failed, None)
    assert group.state == "suspected"


def test_places_and_kept_nodes_are_counted_apart_and_each_once() -> None:
    both = replace(guard("a", 3.0), nodes=(NodeName("a"), NodeName("b")))
    made = fixed([both, guard("a", 2.0)], [kept("a", "overflow"), kept("b", "overflow")])
    (group,) = causes(made, None)
    assert re.findall(r"\d+ node", group.title) == ["1 node"]
    assert reason_line(made).endswith("(2).")


def test_what_repairs_answer_is_mended() -> None:
    seen = Observations(tensors=(), inner=(), samples=(), mended=(guard("a", 3.0, "square"),))
    (group,) = causes(fixed([], []), seen)
    assert (group.state, len(group.found)) == ("mended", 1)


def test_verify_tells_what_it_saw_and_no_cause() -> None:
    inside = IntermediateNonfinite(tensor=TensorName("t"), producer=NodeName("n"), elements=2)
    harmless = replace(inside, harmless=True)
    failed = FailedRun(sample="s", node=None, why="out of bounds")
    verdict = runs.verdict(intermediate_nonfinite=(inside, harmless), failed_runs=(failed,))
    found = causes(runs.verification(verdict=verdict), None)
    assert {g.state for g in found} == {"seen"}
    assert [(one.node, one.tensor) for g in found for one in g.found] == [("n", "t"), (None, None)]


def test_diagnose_tells_the_rung_that_failed_and_its_nodes() -> None:
    signs = (
        Sign(severity="error", text="a is broken", nodes=(NodeName("a"),)),
        Sign(severity="error", text="a is told once", nodes=(NodeName("a"),)),
        Sign(severity="info", text="worth knowing", nodes=(NodeName("c"), NodeName("d"))),
    )
    nodes = (NodeName("b"), NodeName("d"), NodeName("a"))
    wrong = Rung(
        rung=3,
        name="model",
        passed=False,
        how="measured",
        cause="Broken",
        nodes=nodes,
        evidence=signs,
    )
    passed = replace(wrong, passed=True)
    run = runs.verification(kind="diagnose", diagnosis=(passed, wrong))
    (group,) = causes(run, None)
    assert group.state == "cause"
    assert [(one.node, one.text) for one in group.found] == [
        ("a", "a is broken"),
        ("d", "worth knowing"),
        ("b", ""),
    ]


def test_what_engines_show_at_nodes_is_a_cause() -> None:
    ignored = Cause(kind="ignored", builds=(3,), nodes=(NodeName("a"),), excess=9.0)
    unclear = Cause(kind="unknown", builds=(4,), excess=2.0)
    found = causes(runs.run(engines=engines(causes=(ignored, unclear))), None)
    shown = [group for group in found if group.title == "What the engines show"]
    assert [(group.state, len(group.found)) for group in shown] == [("cause", 2), ("seen", 1)]
    assert [one.node for one in shown[0].found] == [None, "a"]


def test_a_run_without_anything_wrong_has_no_causes() -> None:
    assert causes(runs.verification(), None) == ()
