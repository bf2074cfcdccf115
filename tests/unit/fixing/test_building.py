import shlex
from dataclasses import replace

import pytest

from halfwise.fixing.building import building, sample_profiles
from halfwise.fixing.loop import fix
from halfwise.graph.loading import network_from_proto
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.reporting.steps import steps_told
from tests import models
from tests.faults.quantisation import quantised_relu

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
    strong, weak = steps_told(building(case, plan, (), tmp_path / "a run"))
    words = shlex.split(strong.partition(": ")[2])
    # Its convolutions may use TF32 otherwise.
    assert words == [
        *("trtexec", f"--onnx={tmp_path}/a run/model.onnx", "--stronglyTyped", "--noTF32"),
        f"--saveEngine={tmp_path}/a run/model.engine",
    ]
    # A model in memory is no file that constraints could be set on.
    assert "`halfwise export` writes layer constraints" in weak


def test_operators_that_no_tensorrt_has_are_named(fixed, tmp_path):
    case, plan = fixed
    model = case.network.copy()
    model.graph[0].domain, model.graph[0].op_type = "ai.onnx.ml", "TreeEnsemble"
    other = replace(case, network=replace(case.network, model=model))
    strong = steps_told(building(other, plan, (), tmp_path / "run"))[0]
    assert strong.startswith("Build it with TensorRT 9 or later, which needs plugins for TreeEns")
    assert "plugins" not in steps_told(building(case, plan, (), tmp_path / "run"))[0]


def test_a_model_in_a_file_has_a_command_for_eight(fixed, tmp_path):
    case, plan = fixed
    filed = replace(case, network=replace(case.network, path=tmp_path / "m.onnx"))
    _, weak = steps_told(building(filed, plan, (), tmp_path / "run"))
    assert shlex.split(weak.rpartition(": ")[2])[:3] == ["halfwise", "export", f"{tmp_path}/run"]
    bf16 = plan.model_copy(update={"low": "bf16"})
    assert "no BF16" in steps_told(building(filed, bf16, (), tmp_path / "run"))[1]


def test_where_no_node_is_kept_none_is_told_of(fixed, tmp_path):
    case, plan = fixed
    moved = plan.model_copy(update={"keep": (), "data_movement": (plan.keep[0].node,)})
    _, weak = steps_told(building(case, moved, (), tmp_path / "run"))
    assert weak.endswith("`halfwise export` writes layer constraints on what moves data in FP32.")


def test_where_nothing_is_kept_eight_needs_no_constraints(fixed, tmp_path):
    case, plan = fixed
    none = plan.model_copy(update={"keep": (), "data_movement": (), "unsupported": ()})
    filed = replace(case, network=replace(case.network, path=tmp_path / "m.onnx"))
    for one, out in ((filed, tmp_path / "run"), (case, None)):
        _, weak = steps_told(building(one, none, (), out))
        assert "--fp16" in weak
        assert "constraints" not in weak
    assert building(filed, none, (), tmp_path / "run")[1].command == (
        *("trtexec", f"--onnx={tmp_path}/m.onnx", "--fp16"),
        f"--saveEngine={tmp_path}/run/tensorrt-8.6.engine",
    )


def test_for_eight_int8_is_left_out_nowhere(fixed, tmp_path):
    case, plan = fixed
    none = plan.model_copy(update={"keep": (), "data_movement": (), "unsupported": ()})
    filed = replace(case, network=replace(case.network, path=tmp_path / "m.onnx"))
    some = none.model_copy(update={"int8": ("conv",)})
    _, weak = steps_told(building(filed, some, (), tmp_path / "run"))
    assert "; build the FP32 model and its Q/DQ pairs: halfwise export" in weak
    # A model that came with pairs is built as it is.
    paired = network_from_proto(quantised_relu(ill=False))
    filed = replace(case, network=replace(paired, path=tmp_path / "q.onnx"))
    _, weak = steps_told(building(filed, none, (), tmp_path / "run"))
    assert f"trtexec --onnx={tmp_path}/q.onnx --int8 --fp16 " in weak
