import shlex
from typing import Any

import numpy as np
import pytest

from halfwise import build, inspect
from halfwise.errors import CaseError, RecordMismatch
from tests.engines import SQUARES


@pytest.fixture
def command(fake_worker):
    return shlex.join(fake_worker())


@pytest.fixture
def engine(tmp_path, command):
    shapes: dict[str, Any] = {
        "min_shapes": ["x:1x4"],
        "opt_shapes": ["x:2x4"],
        "max_shapes": ["x:3x4"],
    }
    build(SQUARES, tmp_path / "e.engine", to="fp16", trt_command=command, **shapes)
    return tmp_path / "e.engine"


def test_without_a_model_and_with_one(engine, command):
    bare = inspect(engine, trt_command=command)
    assert bare.proof is not None
    assert (bare.profiles, bare.layers, bare.proof.nodes) == (1, 3, ())
    assert (bare.engine.side, bare.engine.path) == ("here", str(engine))
    samples = {"x": np.ones((5, 4), np.float32)}
    full = inspect(engine, model=SQUARES, inputs=samples, trt_command=command)
    assert full.proof is not None
    assert full.latency is not None
    assert full.proof.node_share == {"fp16": 1.0}
    assert full.latency.shapes == {"x": (1, 4)}
    assert full.notes == ()


def test_samples_are_read_by_the_inputs_of_the_engine(engine, command):
    found = inspect(engine, inputs={"x": np.ones((5, 4), np.float32)}, trt_command=command)
    assert found.latency is not None
    assert found.latency.shapes == {"x": (1, 4)}
    with pytest.raises(CaseError):
        inspect(engine, inputs={"x": np.ones((5, 3), np.float32)}, trt_command=command)


def test_what_is_no_engine(tmp_path, command):
    (tmp_path / "e").write_bytes(b"nothing of the kind")
    with pytest.raises(RecordMismatch, match="does not begin as its engines do"):
        inspect(tmp_path / "e", trt_command=command)
