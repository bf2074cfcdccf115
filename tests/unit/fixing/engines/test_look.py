"""Inspection itself is tested with a worker: tests/end_to_end/test_engine_commands.py."""

from typing import Any

import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.errors import CaseError
from halfwise.fixing.engines.look import typical, zeros
from halfwise.records import EngineTensor, ShapeRange, TensorName
from halfwise.tensorrt.worker.described import Description, profiles_of

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


def engine(*tensors):
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
    found = zeros(engine(tensor(), values, fixed, output))
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
    assert zeros(engine(tensor(), part))["i"].tolist() == [4, 4]
    values = {"x": np.zeros((2, 4), np.float32), "i": np.array([4, 2], np.int32)}
    assert typical(engine(tensor(), part), Samples(("s",), lambda _: values)) == (0, values)
    assert not profiles_of(engine(tensor(), part))[0].values


def test_a_sample_at_opt_shapes_is_taken_else_the_first():
    assert typical(engine(tensor()), samples(3, 2))[1]["x"].shape == (2, 4)
    profile, sample = typical(engine(tensor()), samples(5, 8))
    assert (profile, sample["x"].shape) == (1, (8, 4))
    profile, sample = typical(engine(tensor()), samples(5))
    assert (profile, sample["x"].shape) == (1, (5, 4))


def test_samples_that_do_not_fit():
    with pytest.raises(CaseError, match="outside every profile"):
        typical(engine(tensor()), samples(9))
    with pytest.raises(CaseError, match="lack z"):
        typical(engine(tensor("z")), samples(2))
