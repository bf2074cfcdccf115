"""The call of onnxconverter-common, on models that FP16 breaks."""

import inspect
from typing import Any

import onnx
import pytest

from halfwise import api
from halfwise.errors import UsageError
from halfwise.fixing.command import convert_float_to_float16
from tests import models
from tests.models import Ill

# Of onnxconverter-common 1.16.
PARAMETERS = [
    "model", "min_positive_val", "max_finite_val", "keep_io_types", "disable_shape_infer",
    "op_block_list", "node_block_list", "check_fp16_ready",
]  # fmt: skip
NOT_JUDGED = pytest.warns(UserWarning, match="Nothing was judged")


def samples(ill: Ill) -> list[dict[str, Any]]:
    return [ill.sample(i) for i in range(models.COUNT)]


def wide(proto: onnx.ModelProto) -> set[str]:
    """The nodes whose outputs are FP32."""
    types = onnx.shape_inference.infer_shapes(proto).graph.value_info
    named = {v.name for v in types if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    return {n.name for n in proto.graph.node if n.op_type != "Cast" and named & set(n.output)}


def test_the_arguments_are_theirs_in_their_order() -> None:
    parameters = inspect.signature(convert_float_to_float16).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == PARAMETERS


@pytest.mark.parametrize("make", [models.conv_chain, models.layer_norm, models.log_mel])
def test_with_inputs_it_is_what_fix_finds_and_passes(make: Any) -> None:
    ill = make()
    mixed = convert_float_to_float16(ill.proto, keep_io_types=True, inputs=samples(ill))
    judged = api.verify(ill.proto, mixed, samples(ill))
    assert judged.run.verdict.passed


def test_what_is_blocked_stays_in_fp32_and_what_is_not_there_is_ignored() -> None:
    ill = models.conv_chain()
    with NOT_JUDGED:
        made = convert_float_to_float16(
            ill.proto,
            keep_io_types=True,
            op_block_list=["Relu", "CumSum"],
            node_block_list=["?", "conv_c"],
        )
    assert {"relu"} <= wide(made)
    with NOT_JUDGED:
        assert "relu" not in wide(convert_float_to_float16(ill.proto, keep_io_types=True))


@pytest.mark.parametrize("keep", [True, False])
def test_inputs_and_outputs_stay_or_become_fp16(keep: bool) -> None:
    with NOT_JUDGED:
        made = convert_float_to_float16(models.conv_chain().proto, keep_io_types=keep)
    onnx.checker.check_model(made, full_check=True)
    wanted = onnx.TensorProto.FLOAT if keep else onnx.TensorProto.FLOAT16
    ends = (*made.graph.input, *made.graph.output)
    assert {end.type.tensor_type.elem_type for end in ends} == {wanted}


@pytest.mark.parametrize(
    ("make", "nodes"),
    [
        (models.layer_norm, {"square", "variance", "root"}),
        (models.two_readers, {"enlarge"}),
    ],
)
def test_without_inputs_what_needs_no_data_stays_in_fp32(make: Any, nodes: set[str]) -> None:
    with NOT_JUDGED:
        made = convert_float_to_float16(make().proto, keep_io_types=True)
    assert nodes <= wide(made)


def test_an_eps_that_becomes_zero_before_a_logarithm_stays_in_fp32_and_is_named() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y)
        <float eps = {1e-10}> { r = Relu(x) a = Add(r, eps) l = Log(a) y = Relu(l) }"""
    proto = onnx.parser.parse_model(text)
    for node, name in zip(proto.graph.node, ("relu", "add", "log", "end"), strict=True):
        node.name = name
    with pytest.warns(UserWarning, match="Nothing was judged") as warned:
        made = convert_float_to_float16(proto, keep_io_types=True)
    assert {"add", "log"} <= wide(made)
    (warning,) = warned
    (named,) = str(warning.message).splitlines()[1:]
    assert named.startswith("add: ")
    assert "Log" in named


def test_a_verdict_that_fails_is_a_warning() -> None:
    ill = models.conv_chain()
    with pytest.warns(UserWarning, match="FAILED"):
        convert_float_to_float16(
            ill.proto,
            inputs=samples(ill),
            keep_io_types=True,
            lower=["conv_b", "relu", "conv_c"],
            no_repair=True,
        )


def test_a_list_of_ends_is_refused() -> None:
    with pytest.raises(UsageError, match="keep_io_types"):
        convert_float_to_float16(models.conv_chain().proto, keep_io_types=["x"])
