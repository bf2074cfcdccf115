import re
import shlex

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from halfwise import api
from halfwise.case import Case, Rules, Settings
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import fix
from halfwise.fixing.outcome import (
    candidate_worth,
    cost,
    final_verdict,
    fix_run,
    provenance,
    rungs_of,
    versions,
    warnings,
    with_unjudged,
    worth_of,
)
from halfwise.fixing.plan.plan import Plan, Variant
from halfwise.fixing.result import Result
from halfwise.graph import weights
from halfwise.graph.casts import low_type
from halfwise.graph.conversion import low_nodes
from halfwise.graph.roles import FIRST_BF16_OPSET, roles_of
from halfwise.options.loading import load_case
from halfwise.options.options import Request, understand
from halfwise.progress import Silent
from halfwise.records import SCHEMA_VERSION, Cause, Failure, RungTried, replace
from halfwise.reporting.remarks import reasons, steps_told
from halfwise.reporting.verdict import ANY_SAMPLE
from tests import models, tasks
from tests.graphs import Drawn, graphs
from tests.unit.fixing.int8.products import outlier
from tests.unit.fixing.running import plans_of
from tests.unit.reporting import runs
from tests.unit.reporting.engine_runs import build, engines, failed, result
from tests.unit.reporting.runs import run

pytestmark = pytest.mark.usefixtures("unrepaired")


def test_the_model_is_made_when_asked_for():
    ill = models.layer_norm()
    result = api.fix(ill.proto, dict(ill.inputs))
    assert result.folder is None
    assert result.model is not None
    onnx.checker.check_model(result.model)
    assert {node.name for node in result.model.graph.node} >= {"square", "root"}


def test_without_a_mixed_model_there_is_none():
    assert Result(run(), None).model is None


def test_more_weights_than_a_protobuf_holds(monkeypatch):
    ill = models.layer_norm()
    result = api.fix(ill.proto, {k: np.asarray(v) for k, v in ill.inputs.items()})
    assert result.mixed is not None
    monkeypatch.setattr(
        "halfwise.fixing.result.PROTOBUF_BYTES", weights.weight_bytes(result.mixed) - 1
    )
    with pytest.raises(CaseError, match="more than a protobuf holds") as told:
        _ = result.model
    assert "out=…" in told.value.hint


def prepared(inputs=None, **options) -> tuple[Case, Request]:
    ill = models.layer_norm()
    request = understand(dict(ill.inputs) if inputs is None else inputs, options)
    return load_case(ill.proto, request.data, request.criterion), request


@pytest.fixture(scope="module")
def fixed():
    case, request = prepared()
    return case, request, fix(case, request.settings, Silent())


def test_a_fix_on_record(fixed, tmp_path):
    case, request, found = fixed
    run = fix_run(case, request, found, 12.5, tmp_path / "run")
    assert (run.kind, run.schema_version) == ("fix", SCHEMA_VERSION)
    assert run.plan is not None
    assert [k.because for k in run.plan.keep] == [k.because for k in found.plan.keep]
    assert all(k.reason for k in run.plan.keep)
    assert run.verdict.outputs == found.verdict.outputs
    assert run.cost.seconds == 12.5
    assert run.cost.evaluations == found.evaluations
    assert set(run.cost.stage_seconds) >= {"reference", "observe", "search", "judge"}


def test_the_next_step_is_a_command_for_tensorrt(fixed, tmp_path):
    case, request, found = fixed
    lines = steps_told(fix_run(case, request, found, 1.0, tmp_path / "run").next_step)
    assert f"trtexec --onnx={tmp_path}/run/model.onnx --stronglyTyped" in lines[0]
    # Of the kept nodes none may use TF32.
    assert "--noTF32" not in lines[0]
    assert not any("proven" in line for line in lines)


def test_the_command_works_in_a_shell(fixed, tmp_path):
    case, request, found = fixed
    line = steps_told(fix_run(case, request, found, 1.0, tmp_path / "my $run").next_step)[0]
    words = shlex.split(line.partition("trtexec ")[2])
    assert words[0] == f"--onnx={tmp_path}/my $run/model.onnx"
    assert words[-1] == f"--saveEngine={tmp_path}/my $run/model.engine"


def test_a_failure_says_what_to_do_instead(fixed, tmp_path):
    case, request, found = fixed
    failures = (Failure(kind="tolerance"),)
    failed = runs.verdict(passed=False, unseen=False, failures=failures, outputs={"y": runs.BROKEN})
    from_failure = steps_told(
        fix_run(case, request, _with(found, verdict=failed), 1.0, tmp_path / "run").next_step
    )
    assert not any("trtexec" in line for line in from_failure)
    assert any("--heldout" in line for line in from_failure)
    assert any("--metric" in line for line in from_failure)
    spent = _with(found, search=replace(found.search, exhausted=True))
    spent = _with(spent, verdict=failed)
    ended = fix_run(case, request, spent, 1.0, tmp_path / "run")
    assert any("--start-from" in line for line in steps_told(ended.next_step))
    assert ended.search is not None
    assert ended.search.budget == request.settings.budget
    assert ended.search.spent == found.space.budget.spent / len(case.calibration)


@pytest.mark.parametrize(
    ("kinds", "outputs", "fits"),
    [
        (("tolerance",), {"y": runs.BROKEN}, True),
        (("shape",), {"y": runs.BROKEN}, False),
        (("seen",), {"y": runs.output_error()}, False),
        (("tolerance", "non-finite"), {"y": runs.output_error(nonfinite=3, passed=False)}, False),
    ],
)
def test_the_tolerance_is_doubted_only_where_another_might_do(
    fixed, tmp_path, kinds, outputs, fits
):
    """None accepts NaN that FP32 lacks."""
    case, request, found = fixed
    failures = tuple(Failure(kind=kind) for kind in kinds)
    found = _with(found, verdict=runs.verdict(passed=False, failures=failures, outputs=outputs))
    lines = steps_told(fix_run(case, request, found, 1.0, tmp_path / "run").next_step)
    assert any("tolerance fits" in line for line in lines) is fits


def test_a_failure_in_engines_names_the_option_for_more_builds(fixed, tmp_path):
    case, request, found = fixed
    failures = (Failure(kind="tolerance"),)
    failed = runs.verdict(
        passed=False, level="engine", failures=failures, outputs={"y": runs.BROKEN}
    )
    found, out = _with(found, verdict=failed), tmp_path / "run"
    low = RungTried(rung="fp16", end="tolerance")
    off = replace(engines(), rungs=(low,))
    lines = steps_told(fix_run(case, request, found, 1.0, out, off).next_step)
    assert "--budget builds" in lines[0]
    assert any("tolerance fits" in line for line in lines)
    none = replace(low, end="unbuildable")
    crashed = replace(off, rungs=(none,), results=())
    lines = steps_told(fix_run(case, request, found, 1.0, out, crashed).next_step)
    assert "opset 17" in lines[0]
    assert not any("tolerance fits" in line for line in lines)
    unknown = Cause(kind="unknown", builds=(3,))
    allowed = build(3, "mixed", config=replace(build(3, "").config, tf32=True))
    in_tf32 = replace(off, causes=(unknown,), builds=(allowed,))
    assert (
        "leave --engine tf32 out"
        in steps_told(fix_run(case, request, found, 1.0, out, in_tf32).next_step)[0]
    )
    passed = _with(found, verdict=runs.verdict(level="engine"))
    lines = steps_told(fix_run(case, request, passed, 1.0, out).next_step)
    assert f"{out}/model.engine" in lines[0]
    assert not any("emulated" in line for line in lines)


def _with(found, **changed):
    return replace(found, **changed)


def test_matrix_products_in_fp32_must_not_use_tf32(tmp_path):
    ill = models.tiny_weights()
    request = understand(dict(ill.inputs), {})
    case = load_case(ill.proto, request.data, request.criterion)
    found = fix(case, request.settings, Silent())
    lines = steps_told(fix_run(case, request, found, 1.0, tmp_path / "run").next_step)
    assert "--noTF32" in lines[0]


def test_a_verdict_on_random_inputs_fails_unless_allowed():
    passed = runs.verdict()
    assert final_verdict(passed, *prepared()).passed
    random = final_verdict(passed, *prepared("random"))
    assert not random.passed
    (reason,) = reasons(random.failures)
    assert "not real data" in reason
    assert final_verdict(passed, *prepared("random", allow_random=True)).passed


def test_a_metric_that_passed_with_outputs_far_off_is_doubted():
    metric = {"name": "top1", "reference": 1, "candidate": 1, "allowed_drop": 0, "passed": True}
    far = runs.output_error(rel_max=0.5)
    near = runs.output_error(rel_max=0.01)
    for output, doubts in ((far, 1), (near, 0)):
        verdict = runs.verdict(outputs={"y": output})
        verdict = msgspec.convert(
            {**verdict.to_dict(), "metric": metric}, type(verdict), strict=False
        )
        assert len(final_verdict(verdict, *prepared()).hints) == doubts


def test_warnings_are_told_without_the_notes():
    case, _ = prepared({"x": models.layer_norm().inputs["x"][:1]})
    assert any("single sample" in line for line in warnings(case))
    assert not any(line.startswith("warning") for line in warnings(case))
    case, _ = prepared()
    assert warnings(case) == ()


def test_where_a_run_comes_from():
    case, request = prepared(rel_max=0.5)
    record = provenance(case, request)
    assert record.model == "in memory"
    assert record.model_sha256 == case.network.sha256
    assert record.inputs_sha256 == case.data_sha256
    assert record.options == {"rel_max": "0.5"}
    assert record.date.endswith("+00:00")
    assert record.versions == versions()


def test_versions_and_cost():
    found = versions()
    assert {"python", "halfwise", "onnx", "onnxruntime", "numpy"} <= found.keys()
    assert all(value[0].isdigit() for value in found.values())
    made = cost(3, 1.5, {"search": 1.0})
    assert (made.evaluations, made.seconds, made.stage_seconds) == (3, 1.5, {"search": 1.0})
    assert made.peak_rss_bytes is not None
    assert made.peak_rss_bytes > 10 * 2**20


def marked(verdict, scale=1.0, **options):
    ill = models.small()
    request = understand(dict(ill.inputs), options)
    case = load_case(ill.proto, request.data, request.criterion)
    session = Session(case.network.model)
    references = [
        {n: np.asarray(a, np.float32) * np.float32(scale) for n, a in session.run(s).items()}
        for s in case.heldout
    ]
    return with_unjudged(verdict, case, request, None, case.heldout, references)


def verdict(**update):
    return runs.verdict(**update)


@pytest.mark.parametrize(
    ("allowed", "passed", "after", "judged"),
    [
        (False, True, False, False),
        (False, False, False, True),
        (True, True, True, True),
        (True, False, False, True),
    ],
)
def test_what_nothing_tests_fails_unless_allowed(allowed, passed, after, judged):
    before = verdict(passed=passed, reasons=("wrong",))
    found = marked(before, 0.0, allow_unjudged=allowed)
    assert (found.passed, found.judged) == (after, judged)
    assert [u.kind for u in found.unjudged] == ["zeros"]
    told = [reason for reason in reasons(found.failures) if reason.startswith("not judged: ")]
    assert len(told) == (not allowed)
    assert "wrong" in reasons(found.failures)


def test_what_is_tested_stays_as_it_is():
    before = verdict(passed=True)
    assert marked(before) == before


def test_a_metric_that_takes_any_sample_is_told():
    found = marked(verdict(passed=True), metric="snr", metric_drop=199.0)
    assert found.hints[-1] == ANY_SAMPLE


@pytest.mark.parametrize(("kinds", "judged"), [(("seen",), False), (("seen", "fp32-wrong"), True)])
@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_what_only_the_search_saw_is_not_judged(scale, kinds, judged):
    failures = tuple(Failure(kind=kind) for kind in kinds)
    found = marked(verdict(passed=False, unseen=False, failures=failures), scale)
    assert (found.passed, found.judged) == (False, judged)


@pytest.fixture(scope="module")
def worth_fixed():
    ill = models.layer_norm()
    request = understand(ill.inputs, {})
    case = load_case(ill.proto, request.data, request.criterion)
    return fix(case, request.settings, Silent())


def test_everything_in_fp32_gains_nothing(worth_fixed):
    space = worth_fixed.space
    worth = worth_of(space, space.plan(space.choices))
    assert worth is not None
    assert worth.cost == pytest.approx(worth.fp32)
    assert worth.times_fp32 == pytest.approx(1)
    if worth.fp32 > 1:
        assert not worth.gains


def test_everything_low_costs_one(worth_fixed):
    worth = worth_of(worth_fixed.space, worth_fixed.space.plan(frozenset()))
    assert worth is not None
    assert worth.cost == 1


@given(graphs(), st.sampled_from(("fp16", "fp32")), st.booleans())
def test_keeping_nothing_costs_one_in_any_graph(drawn: Drawn, io, lower):
    inputs = {name: np.stack([array] * 2) for name, array in drawn.sample.items()}
    request = understand(inputs, {"io": io})
    case = load_case(drawn.proto, request.data, request.criterion)
    roles = roles_of(case.network, low_type(request.settings.fmt))
    lowered = tuple(re.escape(n) for n, role in roles.items() if role.free) if lower else ()
    asked = replace(request.settings, rules=Rules(lower=lowered))
    space = plans_of(case, asked)
    worth = worth_of(space, space.plan(frozenset()))
    assume(worth is not None)
    assert worth is not None
    assert worth.cost == 1


def asked_of(fixed: Fixed) -> tuple[Case, Settings]:
    return fixed.space.variant.case, fixed.space.variant.settings


def test_a_candidate_is_worth_what_its_plan_is_and_fp32_nothing_that_is_known(worth_fixed):
    space, (case, settings) = worth_fixed.space, asked_of(worth_fixed)
    mixed = replace(case.network, model=worth_fixed.rewritten.model)
    found = candidate_worth(case, settings, mixed)
    own = worth_of(space, worth_fixed.assigned)
    assert found is not None
    assert own is not None
    assert found.cost == pytest.approx(own.cost)
    assert found.low == "fp16"
    assert candidate_worth(case, settings, case.network) is None


def test_what_nothing_is_low_of_costs_what_fp32_does(worth_fixed):
    # Its plan is that of the emulation, and is not in the engine.
    fp32 = result("FP32, TF32 off", 1, 4.0)
    low = result("FP16", 2, 1.0, build=failed(2), latency=None)
    found = engines(results=(fp32, low), rung="fp32", keep=())
    worth = worth_of(worth_fixed.space, worth_fixed.assigned, found)
    assert worth is not None
    assert (worth.cost, worth.measured) == (worth.fp32, None)


def test_the_time_of_the_delivered_row_counts(worth_fixed):
    rows = [result(name, i, 1.0 + i) for i, name in enumerate(("FP32, TF32 off", "FP16"))]
    mixed = [result(name, i, 1.0 + i) for i, name in enumerate(("mixed", "mixed, build 3"), 2)]
    own = mixed[1].build.engine
    assert own is not None
    own = replace(own, sha256="cd" * 32)
    mixed[1] = replace(mixed[1], build=replace(mixed[1].build, engine=own))
    for shown in (mixed, mixed[::-1]):
        found = engines(results=(*rows, *shown), rung="fp16", delivered=own)
        worth = worth_of(worth_fixed.space, worth_fixed.assigned, found)
        assert worth is not None
        assert worth.measured == 4.0 / 2.0


def test_where_a_plan_gives_the_very_file_of_fp32_the_delivered_rung_counts(worth_fixed):
    # Seen in an engine of TensorRT 8.6.0: with its constraints the builder chose FP32 everywhere.
    fp32 = result("FP32, TF32 off", 1, 2.0, rung="fp32")
    rows = (fp32, result("FP16", 2, 2.0, rung="fp16"), result("mixed", 3, 3.0, rung="fp16"))
    for rung, measured in (("fp32", 1.0), ("fp16", 1.5)):
        found = engines(results=rows, rung=rung, delivered=fp32.build.engine)
        worth = worth_of(worth_fixed.space, worth_fixed.assigned, found)
        assert worth is not None
        assert (worth.measured, worth.measured_fp32) == (measured, 1.0)


@pytest.mark.parametrize("io", ["fp32", "fp16"])
def test_a_candidate_of_which_all_is_low_costs_one(io):
    ill = models.layer_norm()
    request = understand(ill.inputs, {"io": io, "max_abs": 1e9})
    case = load_case(ill.proto, request.data, request.criterion)
    space = fix(case, request.settings, Silent()).space
    model = space.variant.write(space.plan(frozenset()))[0].model
    found = candidate_worth(case, request.settings, replace(case.network, model=model))
    own = worth_of(space, space.plan(frozenset()))
    assert found is not None
    assert own is not None
    assert found.cost == 1
    assert found.fp32 == pytest.approx(own.fp32)


def test_where_no_shape_in_a_body_is_seen_no_cost_is_told(worth_fixed, monkeypatch):
    def refuse(*_, **__):
        raise CaseError("The model is too old.", "Raise its opset.")

    monkeypatch.setattr("halfwise.fixing.cost.seen_in_bodies", refuse)
    again = plans_of(*asked_of(worth_fixed))
    assert worth_of(again, again.plan(frozenset())) is None
    assert again.cost(frozenset()) is None


@given(graphs(), st.sampled_from(("fp16", "fp32")), st.data())
def test_a_file_of_any_plan_costs_what_the_plan_does(drawn: Drawn, io, data):
    inputs = {name: np.stack([array] * 2) for name, array in drawn.sample.items()}
    new = drawn.proto.opset_import[0].version >= FIRST_BF16_OPSET
    request = understand(inputs, {"io": io, "allow_bf16": new, "allow_tf32": True})
    case = load_case(drawn.proto, request.data, request.criterion)
    variant = Variant(case, request.settings)
    computing = sorted(variant.computing)
    nodes = st.sets(st.sampled_from(computing) if computing else st.nothing())
    kept = frozenset(data.draw(nodes))
    bf16 = kept & variant.may_have_bf16 & data.draw(nodes)
    tf32 = data.draw(st.booleans()) and bool(variant.products & kept - bf16)
    plan = Plan(variant, kept, bf16, tf32)
    mixed = replace(case.network, model=variant.write(plan)[0].model)
    assume(variant.prices is not None and low_nodes(mixed, (ir.DataType.FLOAT16,)))
    assert variant.prices is not None
    found = candidate_worth(case, variant.settings, mixed)
    assert found is not None
    assert found.cost == pytest.approx(variant.cost(plan))
    assert found.fp32 == pytest.approx(variant.prices.fp32)


# --- rungs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classified():
    return tasks.fixed(tasks.classifier(), rel_max=1e-4)


def climbed(*arguments):
    return [rung.to_dict() for rung in rungs_of(*arguments)]


def test_errors_scores_and_costs_are_those_of_each_type(classified):
    fp32, tf32, low = climbed(classified, classified.verdict, "labels")
    space, kept = classified.space, classified.result.kept
    prices = space.variant.prices
    assert (fp32["passed"], fp32["by"], fp32["cost"]) == (True, "labels", prices.fp32)
    assert (tf32["passed"], tf32["candidates"]) == (False, 1)
    assert tf32["error"] > 1
    assert tf32["failures"]
    all_tf32 = prices.model.cost(frozenset(space.variant.roles), tf32=True)
    assert tf32["cost"] == all_tf32 / prices.least
    assert (low["rung"], low["kept"], low["passed"]) == (
        "fp16",
        len(kept),
        classified.verdict.passed,
    )
    assert low["cost"] == space.cost(kept)
    assert low["error"] == pytest.approx(space.excess(kept) * space.bench.tolerance.factor)
    assert {score["metric"] for score in low["scores"]} == {
        score["metric"] for score in fp32["scores"]
    }


def test_without_engines_the_cheapest_that_is_not_wrong_is_chosen(classified):
    failed = replace(classified.verdict, passed=False)
    chosen = {r["rung"]: r["chosen"] for r in climbed(classified, failed, None)}
    assert chosen == {"fp32": True, "tf32": False, "fp16": False}


@pytest.mark.parametrize(("decibels", "delivered"), [(25, "int8"), (58, "fp16")])
def test_int8_is_delivered_where_it_passes_and_costs_less(decibels, delivered):
    found = tasks.fixed(outlier(), to="int8", snr_db=decibels, allow_random=True)
    whole = climbed(found, found.verdict, None)
    rungs = {rung["rung"]: rung for rung in whole}
    assert list(rungs) == ["fp32", "tf32", "fp16", "int8"]
    (int8,) = (one for one in found.rungs if one.plan.has_int8)
    own = rungs["int8"]
    assert (own["left_out"], own["candidates"]) == (len(int8.plan.left_out), 4)
    assert own["cost"] == int8.space.cost(int8.result.kept)
    assert (found.plan.int8 != ()) == (delivered == "int8")
    assert own["passed"] == (True if delivered == "int8" else None)
    assert (own["cost"] < rungs["fp16"]["cost"]) == (delivered == "int8")
    assert [rung for rung in rungs if rungs[rung]["chosen"]] == [delivered]
    assert found.curve.rung == ("int8" if delivered == "int8" else None)


def test_what_the_data_do_not_test_is_not_judged(classified):
    random = replace(classified.verdict, passed=False, failures=(Failure(kind="not-real"),))
    fp32, tf32, low = climbed(classified, random, None)
    assert [fp32["passed"], tf32["passed"], low["passed"]] == [None, False, None]
    assert not low["chosen"]


def test_with_engines_each_rung_is_that_of_its_fastest_that_passed(classified):
    rounds = {1: (4.0, 4.2) * 6, 5: (2.0, 2.1) * 6, 3: (1.0, 1.05) * 6}

    def taking_turns(row):
        medians = rounds.get(row.build.number)
        rung = {1: "fp32", 5: "tf32"}.get(row.build.number, "fp16")
        timed = replace(row.latency, medians=medians)
        return replace(row, rung=rung, latency=timed, excess=0.5)

    found = engines()
    rows = tuple(map(taking_turns, found.results))
    found = replace(found, results=rows, rung="fp16")
    fp32, tf32, low = climbed(classified, classified.verdict, None, found)
    assert [r["chosen"] for r in (fp32, tf32, low)] == [False, False, True]
    # The engine with nothing kept is faster, and failed.
    assert (low["latency"]["median_ms"], low["kept"], low["passed"]) == (1.05, 13, True)
    own = rows[-1]
    # Excesses are over what the search may use.
    assert low["error"] == own.excess * classified.space.bench.tolerance.factor
