import shlex
from typing import Any

import numpy as np
import onnx
import pytest

from halfwise import build
from halfwise.errors import BuildFailed, CaseError, UsageError
from tests.engines import ODD, SQUARES
from tests.fake_tensorrt.faults import Fault


@pytest.fixture
def command(fake_worker):
    return shlex.join(fake_worker())


def test_an_engine_of_a_model_in_memory(tmp_path, command):
    out = tmp_path / "deep" / "e.engine"
    samples = {"x": np.ones((4, 4), np.float32)}
    made = build(SQUARES, out, inputs=samples, to="fp16", tf32=True, trt_command=command)
    assert made.build.engine is not None
    assert made.inspection.proof is not None
    assert made.inspection.latency is not None
    assert out.stat().st_size == made.build.engine.bytes
    assert (made.build.engine.side, made.build.engine.path) == ("here", str(out))
    assert made.build.config.tf32
    assert made.inspection.notes == ()
    assert made.inspection.latency.shapes == {"x": (1, 4)}
    precisions = {node.node: node.precision for node in made.inspection.proof.nodes}
    assert precisions == dict.fromkeys(("mul", "square", "root"), "fp16")
    assert [path.name for path in out.parent.iterdir()] == ["e.engine"]


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
        ({"min_shapes": ["x:9x4"], "max_shapes": ["x:1x4"]}, CaseError, "larger than"),
        ({"typing": "strong"}, UsageError, "no strong typing"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path, command, options, kind, message):
    shapes: dict[str, Any] = {} if "min_shapes" in options else {"opt_shapes": ["x:2x4"]}
    with pytest.raises(kind, match=message):
        build(SQUARES, tmp_path / "e", trt_command=command, **shapes, **options)
