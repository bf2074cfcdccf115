from math import inf

import pytest

from halfwise.records import Because, Criterion, Followed, NodeName, Remark, Repair, Unsupported
from halfwise.reporting import nodes
from halfwise.reporting.parts import Lines
from halfwise.reporting.view import report
from tests.unit.reporting.runs import (
    FIX,
    HELDOUT,
    guard,
    kept,
    plan,
    run,
    search,
    verdict,
)


def trouble(run, **how):
    told = nodes.trouble(run, **how)
    assert told is not None
    return told


def test_what_was_wrong_merges_causes_and_tells_each_fix_once():
    assert trouble(run()).lines == (
        "Output logits is out of tolerance.",
        "Inside, 1 tensor has NaN or infinite values where FP32 has none, first "
        "/blocks.0/norm1/Pow_output_0 (node /blocks.0/norm1/Pow).",
        "Cause: values beyond the range; 39 nodes kept because of that (13 ReduceMean, 13 Add, "
        "13 Sqrt).",
        "Cause: squares that overflow inside the op; 13 nodes kept because of that (13 Pow).",
        f"Usual fix: {FIX}",
    )


def test_a_cause_that_is_only_possible_is_suspected():
    mild = guard("/a", "mask", severity=0.7)
    made = run(plan=plan((kept("/a", guard="mask"),)), guards=(mild,))
    lines = trouble(made).lines
    assert (
        "Suspected cause: mask values beyond the range; 1 node kept because of that (1 Pow)."
        in lines
    )


def test_where_the_outputs_pass_what_is_kept_has_its_cause():
    inside = guard("/a", "decision", severity=1.5)
    made = run(plan=plan((kept("/a", guard="decision"),)), guards=(inside,), baseline=verdict())
    lines = trouble(made).lines
    assert lines[0] == "The outputs are within tolerance."
    assert lines[1] == (
        "Cause: decisions that depend on where values are rounded; 1 node kept because of that "
        "(1 Pow)."
    )


def test_what_only_calibration_samples_need_is_told() -> None:
    asked = {"margin": 0.8, "headroom": 2.0}
    seen = Remark(kind="seen-only", names={"low": "fp16"}, numbers=asked)
    made = run(plan=plan((kept("/a"),), remarks=(seen,)), baseline=verdict())
    assert trouble(made).lines[0] == (
        "The outputs are within tolerance on the held-out samples, but not, with a margin of 0.8 "
        "and a headroom of 2, on the calibration samples."
    )


def test_the_held_out_samples_that_are_left_and_how_the_others_failed_are_told() -> None:
    asked = {"margin": 0.8, "own": 0, "pinned": 0}
    seen = Remark(kind="seen-only", names={"low": "fp16"}, numbers=asked)
    joined = search(joined=("a", "b", "c"), filed=("a", "b"))
    left = verdict(samples=HELDOUT[:9])
    whole = plan((kept("/a"),), remarks=(seen,))
    made = run(plan=whole, baseline=verdict(), verdict=left, search=joined)
    assert trouble(made).lines[0] == (
        "The outputs are within tolerance on the 9 held-out samples that did not join the search, "
        "but not, with a margin of 0.8, on the calibration samples, 2 of which failed only as ONNX "
        "Runtime runs the file."
    )
    (remarks,) = (part for part in report(made).parts if part.title == "Remarks")
    assert isinstance(remarks, Lines)
    assert any("(2 of them only as ONNX Runtime runs the file)" in one for one in remarks.lines)


def test_what_fails_on_calibration_samples_alone_and_was_repaired_is_told() -> None:
    mended = Repair(rule="scale", nodes=(NodeName("/a"),), before=3.0, after=0.5)
    whole = plan((), repairs=(mended,))
    told = trouble(run(plan=whole, baseline=verdict())).lines[0]
    assert told.startswith("The outputs are within tolerance on the held-out samples, but not, ")
    assert told.endswith("on the calibration samples; that was repaired.")
    inside = plan((), repairs=(mended.model_copy(update={"before": 0.9}),))
    told = trouble(run(plan=inside, baseline=verdict())).lines[0]
    assert told == "The outputs are within tolerance; what happened inside was repaired."


def test_a_chosen_plan_is_no_rule_of_the_user() -> None:
    ruled = plan((kept("/a", kept_by="rule"),))
    assert "rules of the user" in " ".join(trouble(run(plan=ruled)).lines)
    steps = search(remarks=(Remark(kind="chosen", names={"rule": "choose --kept 1"}),))
    told = " ".join(trouble(run(plan=ruled, search=steps)).lines)
    assert "the plan that was chosen" in told
    assert "rules of the user" not in told


def test_infinities_inside_are_told_beside_outputs_that_pass():
    inside = guard("/a", "infinite", severity=1.5)
    made = run(plan=plan((kept("/a", guard="infinite"),)), guards=(inside,), baseline=verdict())
    first = trouble(made).lines[0]
    assert first == "The outputs are within tolerance, but values inside become infinite."


def test_what_was_low_is_told_as_it_was():
    clip = Unsupported(node=NodeName("/nms"), op="NonMaxSuppression", reason="takes FP32 only")
    island = kept("/i", guard=None, error_without=None, kept_by="model")

    def title(**changed):
        keep = changed.pop("keep", (kept("/a"),))
        return trouble(run(plan=plan(keep, **changed))).title

    assert title() == "With everything in FP16"
    assert title(unsupported=(clip,)).endswith(
        "in FP16 but 1 node that must be FP32, besides the 258 compute nodes that could be low"
    )
    assert (
        "in FP16 but 1 node that the file itself computes in FP32 and 1 node that must be FP32"
    ) in title(keep=(island,), unsupported=(clip,))


def test_a_brief_one_has_causes_alone():
    told = trouble(run(), brief=True)
    assert [line.split(":")[0] for line in told.lines] == [
        "Output logits is out of tolerance.",
        "Causes",
    ]


def followed(**changed) -> str:
    values = {
        "kept": (),
        "error": 10.5,
        "tried": ("/a", "/b"),
        "origin": None,
        "accumulates": False,
        "samples": 6,
    }
    found = Followed.model_validate(values | changed)
    (line,) = nodes.followed_lines(run(followed=found))
    return line


DECIDED = {
    "flips": [{"node": "/b", "op": "Round", "elements": 3, "of": 9}],
    "nodes": ("/a", "/b"),
    "error": 20,
    "left": 0.5,
    "samples": 4,
}
ORIGIN = {"node": "/a", "kept": ("/a",), "error": 4.28}


def test_over_how_many_samples_an_origin_was_seen_is_told():
    line = followed(origin=ORIGIN)
    assert "error is 10.5 × what the search allows on the worst of 6 samples: most of it" in line
    assert line.endswith("starts at /a, since FP32 there leaves 4.28 × or less on each of them.")
    line = followed(origin=ORIGIN, samples=1)
    assert "what the search allows on one sample: most of it" in line
    assert line.endswith("FP32 there leaves 4.28 ×.")


def test_decisions_are_told_with_what_the_true_ones_leave():
    assert followed(decided=DECIDED).endswith(
        "/b decides 3 of 9 values differently on 4 samples; with the reference's decisions "
        "instead, the error falls from 20 × to 0.5 × what the search allows."
    )


def test_what_decisions_read_is_told_and_any_name_is_left_as_it_is():
    flip = {"node": "choose[0|1]", "op": "Round", "elements": 3, "of": 9}
    assert (
        "choose[0|1] decides 3 of 9 values differently on 4 samples, reading floats that are off "
        "by 0.1 %; with"
    ) in followed(decided={**DECIDED, "flips": [flip], "read": 1e-3})


def test_with_a_metric_decisions_are_told_with_the_default_tolerance():
    found = Followed.model_validate(
        {"kept": (), "error": 9, "tried": (), "origin": None, "accumulates": False}
        | {"decided": DECIDED}
    )
    (line,) = nodes.followed_lines(run(followed=found, criterion=Criterion(metric="top1")))
    assert line.count("× the default tolerance") == 2
    assert "what the search allows" not in line


def test_an_unknown_origin_says_what_was_tried():
    assert followed().endswith(
        "unknown; of 2 nodes tried in FP32, each with its neighbours, none "
        "halves the error on all samples that fail, and lets the others pass."
    )
    assert followed(samples=1).endswith(", none halves the error.")
    assert "tried in FP32 before the budget was spent, each" in followed(out_of_time=True)


@pytest.mark.parametrize(
    ("node", "found", "why"),
    [
        (
            {"error_without": 1.5},
            {"origin": ORIGIN},
            "error that starts at /a",
        ),
        (
            {"error_without": 1.5},
            {"origin": {**ORIGIN, "node": "/b", "kept": ("/a", "/b"), "read": 0.01, "made": 0.2}},
            "error that grows at /b",
        ),
        (
            {"error_without": 1.5},
            {"decided": DECIDED},
            "decisions that change, of /b",
        ),
        (
            {"error_without": 1.5},
            {"accumulates": True},
            "accumulated error",
        ),
        (
            {"error_without": 1.5},
            None,
            "unknown, effect measured",
        ),
        (
            {"error_without": inf, "because": Because(nonfinite=True)},
            {"accumulates": True},
            "unknown, effect measured",
        ),
        (
            {"error_without": None},
            {"accumulates": True},
            "unknown, not lowered",
        ),
        ({"kept_by": "rule"}, None, "rules of the user"),
        ({"kept_by": "model"}, None, "types in the file itself"),
        (
            {"kept_by": "engine"},
            None,
            "what the engine needs or is faster with",
        ),
    ],
    ids=[
        "origin",
        "enlarged",
        "flip",
        "accumulated error",
        "effect",
        "infinite",
        "unknown",
        "rule",
        "model",
        "engine",
    ],
)
def test_every_kept_node_has_a_reason_on_the_first_screen(node, found, why):
    values = {"kept": (), "error": 10.5, "tried": ("/a",), "origin": None, "accumulates": False}
    told = None if found is None else Followed.model_validate(values | found)
    made = run(plan=plan((kept("/a", guard=None, **node),)), followed=told)
    because = "" if why.startswith("unknown") else " because of that"
    line = f"Cause: {why}; 1 node kept{because} (1 Pow)."
    assert line in trouble(made, brief=True).lines
    three = (kept("/a", guard=None, **node), kept("/b"), kept("/c", guard="mask"))
    (*_, line) = trouble(run(plan=plan(three), followed=told), brief=True).lines
    assert f"{why} (1 node)" in line
    assert "squares that overflow inside the op (1 node)" in line


def test_what_is_kept_only_because_less_costs_more_is_no_lack_of_a_guard():
    spare = kept("/b", guard=None, error_without=None, because=Because(spare=True))
    followed = Followed(
        kept=(), error=2.0, tried=(), origin=None, accumulates=False, samples=1, out_of_time=False
    )
    made = run(plan=plan((kept("/a"), spare)), followed=followed)
    assert (
        "Cause: conversions, which would cost more than lowering saves; 1 node kept because of "
        "that (1 Pow)."
    ) in trouble(made).lines
    told = " ".join(nodes.followed_lines(made))
    assert told.startswith("With everything in FP16, the error is 2 ×")
