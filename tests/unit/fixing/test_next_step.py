import shlex
from dataclasses import replace

import pytest

from halfwise.fixing.loop import fix
from halfwise.fixing.next_step import building_commands, sample_profiles
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from tests import models


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
    assert "halfwise export writes layer constraints" in weak


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
