"""One tiny model for each way FP16 breaks: what is kept, why, and that none of it can be spared."""

import re

import numpy as np
import onnx
import pytest

from halfwise.fixing.bench import Bench, Tolerance
from halfwise.graph.loading import load_network
from halfwise.graph.roles import roles_of
from halfwise.judging.reference import inspected_reference
from halfwise.records import Criterion, NodeName, TensorName
from halfwise.store import read_run, write_run
from tests import models
from tests.end_to_end.soundness import (
    assert_minimal,
    assert_recorded,
    assert_smallest,
    assert_sound,
    picked,
)
from tests.golden.comparing import differences
from tests.golden.facts import facts
from tests.golden.running import golden_facts
from tests.models import Ill
from tests.unit.casing import Emulated
from tools import failure_classes

# Rounding differs between processors in the last digits.
NUMBERS = re.compile(r"[\d.]+(e−?\d+)?")
SUMMING = [make for make in models.CLASSES if "--accumulate" in make().options]


@pytest.fixture
def fix(fix):
    """Fix a model by what is kept alone."""
    return lambda ill, *options, **how: fix(ill, "--no-repair", *options, **how)


@pytest.fixture(scope="module", autouse=True)
def _without_page():
    """Other tests are about pages and evidence."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "halfwise.page.finish.finish", lambda folder, run, *_, **__: write_run(folder, run)
        )
        yield


def every_number(ill: Ill) -> tuple[str, ...]:
    """Return the options of a class, with which every number counts, also of recognised outputs."""
    return ill.options if "--rel-max" in ill.options else (*ill.options, "--strict")


CLASSES = pytest.mark.parametrize("make", models.CLASSES, ids=lambda make: make.__name__)


@CLASSES
def test_keeps_what_is_needed_and_names_the_cause(fix, make):
    ill = make()
    ended = fix(ill, *every_number(ill), screen=True)
    assert ended.code == 0, ended.out + ended.err
    # Others are kept only because less would cost more.
    keep = [k for k in ended.record["plan"]["keep"] if not (k["because"] or {}).get("spare")]
    assert len(keep) == ill.smallest
    golden = f"classes/{ill.name}/no-repair"
    assert differences(golden, golden_facts(golden) or {}, facts(ended.code, ended.folder)) == []
    assert {entry["guard"] for entry in keep} == ill.guards
    if ill.size is None or "headroom" in ill.guards:
        assert {entry["node"] for entry in keep} == ill.kept
    if ill.name == failure_classes.PAGES[ill.family][1]:
        assert_told(ill, ended.record["plan"]["keep"])
    # Outputs that pass are no reason to let something become infinite inside.
    unseen = ill.guards <= {"infinite", "decision", "headroom"}
    assert ended.record["baseline"]["passed"] == unseen
    if "headroom" not in ill.guards and len(keep) == len(ended.kept):
        # Nothing fails on the observed range; a test of its own halves it.
        assert_minimal(ended, ill)


@pytest.mark.slow
@CLASSES
def test_no_other_set_is_as_small_and_verify_agrees(fix, call, make):
    ill = make()
    ended = fix(ill, *every_number(ill))
    if "headroom" in ill.guards:
        assert_recorded(ended)
        return
    assert_sound(ended, ill, call)
    if ill.size is None:
        assert_smallest(ended, ill)


def assert_told(ill, kept):
    """The page of the class gives the reasons of this run."""
    page = failure_classes.page(ill.family).read_text(encoding="utf-8")
    told = failure_classes.reasons(ill, kept).replace("model.npz", "inputs.npz")
    shown = failure_classes.block(page, "reasons")
    assert NUMBERS.sub("", shown) == NUMBERS.sub("", told), "run make readme"


@pytest.mark.parametrize("make", SUMMING, ids=lambda make: make.__name__)
def test_sums_inside_ops_show_only_where_they_are_asked_for(fix, make):
    ended = fix(make())
    assert ended.code == 0
    assert ended.kept == set()


def test_the_state_of_a_recurrence_shows_with_no_option(fix):
    ended = fix(models.lstm(), "--accumulate", "fp16")
    assert ended.code == 0
    assert ended.kept == set()


def test_the_scales_of_a_low_resize_stay_in_fp32(fix):
    ended = fix(models.resize())
    types = {t.name: t.data_type for t in onnx.load(ended.model).graph.initializer}
    (node,) = [n for n in onnx.load(ended.model).graph.node if n.name == "resize"]
    assert types[node.input[2]] == onnx.TensorProto.FLOAT


def test_each_cause_is_told_with_its_number(fix):
    ended = fix(models.layer_norm())
    reasons = {entry["node"]: entry["reason"] for entry in ended.record["plan"]["keep"]}
    assert "65504" in reasons["square"]
    assert any("opset 17" in guard["fix"] for guard in ended.record["guards"])
    assert "square" in ended.out
    assert "PASSED in emulation with sums in FP32" in ended.out  # the mean adds up to 86,000


def test_integers_are_carried_to_the_angle_in_fp32(fix):
    ended = fix(models.rotary())
    assert ended.record["plan"]["data_movement"] == ["count"]


def test_a_mask_saturates_and_is_listed(fix):
    ended = fix(models.mask())
    (constant,) = ended.record["plan"]["constants"]
    assert constant["name"] == "lowest"
    assert constant["minimum"] == float(np.finfo(np.float32).min)
    assert constant["consumers"] == ["fill"]


def test_an_infinity_that_is_swallowed_keeps_nothing_but_is_told(fix):
    ended = fix(models.saturating())
    (inside,) = ended.record["verdict"]["intermediate_nonfinite"]
    assert inside["producer"] == "cube"
    assert inside["elements"] > 0
    assert inside["harmless"]
    assert "no harm" in ended.out


def test_an_infinity_that_other_inputs_would_feel_is_kept_away(fix, call):
    ill = models.small_token()
    ended = fix(ill)
    assert ended.record["verdict"]["intermediate_nonfinite"] == []
    reasons = [entry["reason"] for entry in ended.record["plan"]["keep"]]
    assert all(
        "infinite inside" in reason and "although the outputs pass" in reason for reason in reasons
    )
    assert "infinite inside" in ended.out
    # The outlier is in another token there.
    np.savez("others.npz", x=ill.inputs["x"][:, :, ::-1])
    again = call("verify", "model.onnx", ended.model, "--inputs", "others.npz")
    assert again.code == 0, again.out


def test_a_decision_holds_where_onnx_runtime_runs_the_file(fix):
    ended = fix(models.position_bucket())
    verdict = ended.record["verdict"]
    assert ended.code == 0
    assert verdict["as_file"][0]["passed"]
    assert "ONNX Runtime" in verdict["as_file"][0]["runner"]
    assert all(o["passed"] for o in verdict["as_file"][0]["outputs"].values())
    (entry,) = (k for k in ended.record["plan"]["keep"] if k["guard"] == "decision")
    assert "bucket (Cast) decides" in entry["reason"]
    assert entry["error_without"] > 1
    assert "When ONNX Runtime runs the file: " in ended.out


def test_what_a_guard_suspects_without_need_stays_low(fix):
    ended = fix(models.two_readers())
    suspected = {n for g in ended.record["guards"] for n in g["nodes"]}
    assert "tanh" in suspected - ended.kept


def test_headroom_keeps_what_twice_the_range_would_break(fix):
    ill = models.near_the_edge()
    ended = fix(ill)
    assert ended.record["baseline"]["passed"]
    # On the observed range nothing fails; with the hidden tensor's range halved each is needed.
    run, network = read_run(ended.folder), load_network(ended.folder.parent / "model.onnx")
    roles = roles_of(network)
    limits = {TensorName("enlarge_out"): 65504 / 2}
    assert run.search is not None
    samples = picked(ill, run.search.calibration)
    references = inspected_reference(network, samples)[0]
    judge, tolerance = Emulated(network, roles, limits), Tolerance(Criterion(), factor=0.8)
    bench = Bench(judge, samples, references, tolerance)
    kept = frozenset(map(NodeName, ill.kept))
    assert bench.evaluate(kept).passed
    assert not any(bench.evaluate(kept - {node}).passed for node in kept)


def test_without_headroom_the_edge_is_not_kept(fix, call):
    ill = models.near_the_edge()
    ended = fix(ill, "--require", "headroom=1")
    assert ended.code == 0
    assert ended.kept == set()
    assert_sound(ended, ill, call)


def test_headroom_that_no_output_feels_keeps_nothing(fix):
    ended = fix(models.saturating(), "--require", "headroom=8")
    assert ended.code == 0
    assert ended.kept == set()


def test_a_failing_heldout_sample_joins_and_the_rest_judge(fix):
    ended = fix(models.root_mean_square())
    search, verdict = ended.record["search"], ended.record["verdict"]
    assert search["joined"] == ["model.npz[3]"]
    assert search["calibration"][-1] == "model.npz[3]"
    assert verdict["samples"] == ["model.npz[7]"]
    assert verdict["unseen"]
    assert set(verdict["samples"]).isdisjoint(search["calibration"])
    assert "held-out" in ended.err
    # What is left passed before: 0 of 1 alone would bound the failing inputs too low.
    assert verdict["failure_bound"]["joined"] == 1
    assert verdict["failure_bound"]["upper"] == pytest.approx(0.95**0.5)
    assert "counting the 1 that joined the search as failing" in " ".join(ended.out.split())


def test_the_only_heldout_sample_cannot_join(saved, call):
    ill = models.root_mean_square()
    model, inputs = saved(ill)
    np.savez("small.npz", x=ill.inputs["x"][:3])
    np.savez("large.npz", x=ill.inputs["x"][3:4])
    ended = call(
        *("fix", model, "--inputs", "small.npz", "--heldout", "large.npz", "-o", "run"),
    )
    assert ended.code == 10
    assert ended.record["search"]["joined"] == []
    assert ended.record["verdict"]["worst_sample"] == "large.npz"
    assert inputs.is_file()


def test_a_single_sample_is_no_heldout_result(fix):
    whole = models.layer_norm()
    ill = models.Ill(whole.proto, {"x": whole.inputs["x"][:1]}, whole.kept)
    ended = fix(ill)
    assert ended.code == 10
    assert ended.kept == ill.kept
    verdict = ended.record["verdict"]
    assert not verdict["passed"]
    assert not verdict["unseen"]
    assert [failure["kind"] for failure in verdict["failures"]] == ["seen"]
    assert any("single sample" in warning for warning in ended.record["warnings"])
    assert "NOT JUDGED" in ended.out
    assert not verdict["judged"]
    assert_minimal(ended, ill)
    assert_recorded(ended)


def test_error_that_only_accumulates_is_told_as_such(fix):
    ill = models.deep()
    record = fix(ill, *ill.options).record
    assert record["followed"]["accumulates"]
    errors = [step["error"] for step in record["growth"]]
    assert len(errors) == 10
    assert errors[-1] > 1.5 * errors[0]
