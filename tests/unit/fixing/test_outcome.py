import shlex

import numpy as np
import onnx
import pytest

from halfwise import api
from halfwise.case import Case
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.fixing.loop import fix
from halfwise.fixing.outcome import (
    Result,
    cost,
    final_verdict,
    fix_run,
    provenance,
    versions,
    warnings,
    with_unjudged,
)
from halfwise.fixing.rewrite import written_bytes
from halfwise.graph import weights
from halfwise.options.loading import load_case
from halfwise.options.options import Request, understand
from halfwise.progress import Silent
from halfwise.records import SCHEMA_VERSION, Cause, Failure, RungTried
from halfwise.reporting.steps import steps_told
from halfwise.reporting.verdict import ANY_SAMPLE
from tests import models
from tests.unit.reporting import runs
from tests.unit.reporting.engine_runs import build, engines
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
        "halfwise.fixing.outcome.PROTOBUF_BYTES", weights.weight_bytes(result.mixed) - 1
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
    run = fix_run(case, request, found, 12.5, ("a hint",), tmp_path / "run")
    assert (run.kind, run.schema_version) == ("fix", SCHEMA_VERSION)
    assert run.plan is not None
    assert [k.because for k in run.plan.keep] == [k.because for k in found.plan.keep]
    assert all(k.reason and k.why for k in run.plan.keep)
    assert run.verdict.outputs == found.verdict.outputs
    assert run.verdict.hints[-1] == "a hint"
    assert run.cost.seconds == 12.5
    assert run.cost.evaluations == found.evaluations
    assert set(run.cost.stage_seconds) >= {"reference", "observe", "search", "judge"}
    assert run.sizes is not None
    assert 0 < run.sizes.plan != run.sizes.fp32 == written_bytes(case.network.model)


def test_the_next_step_is_a_command_for_tensorrt(fixed, tmp_path):
    case, request, found = fixed
    lines = steps_told(fix_run(case, request, found, 1.0, (), tmp_path / "run").next_step)
    # It costs as much as FP32.
    assert lines[0].endswith("use the FP32 model.")
    assert f"trtexec --onnx={tmp_path}/run/model.onnx --stronglyTyped" in lines[1]
    # Of the kept nodes none may use TF32.
    assert "--noTF32" not in lines[1]
    assert "8.x" in lines[3]
    assert not any("proven" in line for line in lines)


def test_the_command_works_in_a_shell(fixed, tmp_path):
    case, request, found = fixed
    line = steps_told(fix_run(case, request, found, 1.0, (), tmp_path / "my $run").next_step)[1]
    words = shlex.split(line.partition("trtexec ")[2])
    assert words[0] == f"--onnx={tmp_path}/my $run/model.onnx"
    assert words[-1] == f"--saveEngine={tmp_path}/my $run/model.engine"


def test_a_failure_says_what_to_do_instead(fixed, tmp_path):
    case, request, found = fixed
    failed = runs.verdict(
        passed=False, unseen=False, reasons=("far off",), outputs={"y": runs.BROKEN}
    )
    from_failure = steps_told(
        fix_run(case, request, _with(found, verdict=failed), 1.0, (), tmp_path / "run").next_step
    )
    assert not any("trtexec" in line for line in from_failure)
    assert any("--heldout" in line for line in from_failure)
    assert any("--metric" in line for line in from_failure)
    spent = _with(found, search=found.search.model_copy(update={"exhausted": True}))
    spent = _with(spent, verdict=failed)
    ended = fix_run(case, request, spent, 1.0, (), tmp_path / "run")
    assert any("--budget" in line for line in steps_told(ended.next_step))
    assert ended.search is not None
    assert ended.search.budget == request.settings.budget
    assert ended.search.spent == found.planner.budget.spent / len(case.calibration)


@pytest.mark.parametrize(
    ("outputs", "fits"),
    [
        ({"y": runs.BROKEN}, True),
        ({"y": runs.output_error()}, False),
        ({"y": runs.output_error(nonfinite=3, passed=False)}, False),
    ],
)
def test_the_tolerance_is_doubted_only_where_another_might_do(fixed, tmp_path, outputs, fits):
    """None accepts NaN that FP32 lacks."""
    case, request, found = fixed
    found = _with(found, verdict=runs.verdict(passed=False, reasons=("it fails",), outputs=outputs))
    lines = steps_told(fix_run(case, request, found, 1.0, (), tmp_path / "run").next_step)
    assert any("tolerance fits" in line for line in lines) is fits


def test_a_failure_in_engines_names_the_option_for_more_builds(fixed, tmp_path):
    case, request, found = fixed
    failed = runs.verdict(
        passed=False, level="engine", reasons=("far off",), outputs={"y": runs.BROKEN}
    )
    found, out = _with(found, verdict=failed), tmp_path / "run"
    low = RungTried(rung="fp16", end="tolerance", plans=2, builds=2, built=2, ran=2)
    off = engines().model_copy(update={"rungs": (low,)})
    lines = steps_told(fix_run(case, request, found, 1.0, (), out, off).next_step)
    assert "--budget builds" in lines[0]
    assert any("tolerance fits" in line for line in lines)
    none = low.model_copy(update={"end": "unbuildable", "built": 0, "ran": 0})
    cause = Cause(kind="no-engine", builds=(2, 3))
    crashed = off.model_copy(update={"rungs": (none,), "causes": (cause,)})
    lines = steps_told(fix_run(case, request, found, 1.0, (), out, crashed).next_step)
    assert "halfwise modernize" in lines[0]
    assert not any("tolerance fits" in line for line in lines)
    unknown = Cause(kind="unknown", builds=(3,))
    allowed = build(3, "mixed", config=build(3, "").config.model_copy(update={"tf32": True}))
    in_tf32 = off.model_copy(update={"causes": (unknown,), "builds": (allowed,)})
    assert (
        "leave --engine tf32 out"
        in steps_told(fix_run(case, request, found, 1.0, (), out, in_tf32).next_step)[0]
    )
    passed = _with(found, verdict=runs.verdict(level="engine"))
    lines = steps_told(fix_run(case, request, passed, 1.0, (), out).next_step)
    assert f"{out}/model.engine" in lines[0]
    assert not any("emulated" in line for line in lines)


def _with(found, **changed):
    return type(found)(**{**vars(found), **changed})


def test_matrix_products_in_fp32_must_not_use_tf32(tmp_path):
    ill = models.tiny_weights()
    request = understand(dict(ill.inputs), {})
    case = load_case(ill.proto, request.data, request.criterion)
    found = fix(case, request.settings, Silent())
    lines = steps_told(fix_run(case, request, found, 1.0, (), tmp_path / "run").next_step)
    assert "--noTF32" in lines[1]


def test_a_verdict_on_random_inputs_fails_unless_allowed():
    passed = runs.verdict()
    assert final_verdict(passed, *prepared(), ()).passed
    random = final_verdict(passed, *prepared("random"), ())
    assert not random.passed
    (reason,) = random.reasons
    assert "not real data" in reason
    assert final_verdict(passed, *prepared("random", allow_random=True), ()).passed


def test_a_metric_that_passed_with_outputs_far_off_is_doubted():
    metric = {"name": "top1", "reference": 1, "candidate": 1, "allowed_drop": 0, "passed": True}
    far = runs.output_error(rel_max=0.5)
    near = runs.output_error(rel_max=0.01)
    for output, doubts in ((far, 1), (near, 0)):
        verdict = runs.verdict(outputs={"y": output})
        verdict = type(verdict).model_validate({**verdict.model_dump(), "metric": metric})
        assert len(final_verdict(verdict, *prepared(), ()).hints) == doubts


def test_warnings_are_told_without_the_notes():
    case, _ = prepared({"x": models.layer_norm().inputs["x"][:1]})
    assert any("single sample" in line for line in warnings(case))
    assert not any(line.startswith("warning") for line in warnings(case))
    case, _ = prepared()
    assert warnings(case) == ()


def test_where_a_run_comes_from():
    case, request = prepared(seed=3, rel_max=0.5)
    record = provenance(case, request)
    assert record.model == "in memory"
    assert record.model_sha256 == case.network.sha256
    assert record.inputs_sha256 == case.data_sha256
    assert record.options == {"seed": "3", "rel_max": "0.5"}
    assert record.seed == 3
    assert record.date.endswith("+00:00")
    assert record.versions == versions()


def test_versions_and_cost():
    found = versions()
    assert {"python", "halfwise", "onnx", "onnxruntime", "numpy"} <= found.keys()
    assert all(value[0].isdigit() for value in found.values())
    made = cost(3, 1.5, {"search": 1.0})
    assert (made.evaluations, made.seconds, made.stage_seconds) == (3, 1.5, {"search": 1.0})
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
    told = [reason for reason in found.reasons if reason.startswith("not judged: ")]
    assert len(told) == (not allowed)
    assert "wrong" in found.reasons


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
