from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays

from halfwise.errors import CaseError, UsageError
from halfwise.records import EngineTensor, ShapeRange, TensorName
from halfwise.tensorrt.worker.described import (
    Description,
    check_tactic_sources,
    described,
    packed,
    profiles_of,
    unpacked,
    worker_info,
)

GPU = {
    "index": 0,
    "name": "Orin",
    "compute_capability": "8.7",
    "uuid": "0",
    "memory": 100,
    "free": 40,
}
HELLO = {
    "python": "3.8.10",
    "executable": "/usr/bin/python3",
    "host": "orin",
    "cache": "/home/u/.cache/halfwise/worker",
    "driver": None,
    "environment": {},
    "tensorrt": "8.6.0",
    "typing": ["weak"],
    "tactic_sources": ["CUBLAS", "CUDNN"],
    "features": {"bf16": False, "layer_norm": True},
    "gpus": [GPU],
}


def info(**changed):
    return worker_info("orin", ["ssh", "orin", "python3"], HELLO | changed)


def test_a_worker_that_can_build():
    found = info()
    assert (found.name, found.gpu, found.compute_capability, found.free_bytes) == (
        *("orin", "Orin", "8.7"),
        40,
    )
    assert found.command == ("ssh", "orin", "python3")
    assert found.trouble == ""
    assert found.notes == (
        "halfwise was run with TensorRT 8.6.0",
        "has LayerNorm layers",
        "keeps files in /home/u/.cache/halfwise/worker on orin",
    )


def test_what_is_missing_is_told_together():
    found = info(
        tensorrt=None,
        typing=[],
        gpus=[],
        import_error={"message": "Python cannot import tensorrt: no"},
        cuda_error={"message": "There is no NVIDIA driver here."},
    )
    assert found.trouble == ("Python cannot import tensorrt: no. There is no NVIDIA driver here.")
    assert (found.tensorrt, found.gpu, found.memory_bytes) == (None, None, None)


@pytest.mark.parametrize(
    ("version", "standing"),
    [
        ("10.0.1", "halfwise was checked against the bindings of TensorRT 10.0.1, not run with it"),
        (
            "10.3.0",
            "halfwise was neither run with TensorRT 10.3.0 nor checked against its bindings",
        ),
        ("11.9.0", "TensorRT 11.9.0 is newer than 11.4, the newest version checked"),
    ],
)
def test_versions_say_how_well_they_are_known(version, standing):
    assert info(tensorrt=version).notes[0] == standing


@pytest.mark.parametrize("value", ["0", "1"])
def test_an_override_of_tf32_is_told(value):
    found = info(environment={"NVIDIA_TF32_OVERRIDE": value})
    assert found.tf32_override == value
    assert f"{found.notes[2]}." == found.tf32_remark


def test_tactic_sources_that_the_version_lacks():
    check_tactic_sources(info(), ("CUDNN",))
    check_tactic_sources(info(tactic_sources=[]), ())
    with pytest.raises(UsageError, match="has no tactic source FOO") as caught:
        check_tactic_sources(info(), ("CUBLAS", "FOO"))
    assert caught.value.hint == "--engine tactic-sources takes CUBLAS, CUDNN."


def test_an_engine():
    limits = {"min": [1, 2], "opt": [2, 2], "max": [8, 2]}
    io: dict[str, object] = {"name": "x", "mode": "input", "dtype": "float32", "shape": [-1, 2]}
    io |= {"shape_tensor": False, "profiles": [limits, {}]}
    found = described({"io": [io], "profiles": 1, "layers": 4, "device_bytes": 9})
    assert found.tensors[0].limits == (ShapeRange(min=(1, 2), opt=(2, 2), max=(8, 2)),)
    assert (found.profiles, found.layers, found.device_bytes) == (1, 4, 9)


def test_profiles():
    limits = (ShapeRange(min=(1, 4), opt=(2, 4), max=(3, 4)),)
    shared: dict[str, Any] = {"is_input": True, "dtype": "float32", "limits": limits}
    x = EngineTensor(name=TensorName("x"), shape=(-1, 4), shape_tensor=False, **shared)
    fixed = x.model_copy(update={"name": "z", "shape": (2, 4)})
    size = x.model_copy(update={"name": "s", "shape": (2,), "shape_tensor": True})
    assert profiles_of(Description((fixed,), 1, 0, 0)) == ()
    (profile,) = profiles_of(Description((x, fixed, size), 1, 0, 0))
    assert (profile.shapes, profile.values) == ({"x": limits[0]}, {"s": limits[0]})


DTYPES = ("float32", "float16", "bfloat16", "int8", "int32", "int64", "bool", "uint8")


def engine(rank=1, **dtypes):
    shape = (-1,) * rank
    tensors = tuple(
        EngineTensor(
            name=TensorName(n), is_input=True, dtype=d, shape=shape, shape_tensor=False, limits=()
        )
        for n, d in dtypes.items()
    )
    return Description(tensors, 1, 1, 0)


@given(arrays(np.float32, array_shapes(min_dims=0, min_side=0)))
def test_arrays_of_every_type_and_shape_come_back(array):
    with np.errstate(all="ignore"):
        feeds = {name: array.astype(np.dtype(name)) for name in DTYPES}
    entries, data = packed(feeds, engine(array.ndim, **{name: name for name in DTYPES}))
    found = unpacked(entries, data)
    assert found.keys() == feeds.keys()
    for name, expected in feeds.items():
        assert found[name].dtype == expected.dtype
        assert found[name].shape == expected.shape
        assert found[name].tobytes() == expected.tobytes()


def test_arrays_that_are_not_contiguous():
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    entries, data = packed({"x": array}, engine(2, x="float32"))
    np.testing.assert_array_equal(unpacked(entries, data)["x"], array)


def test_types_become_the_engines():
    feeds = {"n": np.array([-5, 2**31 - 1]), "x": np.array([0.1, np.nan], np.float32)}
    entries, data = packed(feeds, engine(n="int32", x="float16"))
    assert [entry["dtype"] for entry in entries] == ["int32", "float16"]
    found = unpacked(entries, data)
    assert found["n"].tolist() == [-5, 2**31 - 1]
    np.testing.assert_array_equal(found["x"], feeds["x"].astype(np.float16))


def test_values_and_names_that_the_engine_does_not_take():
    with pytest.raises(CaseError, match="input 'n' holds 2147483648, which int32 cannot hold"):
        packed({"n": np.array([2**31])}, engine(n="int32"))
    with pytest.raises(CaseError, match="The engine's inputs are 'x', the model's 'y'"):
        packed({"y": np.array([1.5])}, engine(x="float32"))
