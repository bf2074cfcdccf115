import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halfwise.fixing.loop import fix
from halfwise.fixing.next_steps import (
    building_commands,
    delivered_next,
    diagnose_command,
    lower_next,
    next_steps,
    runs_of_their_own,
    sample_profiles,
)
from halfwise.graph.model import network_from_proto
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.records import Cause, Note, RungTried, Worth
from tests import models
from tests.faults.quantisation import quantised_relu
from tests.unit.fixing.test_loop import found as outcome
from tests.unit.reporting.engine_runs import engines
from tests.unit.reporting.runs import verdict

pytestmark = pytest.mark.usefixtures("unrepaired")


@pytest.fixture(scope="module")
def fixed():
    ill = models.conv_chain()
    request = understand(dict(ill.inputs), {})
    case = load_case(ill.proto, request.data, request.criterion)
    return case, fix(case, request.settings, Silent()).plan


def test_fixed_shapes_need_no_profile(fixed, tmp_path):
    case, plan = fixed
    assert sample_profiles(case) == ()
    strong, weak = building_commands(case, plan, (), tmp_path / "a run")
    words = shlex.split(strong.partition(": ")[2])
    # Its convolutions may use TF32 otherwise.
    assert words == [
        *("trtexec", f"--onnx={tmp_path}/a run/model.onnx", "--stronglyTyped", "--noTF32"),
        f"--saveEngine={tmp_path}/a run/model.engine",
    ]
    # A model in memory is no file that constraints could be set on.
    assert "`halfwise export` writes layer constraints" in weak


def test_a_model_in_a_file_has_a_command_for_eight(fixed, tmp_path):
    case, plan = fixed
    filed = replace(case, network=replace(case.network, path=tmp_path / "m.onnx"))
    _, weak = building_commands(filed, plan, (), tmp_path / "run")
    assert shlex.split(weak.rpartition(": ")[2])[:3] == ["halfwise", "export", f"{tmp_path}/run"]
    assert (
        "no BF16"
        in building_commands(filed, plan.model_copy(update={"low": "bf16"}), (), tmp_path / "run")[
            1
        ]
    )


def test_where_no_node_is_kept_none_is_told_of(fixed, tmp_path):
    case, plan = fixed
    moved = plan.model_copy(update={"keep": (), "data_movement": (plan.keep[0].node,)})
    _, weak = building_commands(case, moved, (), tmp_path / "run")
    assert weak.endswith("`halfwise export` writes layer constraints on what moves data in FP32.")


def test_where_nothing_is_kept_eight_needs_no_constraints(fixed, tmp_path):
    case, plan = fixed
    none = plan.model_copy(update={"keep": (), "data_movement": (), "unsupported": ()})
    filed = replace(case, network=replace(case.network, path=tmp_path / "m.onnx"))
    for one, out in ((filed, tmp_path / "run"), (case, None)):
        _, weak = building_commands(one, none, (), out)
        assert "--fp16" in weak
        assert "constraints" not in weak
    words = shlex.split(building_commands(filed, none, (), tmp_path / "run")[1].rpartition(": ")[2])
    assert words == [
        *("trtexec", f"--onnx={tmp_path}/m.onnx", "--fp16"),
        f"--saveEngine={tmp_path}/run/tensorrt-8.6.engine",
    ]


def test_for_eight_int8_is_left_out_nowhere(fixed, tmp_path):
    case, plan = fixed
    none = plan.model_copy(update={"keep": (), "data_movement": (), "unsupported": ()})
    filed = replace(case, network=replace(case.network, path=tmp_path / "m.onnx"))
    some = none.model_copy(update={"int8": ("conv",)})
    _, weak = building_commands(filed, some, (), tmp_path / "run")
    assert "; build the FP32 model and its Q/DQ pairs: halfwise export" in weak
    # A model that came with pairs is built as it is.
    paired = network_from_proto(quantised_relu(ill=False))
    filed = replace(case, network=replace(paired, path=tmp_path / "q.onnx"))
    _, weak = building_commands(filed, none, (), tmp_path / "run")
    assert f"trtexec --onnx={tmp_path}/q.onnx --int8 --fp16 " in weak


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
    words = shlex.split(diagnose_command(CASE, request, Path("runs/one")))
    assert words[:5] == ["halfwise", "diagnose", "my model.onnx", "--inputs", "x.npz"]
    assert words[words.index("--trt-command") + 1] == "ssh orin python3"
    assert [words[i + 1] for i, w in enumerate(words) if w == "--minShapes"] == ["x:1x3", "x:2x3"]
    assert words[words.index("--rel-max") + 1] == "0.02"
    assert not {"--keep", "--max-builds", "--tf32"} & set(words)
    assert words[-2:] == ["-o", "runs/one.diagnosis"]
    in_memory = understand({}, {"allow_random": True})
    assert "--inputs DATA --allow-random" in diagnose_command(CASE, in_memory, None)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("no-engine", ("halfwise modernize 'my model.onnx'", "--optimization-level", "version")),
        ("not-run", ("--optimization-level",)),
        ("kernel", ("--optimization-level", "--accumulate fp16")),
        ("ignored", ("--typing strong", "--max-builds")),
        ("no-effect", ("--max-builds",)),
        ("precision", ("--max-builds",)),
        ("unknown", ("--max-builds",)),
    ],
)
def test_what_may_lead_lower_fits_what_engines_showed(kind, said):
    low = RungTried(rung="fp16", end="tolerance", plans=1, builds=1, built=1, ran=1)
    found = engines().model_copy(update={"rungs": (low,), "causes": (Cause(kind=kind),)})
    lines = " ".join(lower_next(found, CASE))
    assert all(what in lines for what in said)
    assert ("modernize" in lines) == (kind == "no-engine")
    passed = found.model_copy(update={"rungs": (low.model_copy(update={"end": "slower"}),)})
    assert lower_next(passed, CASE) == ()


@pytest.mark.parametrize(
    ("end", "kinds", "said"),
    [
        ("lost", ("lost",), "The worker was lost, so nothing is known of FP16 engines"),
        ("lost", (), "The worker was lost, so nothing is known of FP16 engines"),
        ("unfetched", (), "The FP16 engine that passed could not be fetched"),
    ],
)
def test_what_was_lost_is_tried_again_not_searched_for_longer(end, kinds, said):
    low = RungTried(rung="fp16", end=end, plans=1, builds=1, built=1, ran=1)
    causes = tuple(Cause(kind=kind) for kind in kinds)
    found = engines().model_copy(update={"rungs": (low,), "causes": causes})
    (line,) = lower_next(found, CASE)
    assert line.startswith(said)
    assert "--start-from" in line


def steps(found, judged, worth=None):
    return " ".join(next_steps(judged, found.planner.case, found, (), None, (), worth))


def test_what_was_done_already_is_not_advised():
    found = outcome(models.small(), allow_random=True)
    failed = verdict(passed=False, judged=False, unseen=False)
    found.planner.case = replace(found.planner.case, real=False)
    assert "--allow-random" not in steps(found, failed)
    assert "Give more samples" in steps(found, failed)
    copies = Note(kind="copies", severity="warning", facts={"copies": 1, "heldout": 1})
    found.planner.case = replace(found.planner.case, notes=(copies,))
    assert "Give samples that differ from one another" in steps(found, failed)
    found.planner.settings = replace(found.planner.settings, allow_random=False)
    assert "--allow-random" in steps(found, failed)


def test_where_fp32_costs_no_more_it_is_advised():
    found = outcome(models.small(), allow_random=True)
    dearer, cheaper = Worth(cost=1.0, fp32=0.667), Worth(cost=1.0, fp32=2.0)
    assert "Unless an engine shows a gain, use the FP32 model." in steps(found, verdict(), dearer)
    assert "FP32 model." not in steps(found, verdict(), cheaper)


def test_a_plan_that_gains_nothing_is_not_to_be_built_beside_a_cheaper_one(monkeypatch):
    found = outcome(models.small(), allow_random=True)
    dear, cheap = Worth(cost=1.0, fp32=0.667), Worth(cost=1.0, fp32=2.0)
    monkeypatch.setattr("halfwise.fixing.next_steps.choosing", lambda *_: ("Take it.",))
    told = steps(found, verdict(), dear)
    assert "Take it." in told
    assert "use the FP32 model" not in told
    assert "Build it" not in told
    assert "Build it" in steps(found, verdict(), cheap)


def test_where_the_engine_is():
    assert delivered_next(None) == ()
    assert "runs/one/model.engine" in delivered_next(Path("runs/one"))[0]


def test_a_device_on_which_the_plan_fails_may_need_a_run_of_its_own():
    right = engines(verdict=verdict(level="engine"))
    other = right.worker.model_copy(update={"name": "cloud"})
    wrong = engines(verdict=verdict(level="engine", passed=False), worker=other)
    told = runs_of_their_own((right, wrong))
    assert "wrong on cloud" in told
    assert "only --trt-worker cloud" in told
    for same in ((), (right, right), (wrong, wrong), (engines(),)):
        assert runs_of_their_own(same) == ""
