import shlex
from typing import Any

import numpy as np
import pytest

from halfwise import build, inspect
from halfwise.case import Samples
from halfwise.errors import CaseError, RecordMismatch
from halfwise.records import EngineTensor, ShapeRange, TensorName
from halfwise.tensorrt.answers import Description, profiles_of
from halfwise.tools.build import typical, zeros
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
    assert (bare.layers, bare.proof.nodes) == (3, ())
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
    with pytest.raises(RecordMismatch, match="has no valid engine header"):
        inspect(tmp_path / "e", trt_command=command)


TWO = (
    ShapeRange(min=(1, 4), opt=(2, 4), max=(3, 4)),
    ShapeRange(min=(4, 4), opt=(8, 4), max=(8, 4)),
)


def tensor(name="x", **changed):
    values: dict[str, Any] = {
        "is_input": True,
        "dtype": "float32",
        "shape": (-1, 4),
        "shape_tensor": False,
        "limits": TWO,
    }
    return EngineTensor(name=TensorName(name), **values | changed)


def description(*tensors):
    return Description(tensors, 2, 3, 0)


def samples(*rows):
    arrays = [np.zeros((n, 4), np.float32) for n in rows]
    return Samples(tuple(f"s{n}" for n in rows), lambda i: {"x": arrays[i]})


def test_zeros_have_opt_shapes_and_shape_tensors_opt_values():
    values = tensor(
        "size",
        dtype="int32",
        shape=(2,),
        shape_tensor=True,
        limits=(ShapeRange(min=(1, 1), opt=(5, 6), max=(9, 9)),) * 2,
    )
    fixed = tensor(
        "fixed", dtype="float16", shape=(), limits=(ShapeRange(min=(), opt=(), max=()),) * 2
    )
    output = tensor("y", is_input=False, limits=())
    found = zeros(description(tensor(), values, fixed, output))
    assert {name: (a.shape, a.dtype.name) for name, a in found.items()} == {
        "x": ((2, 4), "float32"),
        "size": ((2,), "int32"),
        "fixed": ((), "float16"),
    }
    assert found["size"].tolist() == [5, 6]
    assert not found["x"].any()


def test_shape_tensors_that_are_not_told_in_full():
    """As 8.6.0 on an H200 told the values [1, 1], [4, 2] and [16, 16] of two elements."""
    limits = (ShapeRange(min=(1,), opt=(4,), max=(16,)),) * 2
    part = tensor("i", dtype="int32", shape=(2,), shape_tensor=True, limits=limits)
    assert zeros(description(tensor(), part))["i"].tolist() == [4, 4]
    values = {"x": np.zeros((2, 4), np.float32), "i": np.array([4, 2], np.int32)}
    assert typical(description(tensor(), part), Samples(("s",), lambda _: values)) == (0, values)
    assert not profiles_of(description(tensor(), part))[0].values


def test_a_sample_at_opt_shapes_is_taken_else_the_first():
    assert typical(description(tensor()), samples(3, 2))[1]["x"].shape == (2, 4)
    profile, sample = typical(description(tensor()), samples(5, 8))
    assert (profile, sample["x"].shape) == (1, (8, 4))
    profile, sample = typical(description(tensor()), samples(5))
    assert (profile, sample["x"].shape) == (1, (5, 4))


def test_samples_that_do_not_fit():
    with pytest.raises(CaseError, match="outside every profile"):
        typical(description(tensor()), samples(9))
    with pytest.raises(CaseError, match="lack z"):
        typical(description(tensor("z")), samples(2))
