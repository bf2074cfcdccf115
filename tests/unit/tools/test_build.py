import shlex
from typing import Any

import numpy as np
import onnx
import pytest

from halfwise import build
from halfwise.errors import BuildFailed, CaseError, UsageError
from halfwise.graph.loading import network_from_proto
from tests.engines import ODD, SQUARES
from tests.fake_tensorrt.faults import Fault


@pytest.fixture
def command(fake_worker):
    return shlex.join(fake_worker())


def test_an_engine_of_a_model_in_memory(tmp_path, command):
    out = tmp_path / "deep" / "e.engine"
    samples = {"x": np.ones((4, 4), np.float32)}
    made = build(SQUARES, out, inputs=samples, to="fp16", keep=["square"], trt_command=command)
    assert made.build.engine is not None
    assert made.inspection.proof is not None
    assert made.inspection.latency is not None
    assert out.stat().st_size == made.build.engine.bytes
    assert (made.build.engine.side, made.build.engine.path) == ("here", str(out))
    assert made.build.config.keep == ("square",)
    assert made.inspection.notes == ()
    assert made.inspection.latency.shapes == {"x": (1, 4)}
    precisions = {node.node: node.precision for node in made.inspection.proof.nodes}
    assert precisions == {"mul": "fp16", "square": "fp32", "root": "fp16"}
    assert [path.name for path in out.parent.iterdir()] == ["e.engine"]


def test_data_movement_between_kept_nodes_is_kept_too(tmp_path, command):
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2, 4] x) => (float[4, 2] y)
    { [first] a = Exp(x) [turn] b = Transpose <perm = [1, 0]> (a) [last] y = Log(b) }"""
    model = onnx.parser.parse_model(text)
    made = build(
        model, tmp_path / "e", to="fp16", keep=["first", "last"], trt_command=command, tf32=True
    )
    assert made.build.config.keep == ("first", "turn", "last")
    assert made.build.config.tf32
    assert "zeros" in made.inspection.notes[0]


def test_an_engine_that_does_not_run_on_zeros_is_delivered(tmp_path, fake_worker):
    command = shlex.join(fake_worker(faults=[Fault("run", "raise")]))
    model = onnx.ModelProto()
    model.CopyFrom(SQUARES)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    made = build(model, tmp_path / "e", trt_command=command)
    assert (tmp_path / "e").exists()
    assert made.inspection.proof is None
    assert "It does not run on zeros" in made.inspection.notes[0]


def test_nothing_is_left_where_there_is_no_engine(tmp_path, command):
    with pytest.raises(BuildFailed, match=r"at node odd \(Odd\)") as failed:
        build(ODD, tmp_path / "e", trt_command=command)
    assert "even: " in failed.value.hint
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"to": "int8"}, UsageError, "--to is 'int8'"),
        ({"keep_op": ["Sqrt"]}, UsageError, "not apply when everything is FP32"),
        ({"keep": ["absent"], "to": "fp16"}, UsageError, "matches no node"),
        ({"min_shapes": ["x:9x4"], "max_shapes": ["x:1x4"]}, CaseError, "larger than"),
        ({"typing": "strong"}, UsageError, "no strong typing"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path, command, options, kind, message):
    shapes: dict[str, Any] = {} if "min_shapes" in options else {"opt_shapes": ["x:2x4"]}
    with pytest.raises(kind, match=message):
        build(SQUARES, tmp_path / "e", trt_command=command, **shapes, **options)


def test_the_names_are_those_of_halfwise():
    """The file that is built has a name for every node, so constraints can name any."""
    assert [n.name for n in network_from_proto(SQUARES).nodes()] == ["mul", "square", "root"]
