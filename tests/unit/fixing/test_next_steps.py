import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halfwise.case import Chosen
from halfwise.fixing.loop import fix
from halfwise.fixing.next_steps import (
    after_untested,
    after_verify,
    building,
    delivered_next,
    diagnose_step,
    fix_step,
    lower_next,
    next_steps,
    sample_profiles,
)
from halfwise.metrics.evidence import of_kind
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.records import (
    Cause,
    Failure,
    FileRun,
    NodeName,
    Note,
    Remark,
    RungEnd,
    RungTried,
    Unjudged,
    Worth,
    replace,
)
from halfwise.reporting.remarks import steps_told
from tests import models
from tests.unit.fixing.running import changed
from tests.unit.fixing.running import found as outcome
from tests.unit.reporting.engine_runs import engines
from tests.unit.reporting.runs import kept, verdict
from tests.unit.reporting.test_verdict import BATCH

pytestmark = pytest.mark.usefixtures("unrepaired")


CASE: Any = SimpleNamespace(network=SimpleNamespace(path=Path("my model.onnx")))


def test_the_command_of_diagnose_has_the_options_that_fit():
    request = understand(
        "x.npz",
        {
            "target": "tensorrt",
            "trt_command": "ssh orin python3",
            "max_builds": 3,
            "min_shapes": ("x:1x3", "x:2x3"),
            "opt_shapes": ("x:1x3", "x:4x3"),
            "max_shapes": ("x:1x3", "x:8x3"),
            "rel_max": 0.02,
            "keep": ("norm",),
            "tf32": True,
        },
    )
    words = diagnose_step(CASE, request, Path("runs/one")).command
    assert words is not None
    assert words[:5] == ("halfwise", "diagnose", "my model.onnx", "--inputs", "x.npz")
    assert words[words.index("--trt-command") + 1] == "ssh orin python3"
    assert [w for w in words if w.startswith("minShapes")] == ["minShapes=x:1x3", "minShapes=x:2x3"]
    assert words[words.index("--rel-max") + 1] == "0.02"
    assert not {"--keep", "--budget", "tf32"} & set(words)
    assert words[-2:] == ("-o", "runs/one.diagnosis")
    in_memory = understand({}, {"allow_random": True})
    words = diagnose_step(CASE, in_memory, None).command
    assert words is not None
    assert words[3:7] == ("--inputs", "DATA", "--allow", "random")


def test_what_follows_a_verify_names_the_same_model_inputs_and_criterion():
    request = understand("x.npz", {"rel_max": 0.02, "accumulate": "fp16"})
    where, repair = after_verify(CASE, request, Path("mixed.onnx"), passed=False)
    texts = ("halfwise", "compare", "my model.onnx", "--inputs", "x.npz", "--accumulate", "fp16")
    assert where.command == (*texts, "--b", "emulation:mixed.onnx")
    assert repair.command is not None
    assert repair.command[:3] == ("halfwise", "fix", "my model.onnx")
    assert "--rel-max" in repair.command
    (engine,) = after_verify(CASE, request, Path("mixed.onnx"), passed=True)
    assert engine.command is not None
    assert engine.command[:4] == ("halfwise", "verify", "my model.onnx", "mixed.onnx")
    assert engine.command[-2:] == ("--target", "tensorrt")


def test_what_passed_on_other_targets_is_delivered_there_and_not_built_for_tensorrt(tmp_path):
    request = understand("x.npz", {"target": ("webgpu",)})
    assert after_verify(CASE, request, Path("mixed.onnx"), passed=True) == ()
    delivered = outcome(models.small(), allow_random=True)
    case = delivered.space.variant.case
    told = next_steps(verdict(), case, request, delivered, (), tmp_path / "run", (), None)
    assert [step.kind for step in told] == ["deliver"]
    assert told[0].text == str(tmp_path / "run" / "model.onnx")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("refused", ("opset 17", "optimization-level", "version")),
        ("ignored", ("--typing strong", "--budget builds")),
        ("precision", ("--budget builds",)),
        ("unknown", ("--budget builds",)),
    ],
)
def test_what_may_lead_lower_fits_what_engines_showed(kind, said):
    low = RungTried(rung="fp16", end="tolerance")
    delivered = replace(engines(), rungs=(low,), causes=(Cause(kind=kind),))
    lines = " ".join(steps_told(lower_next(delivered)))
    assert all(phrase in lines for phrase in said)
    assert ("opset 17" in lines) == (kind == "refused")
    ends: dict[RungEnd, str] = {"unbuildable": "opset 17", "not-run": "optimization-level"}
    for end, advice in ends.items():
        alone = replace(low, end=end)
        told = replace(engines(), rungs=(alone,), causes=())
        assert advice in " ".join(steps_told(lower_next(told)))
    passed = replace(delivered, rungs=(replace(low, end="slower"),))
    assert lower_next(passed) == ()


def steps(delivered, judged, worth=None):
    """Return the next steps by their kinds."""
    case, requested = delivered.space.variant.case, understand({}, {})
    texts = next_steps(judged, case, requested, delivered, (), None, (), worth)
    return {step.kind: step for step in texts}


def test_what_was_done_already_is_not_advised():
    delivered = outcome(models.small(), allow_random=True)
    failed = verdict(passed=False, judged=False, unseen=False)
    delivered = changed(delivered, case={"real": False})
    assert "real-inputs" not in steps(delivered, failed)
    assert "alike" not in steps(delivered, failed)["more-samples"].facts
    copies = Note(kind="copies", severity="warning", facts={"copies": 1, "heldout": 1})
    delivered = changed(delivered, case={"notes": (copies,)})
    assert "alike" in steps(delivered, failed)["more-samples"].facts
    delivered = changed(delivered, settings={"allow_random": False})
    assert "real-inputs" in steps(delivered, failed)


def test_batches_are_asked_for_where_only_they_fail_and_a_chosen_plan_is_not_called_the_best():
    delivered = outcome(models.small(), allow_random=True)
    alone, joined = Failure(kind="tolerance"), Failure(kind="tolerance", under={"batch": 2})
    batch = replace(BATCH, passed=False)
    failed = verdict(passed=False, batch=batch, failures=(joined,))
    assert steps(delivered, failed)["batches"].numbers["size"] == 2
    assert "best-model" in steps(delivered, failed)
    both = verdict(passed=False, batch=batch, failures=(alone, joined))
    assert "batches" not in steps(delivered, both)
    chosen = changed(delivered, settings={"chosen": Chosen(frozenset(), "choose --worth 1")})
    assert "best-model" not in steps(chosen, failed)


def test_where_fp32_costs_no_more_it_is_advised():
    delivered = outcome(models.small(), allow_random=True)
    dearer, cheaper = Worth(cost=1.0, fp32=0.667), Worth(cost=1.0, fp32=2.0)
    assert "use-fp32" in steps(delivered, verdict(), dearer)
    assert "use-fp32" not in steps(delivered, verdict(), cheaper)


def test_where_the_engine_is():
    request = understand("x.npz", {"preprocess": "p.py:f", "metric": "top1"})
    assert delivered_next(None, request) == ()
    engine, verify, export = delivered_next(Path("runs/one"), request)
    assert (engine.text, engine.numbers) == ("runs/one/model.engine", {"engines": 1})
    assert verify.command == (
        *("halfwise", "verify", "runs/one", "--inputs", "x.npz", "--preprocess", "p.py:f"),
        *("--target", "tensorrt"),
    )
    assert export.command == ("halfwise", "export", "runs/one", "--as", "trtexec")


def test_an_emulated_verdict_is_proven_by_an_engine_of_the_file_that_was_written():
    delivered = outcome(models.small(), allow_random=True)
    case = delivered.space.variant.case
    case = replace(case, network=replace(case.network, path=Path("m")))
    given = {"labels": "l.json", "metric": "top1"}

    def proof(**more):
        request = understand("x.npz", {**given, **more})
        steps = next_steps(verdict(), case, request, delivered, (), Path("run"), (), None)
        return next(step.command for step in steps if step.kind == "prove")

    judged = ("--metric", "top1", "--target", "tensorrt")
    unseen = ("--inputs", "DATA", "--labels", "LABELS")
    assert proof() == ("halfwise", "verify", "m", "run/model.onnx", *unseen, *judged)
    separate = ("--inputs", "y.npz", "--labels", "k.json")
    held = proof(heldout="y.npz", heldout_labels="k.json")
    assert held == ("halfwise", "verify", "m", "run/model.onnx", *separate, *judged)


def test_a_quantised_model_that_fails_is_where_a_search_starts():
    request = understand("x.npz", {"rel_max": 0.02})
    _, step = after_verify(CASE, request, Path("q.onnx"), passed=False, quantised=True)
    assert step.kind == "fix-quantised"
    assert step.command == (
        *("halfwise", "fix", "my model.onnx", "--inputs", "x.npz", "--rel-max", "0.02"),
        *("--start-from", "q.onnx", "-o", "FIXED"),
    )


def test_integers_without_pairs_to_leave_out_are_made_anew_with_pairs():
    request = understand("x.npz", {"rel_max": 0.02})
    _, step = after_verify(CASE, request, Path("q.onnx"), passed=False, integers=True)
    assert step.command == (
        *("halfwise", "fix", "my model.onnx", "--inputs", "x.npz", "--rel-max", "0.02"),
        *("--to", "int8", "-o", "FIXED"),
    )
    (_, both) = after_verify(
        CASE, request, Path("q.onnx"), passed=False, quantised=True, integers=True
    )
    assert both.kind == "fix-quantised"


def test_what_follows_a_diagnosis_has_its_options():
    request = understand("x.npz", {"metric": "top1", "target": "tensorrt"})
    assert fix_step(CASE, request, Path("runs/one")).command == (
        *("halfwise", "fix", "my model.onnx", "--inputs", "x.npz", "--metric", "top1"),
        *("--target", "tensorrt", "-o", "runs/one.fixed"),
    )


def test_where_nothing_can_be_low_for_an_unknown_reason_a_diagnosis_is_the_next_step():
    delivered = outcome(models.small(), allow_random=True)
    same = Worth(cost=2.0, fp32=2.0)
    recorded = kept("/a")
    unknown = replace(recorded, guard=None)

    def first(*keep, candidates=2):
        plan = replace(delivered.plan, keep=keep, candidates=candidates)
        return list(steps(replace(delivered, plan=plan), verdict(), same))[:2]

    assert first(recorded, unknown) == ["diagnose", "write"]
    assert first(recorded, recorded) == ["write", "use-fp32"]
    assert first(unknown, candidates=2) == ["write", "use-fp32"]


@pytest.mark.parametrize(("ended_by", "texts"), [(("interrupt",), True), (("seconds",), False)])
def test_a_passing_plan_of_an_interrupted_search_says_so(ended_by, texts):
    delivered = outcome(models.small(), allow_random=True)
    search = replace(delivered.search, exhausted=True, ended_by=ended_by)
    several = replace(delivered, plan=replace(delivered.plan, keep=(kept("/a"),)), search=search)
    assert ("keep-less" in steps(several, verdict())) == texts


def test_an_unfinished_search_goes_on_from_its_plan_with_the_options_of_its_run():
    delivered = outcome(models.small(), allow_random=True)
    search = replace(delivered.search, exhausted=True)
    case = delivered.space.variant.case
    options = {"keep": ("a b", "c"), "time_budget": 9, "start_from": "old", "rel_max": 0.02}
    request = understand("x.npz", options)
    failed = verdict(passed=False, failures=(Failure(kind="tolerance"),))
    then = next_steps(
        *(failed, case, request, replace(delivered, search=search), (), Path("runs/one"), (), None)
    )
    on = next(step.command for step in then if step.kind == "search-on")
    assert on is not None
    assert on[:5] == ("halfwise", "fix", "MODEL", "--inputs", "x.npz")
    assert on[-4:] == ("--start-from", "runs/one", "-o", "runs/one.on")
    kept = ("--keep", "a b", "--keep", "c")
    assert [word for word in on if word in kept] == [*kept]
    assert {"--budget", "time=9", "--rel-max", "0.02"} <= {*on}
    assert "old" not in on


def test_where_every_output_is_within_one_percent_that_may_be_asked():
    delivered = outcome(models.small(), allow_random=True)
    case = delivered.space.variant.case
    scores = of_kind("class-scores", ("y",), ("rows-sum",))
    criterion = replace(case.criterion, metric="auto", recognised=(scores,))
    request = understand("x.npz", {"metric": "auto", "keep": ("a",)})

    def asked(strict, criterion):
        of = replace(case, criterion=criterion)
        failed = verdict(passed=False, strict=strict, failures=(Failure(kind="part"),))
        then = next_steps(failed, of, request, delivered, (), Path("run"), (), None)
        return [step.command for step in then if step.kind == "ask-strict"]

    words = ("halfwise", "fix", "MODEL", "--inputs", "x.npz", "--keep", "a", "--strict")
    assert asked(0.4, criterion) == [(*words, "-o", "run.strict")]
    assert asked(1.4, criterion) == asked(None, criterion) == asked(0.4, case.criterion) == []


def test_every_failure_ends_with_a_command_unless_none_helps():
    delivered = outcome(models.small(), allow_random=True)
    tie = verdict(passed=False, failures=(Failure(kind="part", under={"runner": "ONNX Runtime"}),))
    assert {"check-tolerance", "diagnose"} <= {*steps(delivered, tie)}
    beyond = replace(tie, as_file=(FileRun(runner="R", outputs={}, fp32=False),))
    assert "diagnose" not in steps(delivered, beyond)
    unreal = replace(tie, failures=(Failure(kind="not-real"),), strict=0.4)
    of_unreal = changed(delivered, case={"real": False}, settings={"allow_random": False})
    assert next(iter(steps(of_unreal, unreal))) == "real-inputs"
    assert not {"diagnose", "ask-strict"} & {*steps(of_unreal, unreal)}
    unjudged = replace(tie, judged=False)
    assert "diagnose" not in steps(delivered, unjudged)


def test_where_nothing_cheap_fits_the_tolerance_another_question_is_named():
    delivered = outcome(models.small(), allow_random=True)
    search = replace(delivered.search, remarks=(Remark(kind="futile"),))
    assert "check-tolerance" in steps(replace(delivered, search=search), verdict())
    assert "check-tolerance" not in steps(delivered, verdict())


@pytest.fixture(scope="module")
def fixed():
    ill = models.conv_chain()
    request = understand(dict(ill.inputs), {})
    case = load_case(ill.proto, request.data, request.criterion)
    return case, fix(case, request.settings, Silent()).plan


def test_fixed_shapes_need_no_profile(fixed, tmp_path):
    case, plan = fixed
    assert sample_profiles(case) == ()
    strong = building(case, plan, (), tmp_path / "a run")
    # Its convolutions may use TF32 otherwise.
    assert strong.command == (
        *("trtexec", f"--onnx={tmp_path}/a run/model.onnx", "--stronglyTyped", "--noTF32"),
        f"--saveEngine={tmp_path}/a run/model.engine",
    )
    assert shlex.split(steps_told((strong,))[0].partition(": ")[2]) == [*strong.command]


def test_operators_that_no_tensorrt_has_are_named(fixed, tmp_path):
    case, plan = fixed
    model = case.network.copy()
    model.graph[0].domain, model.graph[0].op_type = "ai.onnx.ml", "TreeEnsemble"
    other = replace(case, network=replace(case.network, model=model))
    strong = building(other, plan, (), tmp_path / "run")
    assert strong.names["since"] == "9"
    assert strong.names["plugins"].startswith("TreeEnsemble")
    assert "plugins" not in building(case, plan, (), tmp_path / "run").names


@pytest.mark.parametrize(("needed", "total"), [(299, 398), (59, 78), (3, 3)])
def test_of_inputs_that_are_split_three_quarters_judge(needed, total):
    few = Failure(kind="few", numbers={"size": 8, "allowed": 0.01, "upper": 0.3, "needed": needed})
    lacking = replace(verdict(passed=False, judged=False), failures=(few,))
    (step,) = after_untested(lacking, split=True)
    assert step.numbers["total"] == total
    assert total - total // 4 == needed > total - 1 - (total - 1) // 4
    (step,) = after_untested(lacking)
    assert "total" not in step.numbers


def test_to_keep_a_body_that_never_ran_is_advised_once():
    idle = Unjudged(kind="never-ran", name="choose", body="else_branch", op="If", around="choose")
    lacking = verdict(passed=False, judged=False, unjudged=(idle,))
    (step,) = after_untested(lacking)
    assert step.items == ("choose",)
    (step,) = after_untested(lacking, frozenset([NodeName("choose")]))
    assert (step.kind, step.items, step.names) == ("untested", (), {})
